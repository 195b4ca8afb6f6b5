package plan

import (
	"math"
	"testing"
)

// Intervals that leave out a whole model contain between 85 and 95% of its measured steps, every model counting the same. The
// interval is widened around the prediction that was made without the model.
func TestIntervalsCoverLeftOutModels(t *testing.T) {
	for _, class := range []string{"dense", "FSDP", "MoE"} {
		inside, total := map[string]float64{}, map[string]float64{}
		for _, p := range Points() {
			if p.Step == 0 || math.IsNaN(p.Error) || errorClass(p.Framework, p.Model.Experts) != class {
				continue
			}
			predicted := p.Step * (1 + p.Error)
			spread, models, _ := spreadOf(class, p.Model.Name)
			if models == 0 {
				continue
			}
			total[p.Model.Name]++
			if p.Step >= predicted*math.Exp(-spread) && p.Step <= predicted*math.Exp(spread) {
				inside[p.Model.Name]++
			}
		}
		covered := 0.0
		for name, n := range total {
			covered += inside[name] / n / float64(len(total))
		}
		spread, models, steps := spreadOf(class, "")
		t.Logf("%s: %d steps of %d models, x%.2f, covered %.1f%%", class, steps, models, math.Exp(spread), 100*covered)
		if covered < .85 || covered > .95 {
			t.Errorf("%s: 90%% intervals contain %.1f%% of the steps of %d left-out models", class, 100*covered, len(total))
		}
	}
}
