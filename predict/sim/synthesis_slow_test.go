package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// oddLinks draws an odd number of ranks in a ring or a tree, or at one or two switches.
func oddLinks(rng *rand.Rand, ranks int) string {
	var b strings.Builder
	rate := func() int { return 10 + 10*rng.IntN(2) }
	switch rng.IntN(3) {
	case 0:
		for v := range ranks {
			fmt.Fprintf(&b, "r%d - r%d %d\n", v, (v+1)%ranks, rate())
		}
	case 1:
		for v := 1; v < ranks; v++ {
			fmt.Fprintf(&b, "r%d - r%d %d\n", rng.IntN(v), v, rate())
		}
	default:
		switches := 1 + rng.IntN(2)
		for v := range ranks {
			fmt.Fprintf(&b, "r%d - s%d %d\n", v, v%switches, rate())
		}
		if switches == 2 {
			fmt.Fprintf(&b, "s0 - s1 %d\n", 2*rate())
		}
	}
	return b.String()
}

// Odd numbers of ranks with one slow link, all operations that have trees: trees add up to the bound of the
// network as it is, the program is proven, and 1 GiB simulated is within 2% of the bound.
func TestSlowPartsReachTheBound(t *testing.T) {
	seed := uint64(3)
	if s := os.Getenv("WEFT_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, ranks := range []int{3, 5, 5, 7} {
		text := oddLinks(rng, ranks)
		net, err := synth.Read("odd", text)
		if err != nil {
			t.Fatal(err)
		}
		g, gpus, ok := net.Graph()
		if !ok {
			t.Fatalf("no graph:\n%s", text)
		}
		slow := Slow{Name: g.LinkName(topo.LinkID(rng.IntN(len(g.Links)))), Factor: 0.5}
		o := Options{Slow: []Slow{slow}}
		for _, op := range []sched.Collective{sched.AllGather, sched.ReduceScatter, sched.AllReduce, sched.Broadcast, sched.Reduce} {
			root := rng.IntN(ranks)
			if !op.Rooted() {
				root = 0
			}
			s, err := Synthesise(g, gpus, op, unit.GiB, o, SynthWish{Root: root, Pieces: 300, Split: true})
			if err != nil {
				t.Fatalf("seed %d, %s, %s slow: %v\n%s", seed, op, slow.Name, err, text)
			}
			if s.Plan.Share() != 1 {
				t.Errorf("seed %d, %s, %s slow: trees reach %g of the bound\n%s", seed, op, slow.Name, s.Plan.Share(), text)
			}
			whole, err := net.Bounds(op, root, false)
			if err != nil || s.Plan.Bound.Rate > whole.Rate*1.000001 {
				t.Errorf("seed %d, %s: %v, %s with a slow link, %s without", seed, op, err, s.Plan.Bound.Rate, whole.Rate)
			}
			if share := float64(s.Result.AlgBW / s.Plan.Bound.Rate); share < 0.98 || share > 1.000001 {
				t.Errorf("seed %d, %s, %s slow: %s reaches %.4f of the bound\n%s", seed, op, slow.Name, s.Form, share, text)
			}
			few, err := s.Plan.Program("synth", 2, 0)
			if err == nil {
				_, err = verify.Program(few)
			}
			if err != nil {
				t.Errorf("seed %d, %s: %v", seed, op, err)
			}
		}
	}
}
