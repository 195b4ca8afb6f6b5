package plan

import (
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/internal/kernel"
)

var update = flag.Bool("update", false, "fit the factors again and write docs/reference/plan-accuracy.md, factors.csv and points.csv")

// clusterOf builds the machine that a point was measured on.
func clusterOf(t testing.TB, gpu string, gpus int, nic float64) *Machine {
	t.Helper()
	host, per := "dgx-h100", 8
	switch gpu {
	case "A100-80G", "A100-40G":
		host = "dgx-a100"
		if nic <= 50 {
			host = "aws-p4de"
		}
	case "A800":
		host = "dgx-a100"
	case "H200":
		host = "dgx-h200"
	case "H800":
		host = "hgx-h800"
	case "MI300X":
		host = "mi300x"
	case "V100":
		host, per = "dgx-2", 16
	case "RTX-4090":
		host = "l40s-8"
	case "B200":
		host = "dgx-b200"
	case "B300":
		host = "dgx-b300"
	case "GB200":
		host, per = "gb200", 4
	case "GB300":
		host, per = "gb300", 4
	}
	hosts := (gpus + per - 1) / per
	text := fmt.Sprintf("name: x\nhosts:\n  \"n[0-%d]\": %s\n", hosts-1, host)
	sw := "QM9700"
	switch {
	case host == "dgx-a100":
		sw = "QM8790"
	case host == "aws-p4de":
		sw = "SN4600C"
	case host == "dgx-2":
		sw = "SB7800"
	case host == "mi300x":
		sw = "TH5-400"
	case strings.HasSuffix(host, "300"):
		sw = "Q3400"
	}
	if per == 4 {
		text = fmt.Sprintf("name: x\nhosts:\n  \"n[0-%d]\": %s\nnvlink: nvl72\n", (hosts+17)/18*18-1, host)
	}
	if hosts > 1 {
		text += "fabric:\n  family: rail\n  switch: " + sw + "\n"
	}
	c, err := cluster.Parse("x", []byte(text), nil)
	if err != nil {
		t.Fatalf("%s: %v\n%s", gpu, err, text)
	}
	m, err := NewMachine(c, gpus)
	if err != nil {
		t.Fatal(err)
	}
	switch gpu {
	case "A100-40G":
		m.GPU.Memory, m.GPU.Name = 40*unit.GB, "A100-SXM-40GB"
		m.Chip.HBM = 1555e9
	case "A800":
		m.GPU.Name = "A800-SXM"
	case "RTX-4090":
		if m.GPU, err = c.Catalog.GPU(gpu); err != nil {
			t.Fatal(err)
		}
		m.Chip = kernel.NewChip(m.GPU)
	case "H100-96G-500W":
		m.GPU.Memory, m.GPU.Name = 96*unit.GB, "H100-96G-500W"
		m.Chip.HBM = 2400e9
	}
	return m
}

type scored struct {
	Point
	q     Question
	kappa float64 // that makes the model exact
	host  bool    // the step hardly follows it: the host sets the pace, and nothing can be learned of the kernels
	class string
	pred  float64 // with the class's factor
	loo   float64 // with the model left out
}

func classOf(p Point) string {
	g := p.GPU
	d := p.Layout.Dtype
	if d == "fp16" {
		d = "bf16"
	}
	kind := "dense"
	if p.Model.Experts > 0 {
		kind = "moe"
	}
	return strings.Join([]string{string(p.Framework), g, d, kind}, ",")
}

// solve finds the factor that makes the model exact: the step is nearly linear in it.
func solve(q Question, h Habits, want float64) float64 {
	at := func(k float64) float64 {
		q.Factor = k
		c, err := price(q, h, math.Inf(1))
		if err != nil {
			return math.NaN()
		}
		return c.Step
	}
	a, b := .8, 1.6
	fa, fb := at(a), at(b)
	for range 6 {
		if math.Abs(fb-fa) < 1e-12 {
			break
		}
		next := a + (want-fa)*(b-a)/(fb-fa)
		next = min(max(next, .1), 8)
		a, fa = b, fb
		b, fb = next, at(next)
		if math.Abs(fb/want-1) < 1e-4 {
			break
		}
	}
	return b
}

func scoreAll(t testing.TB, h Habits, keep func(Point) bool) []scored {
	machines := map[string]*Machine{}
	var all []scored
	for _, p := range Points() {
		if p.Step == 0 || !keep(p) {
			continue
		}
		key := fmt.Sprint(p.GPU, p.GPUs, p.NIC)
		if machines[key] == nil {
			machines[key] = clusterOf(t, p.GPU, p.GPUs, p.NIC)
		}
		q := Question{Model: p.Model, Machine: machines[key], Framework: p.Framework, Layout: p.Layout, Release: p.Release}
		if q.Layout.Batch%(q.Layout.Micro*q.Layout.DP) != 0 {
			continue
		}
		if q.Layout.VPP > 1 && q.Layout.MicroBatches()%q.Layout.PP != 0 {
			q.Layout.VPP, q.Layout.Schedule = 1, "1f1b"
		}
		if err := q.Layout.Check(p.Model, 0); err != nil {
			t.Log(p.ID, err)
			continue
		}
		s := scored{Point: p, q: q, class: classOf(p)}
		s.kappa = solve(q, h, p.Step)
		q.Factor = 1
		if a, err := price(q, h, math.Inf(1)); err == nil {
			q.Factor = 1.2
			b, _ := price(q, h, math.Inf(1))
			s.host = math.Log(b.Step/a.Step)/math.Log(1.2) < .5
		}
		all = append(all, s)
	}
	return all
}

