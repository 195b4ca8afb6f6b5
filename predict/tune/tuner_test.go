package tune

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/tune/table"
)

// The table that NCCL's tuner reads says for every size what the model chooses, with no gap and no overlap.
func TestTunerTableIsTheChoice(t *testing.T) {
	s := newMachines(t)
	for _, x := range []struct {
		name        string
		gpus, nodes int
	}{{"dgx-h100", 8, 1}, {"dgx-h100", 8, 4}, {"dgx-a100", 8, 2}, {"dgx-1v", 8, 1}} {
		name, m := x.name, s.model(x.name, x.gpus, x.nodes, NCCLOptions{})
		rows, err := m.TunerTable(nil)
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(1, 2))
		for number, op := range tunerOps {
			for range 300 {
				b := int64(1) << random.IntN(36)
				b += random.Int64N(b)
				var fit []table.Row
				for _, r := range rows {
					if r.Func == number && r.Min <= b && b <= r.Max {
						fit = append(fit, r)
					}
				}
				c := m.Choose(op, unit.Bytes(b))
				if len(fit) != 1 || table.Algos[fit[0].Algo] != inTables[c.Algo] || table.Protos[fit[0].Proto] != strings.ToLower(c.Proto) {
					t.Fatalf("%s: %s of %d bytes: %v, want %s %s", name, op, b, fit, c.Algo, c.Proto)
				}
			}
		}
	}
}
