package plan

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
)

// memoryRun is a peak that somebody measured, and the peak that is predicted for the run.
type memoryRun struct {
	id, class, model    string
	measured, predicted float64
	state, stateSaid    float64 // bytes between steps, where they were measured
}

// rowsIn reads a file of comma-separated values.
func rowsIn(t testing.TB, name string) [][]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// megatronRuns are Megatron-LM's own functional tests on eight GPUs (testdata/memory.csv), read as a user's script would be. It
// gives the number of runs that are refused, too.
func megatronRuns(t testing.TB) (runs []memoryRun, refused int) {
	t.Helper()
	rows := rowsIn(t, "testdata/memory.csv")
	machines := map[string]*Machine{}
	for name, kind := range map[string]string{"a100": "dgx-a100", "h100": "dgx-h100"} {
		c, err := cluster.Parse("tests", []byte("name: tests\nhosts: {n0: "+kind+"}\n"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if machines[name], err = NewMachine(c, 8); err != nil {
			t.Fatal(err)
		}
	}
	for i, row := range rows[1:] {
		c, err := ReadConfig("run.sh", []byte("torchrun --nproc_per_node 8 pretrain_gpt.py "+row[2]))
		if err != nil {
			t.Errorf("%s: %v", row[2], err)
			continue
		}
		given := Given{}
		if c.Dtype == "" {
			given.Dtype = "bf16"
		}
		l, err := c.Layout(c.Model, 8, given)
		if err != nil { // pipelines that Megatron cuts unevenly, batches that are not stated
			refused++
			continue
		}
		cost, err := Price(Question{Model: c.Model, Machine: machines[row[1]], Framework: Megatron, Layout: l})
		if err != nil {
			refused++
			continue
		}
		state, err1 := strconv.ParseFloat(row[3], 64)
		peak, err2 := strconv.ParseFloat(row[4], 64)
		if err1 != nil || err2 != nil {
			t.Fatal(row)
		}
		last := cost.Stages[len(cost.Stages)-1] // Megatron logs on its last rank what is allocated, without the allocator's slack
		m := c.Model
		runs = append(runs, memoryRun{id: fmt.Sprintf("%d %s", i+2, l), class: "Megatron, " + row[0],
			model: fmt.Sprintf("megatron-%d-%d-%d-%d-%d-%d-%d-%v-%d", m.Layers, m.Hidden, m.FFN, m.Heads, m.KVHeads, m.Experts, m.ExpertFFN,
				m.MLA != nil, m.MTP),
			measured: peak, predicted: last.used, state: state, stateSaid: last.State})
	}
	return runs, refused
}

// stepRuns are the measured steps whose peak was reported.
func stepRuns(t testing.TB) (runs []memoryRun) {
	for _, p := range Points() {
		if p.Memory == 0 {
			continue
		}
		_, group, _ := strings.Cut(p.ID, "-")
		c, err := price(Question{Model: p.Model, Machine: clusterOf(t, p.GPU, p.GPUs, p.NIC), Framework: p.Framework, Layout: p.Layout}, habits,
			math.Inf(1))
		if err != nil {
			t.Logf("%s: %v", p.ID, err)
			continue
		}
		unit := 1.0
		switch group {
		case "tt": // printed in GiB
			unit = 1.0737
		case "bloom": // of the whole process, as nvidia-smi shows it
			unit = 1
			c.Peak += newPricer(p.Model, clusterOf(t, p.GPU, p.GPUs, p.NIC), p.Framework, p.Layout, habits).outside()
		}
		runs = append(runs, memoryRun{id: p.ID + " " + p.Layout.String(), class: group, model: p.Model.Name, measured: p.Memory * unit,
			predicted: c.Peak})
	}
	return runs
}

// explained says why the worst predictions are off.
var explained = map[string]string{
	"o109-mb":   "hiding experts' traffic made steps slower on x86 hosts until 26.02: without it the step took 12.5 s in 25.09 (o126)",
	"o090-mb":   "as o109: 26.02.01 took the flag out of the recipe, and a step 28.9 s (o074)",
	"o125-mb":   "as o109, on H100 with DeepEP: later recipes for H100 have no such overlap, either",
	"o219-mpt":  "70B on 64 A100 of 40 GB leaves the allocator nothing: 128 of them are predicted within 1% (o218)",
	"o456-dgxc": "the same layout took 6.5 s on 8 GPUs and 6.7 s on 16, and only adapters' gradients cross to the others",
	"o495-tt":   "from cp=2 to cp=4 its step got 2.4 times as long with twice the attention (o493, o494), and doubled once more",
	"o363-dgxc": "PaxML's recipe computes attention and MLP again (SAVE_QKV_OUT_PROJ), which is not priced: with it -9%",
}

// worstOf is the four points that are furthest off, at most one of each model and GPU.
func worstOf(points []Point) (out []Point) {
	by := slices.Clone(points)
	slices.SortStableFunc(by, func(a, b Point) int { return cmp.Compare(math.Abs(math.Log1p(b.Error)), math.Abs(math.Log1p(a.Error))) })
	for _, p := range by {
		same := func(q Point) bool { return q.Model.Name == p.Model.Name && q.GPU == p.GPU }
		if len(out) < 4 && !slices.ContainsFunc(out, same) {
			out = append(out, p)
		}
	}
	return out
}

// TestScore prints where the model stands, in one place: make plan-score.
func TestScore(t *testing.T) {
	say := func(what string, list []float64, want string) {
		var size []float64
		for _, e := range list {
			size = append(size, math.Abs(e))
		}
		m, q := quantiles(size)
		t.Logf("%-34s %4d: median %5.1f%%, p90 %5.1f%%, bias %+5.1f%%   %s", what, len(list), 100*m, 100*q, 100*median(list), want)
	}
	by := map[string][]float64{}
	var steps []Point
	for _, p := range Points() {
		if p.Step == 0 || math.IsNaN(p.Error) || strings.HasSuffix(p.ID, "-nano") {
			continue
		}
		class := errorClass(p.Framework, p.Model)
		steps = append(steps, p)
		by[class] = append(by[class], p.Error)
		if strings.HasPrefix(p.GPU, "GB") {
			by["GB, "+class] = append(by["GB, "+class], p.Error)
		}
	}
	for _, x := range [][2]string{{"dense", "4 / 10, ±3"}, {"FSDP", "5 / 13, ±3"}, {"MoE", "8 / 20, ±3"}, {"GB, dense", "4 / 10, ±3"},
		{"GB, MoE", "8 / 20, ±3"}} {
		say("step, left out: "+x[0], by[x[0]], x[1])
	}
	for _, p := range worstOf(steps) {
		t.Logf("worst: %s %s on %d %s, %s: %.3g s measured, predicted %+.0f%%; %s",
			p.ID, p.Model.Name, p.GPUs, p.GPU, p.Layout, p.Step, 100*p.Error, explained[p.ID])
		if explained[p.ID] == "" {
			t.Errorf("%s is one of the four worst predictions, and nothing says why", p.ID)
		}
	}
	out := map[string][]float64{}
	for _, p := range outsidePoints(t) {
		class := p.cost.class
		out[class] = append(out[class], p.off)
	}
	for _, class := range []string{"dense", "FSDP", "MoE", sinkClass} {
		say("step, in no fit: "+class, out[class], "")
	}
	peaks := map[string][]float64{}
	runs, _ := megatronRuns(t)
	for _, r := range append(runs, stepRuns(t)...) {
		peaks[r.class] = append(peaks[r.class], r.predicted/r.measured-1)
		if r.class != "nano" { // priced as Megatron, and is not
			peaks["all that is modelled"] = append(peaks["all that is modelled"], r.predicted/r.measured-1)
		}
		if testing.Verbose() && os.Getenv("WEFT_ROWS") != "" {
			t.Logf("  %s %+.1f%% of %.2f GB: %s %s", r.class, 100*(r.predicted/r.measured-1), r.measured/1e9, r.model, r.id)
		}
	}
	for _, class := range []string{"all that is modelled", "Megatron, gpt", "Megatron, moe", "tt", "bloom", "nano"} {
		say("memory peak: "+class, peaks[class], "4 / 10")
	}
}

// memoryErrorTable is the errors of measured peaks that intervals are calibrated on. nanotron's are left out: it is priced as
// Megatron, and is not.
func memoryErrorTable(t testing.TB) string {
	table := "framework,model,error\n"
	runs, _ := megatronRuns(t)
	for _, r := range append(runs, stepRuns(t)...) {
		f := Megatron
		switch r.class {
		case "nano":
			continue
		case "tt":
			f = FSDP
		case "bloom":
			f = DeepSpeed
		}
		table += fmt.Sprintf("%s,%s,%.3f\n", f, r.model, r.predicted/r.measured-1)
	}
	return table
}

// The errors that intervals are calibrated on are those of the model as it is.
func TestMemoryErrorsAreOfToday(t *testing.T) {
	if table := memoryErrorTable(t); table != memoryErrorsText {
		if *update {
			write(t, "memory_errors.csv", table)
			return
		}
		t.Error("memory_errors.csv is out of step with the model; make plan-accuracy writes it")
	}
}

// Intervals of peaks contain between 85 and 95% of the peaks of left-out models, every model counting the same; and of peaks that no
// fit has seen at least as many.
func TestMemoryIntervalsCoverLeftOutModels(t *testing.T) {
	inside, total := map[string]float64{}, map[string]float64{}
	for _, e := range memoryErrors() {
		spread, _, _ := memorySpread(e.model)
		total[e.model]++
		if math.Abs(math.Log1p(e.error)) <= spread {
			inside[e.model]++
		}
	}
	covered := 0.0
	for name, n := range total {
		covered += inside[name] / n / float64(len(total))
	}
	spread, models, runs := memorySpread("")
	t.Logf("x%.3f from %d peaks of %d models: covered %.1f%%", math.Exp(spread), runs, models, 100*covered)
	if covered < .85 || covered > .95 {
		t.Errorf("90%% intervals contain %.1f%% of the peaks of %d left-out models", 100*covered, len(total))
	}
	seen, in := 0, 0
	for _, r := range bloomRuns(t) {
		if r.measured > 0 {
			seen++
			in += b2i(math.Abs(math.Log(r.whole/r.measured)) <= spread)
		}
	}
	t.Logf("%d of %d peaks that no fit has seen", in, seen)
	if float64(in) < .85*float64(seen) {
		t.Errorf("90%% intervals contain %d of %d peaks that no fit has seen", in, seen)
	}
}