// weighted median: every model of a class counts the same.
func classMedian(rows []scored, use func(scored) bool) (float64, int, int) {
	by := map[string][]float64{}
	n := 0
	for _, r := range rows {
		if use(r) && !r.host {
			by[r.Model.Name] = append(by[r.Model.Name], math.Log(r.kappa))
			n++
		}
	}
	var mids []float64
	for _, v := range by {
		mids = append(mids, median(v))
	}
	if len(mids) == 0 {
		return 0, 0, 0
	}
	slices.Sort(mids)
	return math.Exp(median(mids)), n, len(by)
}

// fitted reports whether a factor may learn from a point.
func fitted(r scored) bool {
	return r.Layout.Phase == "pretrain" && !strings.HasSuffix(r.ID, "-nano")
}

// pools are the points that a factor may come from, the most alike first.
var pools = []struct {
	name string
	same func(a, b scored) bool
}{
	{"", func(a, b scored) bool { return a.class == b.class }},
	{"any type of that width", func(a, b scored) bool {
		return a.GPU == b.GPU && half(a.Layout.Dtype) == half(b.Layout.Dtype) && kindOf(a) == kindOf(b)
	}},
	{"its generation", func(a, b scored) bool {
		return chipOf(a.GPU) == chipOf(b.GPU) && half(a.Layout.Dtype) == half(b.Layout.Dtype) && kindOf(a) == kindOf(b)
	}},
	{"its generation, dense and with experts", func(a, b scored) bool {
		return chipOf(a.GPU) == chipOf(b.GPU) && half(a.Layout.Dtype) == half(b.Layout.Dtype)
	}},
	{"its generation, every type, dense and with experts", func(a, b scored) bool { return chipOf(a.GPU) == chipOf(b.GPU) }},
	{"every GPU", func(a, b scored) bool { return kindOf(a) == kindOf(b) }},
	{"every GPU, dense and with experts", func(a, b scored) bool { return true }},
}

func kindOf(r scored) bool { return r.Model.Experts > 0 }

// poolFactor is the factor for a point from the first pool of three models or more, and what the pool has. Kernels in a step are never
// faster than alone, so that it is at least 1.
func poolFactor(rows []scored, r scored, leave string) (f float64, points, models int, pool string) {
	for _, p := range pools {
		v, n, m := classMedian(rows, func(o scored) bool {
			return fitted(o) && o.Framework == r.Framework && o.Model.Name != leave && o.Layout.Flash == r.Layout.Flash && p.same(o, r)
		})
		if m >= 3 {
			return max(v, 1), n, m, p.name
		}
	}
	return 0, 0, 0, ""
}

// predict fills in what the class's factor gives, with all models and with the point's model left out.
func predict(rows []scored, h Habits) {
	cache := map[string]float64{}
	factor := func(r scored, leave string) float64 {
		key := r.class + "/" + leave
		if _, ok := cache[key]; !ok {
			cache[key], _, _, _ = poolFactor(rows, r, leave)
		}
		return cache[key]
	}
	at := func(r scored, f float64) float64 {
		if f == 0 {
			return math.NaN()
		}
		q := r.q
		q.Factor = f
		c, err := price(q, h, math.Inf(1))
		if err != nil {
			return math.NaN()
		}
		return c.Step
	}
	for i := range rows {
		rows[i].pred = at(rows[i], factor(rows[i], ""))
		rows[i].loo = at(rows[i], factor(rows[i], rows[i].Model.Name))
	}
}

// groupOf names the group of a point in the tables.
func groupOf(p Point) string {
	_, g, _ := strings.Cut(p.ID, "-")
	switch {
	case g == "nano":
		return "nanotron"
	case p.Model.Experts > 0:
		return "MoE, Megatron"
	case p.Framework == FSDP:
		return "FSDP"
	case g == "korthikanti":
		return "dense, Megatron on A100 (Korthikanti)"
	case g == "bloom":
		return "dense, Megatron-DeepSpeed (BLOOM)"
	case p.Layout.Phase != "pretrain":
		return "dense, Megatron, fine-tuning"
	}
	return "dense, Megatron"
}

func quantiles(v []float64) (median, p90 float64) {
	if len(v) == 0 {
		return math.NaN(), math.NaN()
	}
	slices.Sort(v)
	return v[len(v)/2], v[min(len(v)*9/10, len(v)-1)]
}

