package tune

import (
	"fmt"
	"math"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// band is a range of sizes in which errors are summed up.
type band int

const (
	small  band = iota // below 1 MiB: latency
	middle             // below 64 MiB: protocols change
	large
	bands
)

func (b band) String() string {
	return [bands]string{"below 1 MiB", "1 MiB to 64 MiB", "64 MiB and up"}[b]
}

func bandOf(bytes float64) band {
	switch {
	case bytes < 1<<20:
		return small
	case bytes < 64<<20:
		return middle
	default:
		return large
	}
}

// region is a summary of measured points: where they lie and what error they showed.
type region struct {
	machine  string
	class    class
	nodes    int
	net      netKind
	op       sched.Collective
	gpus     []int
	from, to float64 // bytes, a point for every power of two between
	err      [bands]float64
}

// distance counts doublings: of the size beyond what was measured, of the GPUs,
// of the nodes. Another generation counts as four, another operation as two,
// another network as one.
func (r *region) distance(f *facts, op sched.Collective, bytes float64) (d float64, gpus int) {
	size := max(bytes, 1)
	d = max(0, math.Log2(r.from/size), math.Log2(size/r.to))
	best := math.Inf(1)
	for _, n := range r.gpus {
		if v := math.Abs(math.Log2(float64(n) / float64(f.ranks))); v < best {
			best, gpus = v, n
		}
	}
	d += best
	if r.class != f.class() {
		d += 4
	}
	if r.op != op {
		d += 2
	}
	if f.nodes > 1 || r.nodes > 1 {
		d += 2 * math.Abs(math.Log2(float64(r.nodes)/float64(f.nodes)))
		if f.nodes > 1 && r.nodes > 1 && r.net != f.net() {
			d++
		}
	}
	return d, gpus
}

// nearest describes the nearest measured point and the error to expect: that of
// the region where the point is of the same generation and GPU count, else what
// showed when such a GPU count, or such a generation, was left out of the fit.
// How many doublings of GPUs or nodes lie between is given, too.
func (m *NCCL) nearest(op sched.Collective, bytes unit.Bytes) (what string, err, doublings float64) {
	f := m.f
	var best *region
	bestD, bestGPUs := math.Inf(1), 0
	for i := range regions {
		if d, gpus := regions[i].distance(f, op, float64(bytes)); d < bestD {
			best, bestD, bestGPUs = &regions[i], d, gpus
		}
	}
	if best == nil {
		return "none", math.NaN(), 0
	}
	b := bandOf(float64(bytes))
	size := point(best, float64(bytes))
	var far []string
	err = best.err[b]
	if best.class != f.class() {
		far = append(far, fmt.Sprintf("another kind of machine (%s, not %s)", best.class, f.class()))
	} else {
		far = append(far, "the same generation and kind of link")
	}
	if best.op != op {
		far = append(far, "another operation")
	}
	if best.nodes != f.nodes {
		far = append(far, fmt.Sprintf("%s the nodes", factor(float64(f.nodes)/float64(best.nodes))))
	} else if f.nodes > 1 && best.net != f.net() {
		far = append(far, fmt.Sprintf("another network (%s, not %s)", netNames[best.net], netNames[f.net()]))
	}
	if bestGPUs == f.ranks {
		far = append(far, "the same number of GPUs")
	} else {
		far = append(far, fmt.Sprintf("%s the GPUs", factor(float64(f.ranks)/float64(bestGPUs))))
	}
	ratio := 1.0
	if bytes > 0 {
		ratio = float64(bytes) / size
	}
	if math.Abs(ratio-1) < 1e-9 {
		far = append(far, "the same size")
	} else {
		far = append(far, fmt.Sprintf("%s the size", factor(ratio)))
	}
	switch {
	case f.nodes > 1 && (best.nodes != f.nodes || best.net != f.net() || best.class != f.class()):
		err = max(err, heldNet)
	case best.class != f.class():
		err = max(err, heldMachine[f.class()][b])
	case f.path == pathNVB:
		far = append(far, "no measured ring passes through a GPU that only relays")
		err = max(err, worst(&heldMachine, b))
	case bestGPUs != f.ranks:
		err = max(err, heldGPUs[f.class()][b])
	}
	doublings = max(math.Abs(math.Log2(float64(bestGPUs)/float64(f.ranks))), math.Abs(math.Log2(float64(best.nodes)/float64(f.nodes))))
	if err < 0 { // nobody measured sizes like this one there
		err = heldMachine[f.class()][b]
	}
	err *= farther(doublings)
	return fmt.Sprintf("%s, %s, %d GPUs, %s: %s", best.machine, best.op, bestGPUs, unit.Bytes(size), strings.Join(far, ", ")), err, doublings
}

// worst is what the generation erred by that was the hardest to predict without its points: for what no machine with points has.
func worst(held *[classes][bands]float64, b band) (most float64) {
	for c := range held {
		most = max(most, held[c][b])
	}
	return most
}

// farther widens an error: each doubling past the first adds a quarter, a judgement, as no points tell.
func farther(doublings float64) float64 { return 1 + max(0, doublings-1)/4 }

// within is the error that nine of ten predictions for an unmeasured GPU count stayed below, or for an unmeasured generation, or
// on a cluster that was left out.
func (m *NCCL) within(bytes unit.Bytes) float64 {
	f, b := m.f, bandOf(float64(bytes))
	switch {
	case f.nodes > 1:
		return heldNet
	case f.path == pathNVB:
		return worst(&withinMachine, b)
	}
	for i := range regions {
		if regions[i].class == f.class() && regions[i].nodes == 1 {
			return withinGPUs[f.class()][b]
		}
	}
	return withinMachine[f.class()][b]
}

// point gives the measured size nearest to one asked for.
func point(r *region, bytes float64) float64 {
	if bytes <= r.from {
		return r.from
	}
	if bytes >= r.to {
		return r.to
	}
	return r.from * math.Exp2(math.Round(math.Log2(bytes/r.from)))
}

func factor(v float64) string {
	if v >= 1 {
		return fmt.Sprintf("%.3g times", v)
	}
	return fmt.Sprintf("1/%.3g of", 1/v)
}
