package plan

import (
	"math"
	"testing"
)

// Intervals that leave out a whole model contain between 85 and 95% of its measured steps, every model counting the same. The
// interval is widened around the prediction that was made without the model. Of the steps that no factor knows, published by others, they
// contain at least 85%, too.
func TestIntervalsCoverLeftOutModels(t *testing.T) {
	for _, class := range []string{"dense", "FSDP", "MoE", sinkClass} {
		inside, total := map[string]float64{}, map[string]float64{}
		unknown, known := 0, 0
		see := func(model string, e float64) {
			spread, models, _ := spreadOf(class, model)
			if models > 0 {
				total[model]++
				inside[model] += float64(b2i(math.Abs(math.Log1p(e)) <= spread))
			}
		}
		for _, p := range Points() {
			if p.Step > 0 && !math.IsNaN(p.Error) && errorClass(p.Framework, p.Model) == class {
				see(p.Model.Name, p.Error)
			}
		}
		for _, e := range outsideErrors() {
			if e.class == class {
				see(e.model, e.error)
				spread, _, _ := spreadOf(class, e.model)
				known += b2i(math.Abs(math.Log1p(e.error)) <= spread)
				unknown++
			}
		}
		covered := 0.0
		for name, n := range total {
			covered += inside[name] / n / float64(len(total))
		}
		spread, models, steps := spreadOf(class, "")
		t.Logf("%s: %d steps of %d models, x%.2f, covered %.1f%%, and %d of %d steps in no fit", class, steps, models, math.Exp(spread),
			100*covered, known, unknown)
		if float64(known) < .85*float64(unknown) {
			t.Errorf("%s: 90%% intervals contain %d of %d steps in no fit", class, known, unknown)
		}
		if covered < .85 || covered > .95 && models >= enough {
			t.Errorf("%s: 90%% intervals contain %.1f%% of the steps of %d left-out models", class, 100*covered, len(total))
		}
	}
}