func summary(rows []scored) (text string, loss float64) {
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
	for _, g := range groups {
		a, b := quantiles(in[g])
		c, d := quantiles(out[g])
		text += fmt.Sprintf("%-36s %3d rows: in sample %.1f / %.1f, model left out %.1f / %.1f\n", g, len(in[g]), 100*a, 100*b, 100*c, 100*d)
		w := 1.0
		if g == "nanotron" {
			w = .1
		}
		loss += w * (c + d/2)
	}
	return text, loss
}

// TestUpdate fits the factors to all points and writes factors.csv, the errors in points.csv, and the page.
func TestUpdate(t *testing.T) {
	if !*update {
		t.Skip("make plan-accuracy fits the factors again")
	}
	rows := scoreAll(t, habits, func(p Point) bool { return true })
	predict(rows, habits)
	text, loss := summary(rows)
	t.Logf("loss %.4f\n%s", loss, text)
	by := map[string]bool{}
	var classes []string
	for _, r := range rows {
		if !by[r.class] && fitted(r) {
			by[r.class] = true
			classes = append(classes, r.class)
		}
	}
	slices.Sort(classes)
	out := "framework,gpu,dtype,kind,factor,points,models,attention,pool\n"
	for _, c := range classes {
		at := slices.IndexFunc(rows, func(r scored) bool { return r.class == c && fitted(r) })
		f, n, m, pool := poolFactor(rows, rows[at], "")
		if n == 0 {
			continue
		}
		attention := "flash"
		if !rows[at].Layout.Flash {
			attention = "scores written"
		}
		out += fmt.Sprintf("%s,%.4f,%d,%d,%s,%s\n", c, f, n, m, attention, strings.ReplaceAll(pool, ",", ";"))
	}
	write(t, "factors.csv", out)
	// The error of every point, its model left out.
	errs := map[string]string{}
	for _, r := range rows {
		if !math.IsNaN(r.loo) {
			errs[r.ID] = fmt.Sprintf("%.3f", r.loo/r.Step-1)
		}
	}
	lines := strings.Split(strings.TrimSpace(pointsText), "\n")
	head := strings.Split(lines[0], ",")
	if head[len(head)-1] != "error" {
		head = append(head, "error")
	}
	table := strings.Join(head, ",") + "\n"
	for _, line := range lines[1:] {
		cells := strings.Split(line, ",")
		cells = append(cells[:len(head)-1:len(head)-1], errs[cells[0]])
		table += strings.Join(cells, ",") + "\n"
	}
	write(t, "points.csv", table)
	write(t, "memory_errors.csv", memoryErrorTable(t))
	write(t, "../../docs/reference/plan-accuracy.md", accuracyPage(t, rows))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestExplore(t *testing.T) {
	if !*descend {
		t.Skip("-descend fits the habits")
	}
	h := habits
	run := func(h Habits) (string, float64, []scored) {
		rows := scoreAll(t, h, func(p Point) bool { return true })
		predict(rows, h)
		s, l := summary(rows)
		return s, l, rows
	}
	var rows []scored
	s, best, _ := run(h)
	t.Logf("loss %.4f\n%s", best, s)
	{
		knobs := []struct {
			name string
			at   *float64
		}{{"TPShown", &h.TPShown}, {"TPAsync", &h.TPAsync}, {"EPShown", &h.EPShown}, {"AttnBack", &h.AttnBack}, {"AttnA100", &h.AttnA100},
			{"AttnH100", &h.AttnH100}, {"Vector", &h.Vector}, {"Launch", &h.Launch}, {"MoEHost", &h.MoEHost}, {"Shadow", &h.Shadow},
			{"Bare", &h.Bare}, {"Permute", &h.Permute}, {"Stage", &h.Stage}}
		for round := range 2 {
			for _, k := range knobs {
				old := *k.at
				for _, f := range []float64{.7, 1.4} {
					if round > 0 {
						f = math.Sqrt(f)
					}
					for {
						*k.at = old * f
						_, l, _ := run(h)
						if l >= best-1e-5 {
							*k.at = old
							break
						}
						best, old = l, *k.at
						t.Logf("%s %.4g: loss %.4f", k.name, old, l)
					}
				}
			}
		}
		s, best, rows = run(h)
		t.Logf("loss %.4f %+v\n%s", best, h, s)
	}
	slices.SortFunc(rows, func(a, b scored) int { return strings.Compare(a.class+a.Model.Name+a.ID, b.class+b.Model.Name+b.ID) })
	for _, r := range rows {
		t.Logf("%s %s %s %s kappa %.3f in %+.1f out %+.1f", r.class, r.ID, r.Layout, r.Release, r.kappa, 100*(r.pred/r.Step-1),
			100*(r.loo/r.Step-1))
	}
}

var descend = flag.Bool("descend", false, "also fit the habits, by coordinate descent")
