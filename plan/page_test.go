package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// accuracyPage writes docs/plan-accuracy.md.
func accuracyPage(t testing.TB, rows []scored) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# How well plans are predicted\n")
	p("`make plan-accuracy` fits the factors again and writes this page. The points are measured training steps that NVIDIA (Megatron-Bridge, NeMo,")
	p("dgxc-benchmarking), MosaicML, the PyTorch team (torchtitan), BigScience and Hugging Face published; they lie in plan/points.csv.")
	p("Errors are |predicted / measured - 1|. *In sample*: one factor for each framework, GPU and type, fitted to all points. *Model left out*: the factor")
	p("comes from other models alone, never from other rows of the same model. Nothing is tuned to a row.\n")
	p("## Step time\n")
	p("| group | points | in sample: median / p90 | model left out: median / p90 | wanted |")
	p("|---|---|---|---|---|")
	want := map[string]string{"dense, Megatron": "5 / 12%", "FSDP": "8 / 20%", "MoE, Megatron": "12 / 25%"}
	in, out := map[string][]float64{}, map[string][]float64{}
	var groups []string
	for _, r := range rows {
		g := groupOf(r.Point)
		if in[g] == nil {
			groups = append(groups, g)
		}
		in[g] = append(in[g], math.Abs(r.pred/r.Step-1))
		if !math.IsNaN(r.loo) {
			out[g] = append(out[g], math.Abs(r.loo/r.Step-1))
		}
	}
	slices.Sort(groups)
	bold := func(text string, met bool) string {
		if met {
			return text
		}
		return "**" + text + "**"
	}
	for _, g := range groups {
		a, c := quantiles(in[g])
		d, e := quantiles(out[g])
		met := true
		if w := want[g]; w != "" {
			var x, y float64
			fmt.Sscanf(w, "%f / %f", &x, &y)
			met = 100*d <= x && 100*e <= y
		}
		p("| %s | %d | %.1f / %.1f%% | %s | %s |", g, len(in[g]), 100*a, 100*c, bold(fmt.Sprintf("%.1f / %.1f%%", 100*d, 100*e), met), want[g])
	}
	p("\nBold: missed. Layers with experts got 1.5 times faster from one release of Megatron-Bridge to the next for the same layout; the table knows the")
	p("release of each point, and `weft plan --release` takes it. nanotron's rows are derived from a picture and from a FLOP convention that is not stated.\n")
	p("## By class, model left out\n")
	p("| framework, GPU, type, kind | points | models | factor | median | p90 |")
	p("|---|---|---|---|---|---|")
	var classes []string
	for _, r := range rows {
		if !slices.Contains(classes, r.class) {
			classes = append(classes, r.class)
		}
	}
	slices.Sort(classes)
	for _, c := range classes {
		var errs []float64
		n := 0
		for _, r := range rows {
			if r.class == c {
				n++
				if !math.IsNaN(r.loo) {
					errs = append(errs, math.Abs(r.loo/r.Step-1))
				}
			}
		}
		f, _, models := classMedian(rows, func(r scored) bool { return r.class == c })
		m, q := quantiles(errs)
		if len(errs) == 0 {
			p("| %s | %d | %d | %.3f | no other model | |", strings.ReplaceAll(c, ",", ", "), n, models, f)
			continue
		}
		p("| %s | %d | %d | %.3f | %.1f%% | %.1f%% |", strings.ReplaceAll(c, ",", ", "), n, models, f, 100*m, 100*q)
	}
	return b.String()
}
