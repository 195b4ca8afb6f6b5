package plan

import (
	"encoding/csv"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
)

// What Megatron-LM's own functional tests on eight GPUs print: bytes allocated after a
// step, which is the state, and the most that was, in testdata/memory.csv with the
// arguments they ran with. They are read as a user's script would be.
func TestMemoryOfMegatron(t *testing.T) {
	f, err := os.Open("testdata/memory.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
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
	states, peaks := map[string][]float64{}, map[string][]float64{}
	refused := 0
	for _, row := range rows[1:] {
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
		last := cost.Stages[len(cost.Stages)-1] // Megatron logs on its last rank
		states[row[0]] = append(states[row[0]], math.Abs(last.State/state-1))
		peaks[row[0]] = append(peaks[row[0]], math.Abs(last.Peak/peak-1))
	}
	if refused > len(rows)/10 {
		t.Errorf("%d of %d are refused", refused, len(rows)-1)
	}
	most := map[string][4]float64{"gpt": {.03, .08, .10, .14}, "moe": {.03, .05, .25, .09}} // medians of state and peak, p90
	for kind, want := range most {
		for i, list := range [][]float64{states[kind], peaks[kind]} {
			slices.Sort(list)
			what := []string{"state", "peak"}[i]
			t.Logf("%s, %s: %d runs, median %.1f%%, p90 %.1f%%", kind, what, len(list), 100*list[len(list)/2], 100*list[len(list)*9/10])
			if m, q := list[len(list)/2], list[len(list)*9/10]; m > want[i] || q > want[i+2] {
				t.Errorf("%s, %s: the errors' median is %.1f%%, p90 %.1f%%; want at most %.0f and %.0f%%", kind, what, 100*m, 100*q, 100*want[i], 100*want[i+2])
			}
		}
	}
}
