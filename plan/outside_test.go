package plan

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/work"
)

// outsidePoint is a published step that stands behind no factor and no habit.
type outsidePoint struct {
	group, source, model, gpu, framework, release, layout, unit, note string
	gpus                                                              int
	value                                                             float64
	cost                                                              *Cost
	off                                                               float64 // predicted step over published step, less 1
}

// outsidePoints prices what testdata/outside.csv lists, every layout as 'weft plan --layout' would.
func outsidePoints(t testing.TB) []outsidePoint {
	t.Helper()
	f, err := os.Open("testdata/outside.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	machines := map[string]*Machine{}
	var all []outsidePoint
	for _, c := range lines[1:] {
		p := outsidePoint{group: c[0], source: c[1], model: c[2], gpu: c[3], framework: c[6], release: c[7], layout: c[8], unit: c[9], note: c[11]}
		if p.gpus, err = strconv.Atoi(c[4]); err != nil {
			t.Fatal(c, err)
		}
		if p.value, err = strconv.ParseFloat(c[10], 64); err != nil {
			t.Fatal(c, err)
		}
		m, err := work.Named(p.model)
		if err != nil {
			t.Fatal(err)
		}
		nic := 200.0
		if c[5] != "" {
			if nic, err = strconv.ParseFloat(c[5], 64); err != nil {
				t.Fatal(c, err)
			}
		}
		key := fmt.Sprint(p.gpu, p.gpus, nic)
		if machines[key] == nil {
			machines[key] = clusterOf(t, p.gpu, p.gpus, nic)
		}
		l, err := ParseLayout(p.layout, Framework(p.framework), p.gpus)
		if err != nil {
			t.Fatal(c, err)
		}
		p.cost, err = Price(Question{Model: m, Machine: machines[key], Framework: Framework(p.framework), Layout: l, Release: p.release})
		if err != nil {
			t.Errorf("%s, %s: %v", p.source, p.model, err)
			continue
		}
		p.off = p.ratio(machines[key]) - 1
		all = append(all, p)
	}
	return all
}

// ratio is the predicted step over the published one, whatever the source states.
func (p outsidePoint) ratio(mc *Machine) float64 {
	kind, convention, _ := strings.Cut(p.unit, "_")
	mfu := p.cost.MFUs[convention]
	switch kind {
	case "tok":
		return p.value / p.cost.TokensPerS
	case "step":
		return p.cost.Step / p.value
	case "mfu":
		return p.value / mfu
	case "tflops":
		peak, _ := peakOf(mc, p.cost.Layout.Dtype)
		return p.value * 1e12 / (mfu * peak)
	}
	return math.NaN()
}

func TestOutside(t *testing.T) {
	for _, p := range outsidePoints(t) {
		t.Logf("%+6.1f%% %-16s %-28s %-16s %5d %-13s %s fits=%v f=%.3f mfu=%.3f bub=%.2f shown=%.2f", 100*p.off, p.group, p.source, p.model, p.gpus, p.gpu, p.cost.LayoutText, p.cost.Fits, p.cost.Factor, p.cost.MFU, p.cost.Bubble, p.cost.Shown)
	}
}
