package tune

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// Answer is a time by a calibration, and what is to be known of it.
type Answer struct {
	Algo  string
	Time  unit.Time
	Floor bool     // the wires of the cluster need this long; the fit alone says less
	Notes []string // where the question lies outside of what was measured
}

// sends reports whether a collective is made of plain sends between many pairs.
// Points of the others say nothing of these: a ring crosses each link once, while
// here every GPU sends to every other.
func sends(op sched.Collective) bool { return !tuned(op) && op != sched.Barrier }

// Answers reports whether the points behind a fit say anything of a collective.
func (f *LinkFit) Answers(op sched.Collective) error {
	ops := f.Ops
	if len(ops) == 0 { // a file that does not say
		ops = []sched.Collective{sched.AllReduce}
	}
	if slices.ContainsFunc(ops, func(o sched.Collective) bool { return sends(o) == sends(op) }) {
		return nil
	}
	like := map[bool]string{true: "in it every GPU sends to many others at once", false: "it passes along rings and trees"}[sends(op)]
	return fmt.Errorf("the calibration has points of %s %s only, which say nothing of %s: %s; measure %s as well and calibrate with both logs",
		opList(ops), f.Kind, op, like, op)
}

func opList(ops []sched.Collective) string {
	var names []string
	for _, op := range ops {
		names = append(names, op.String())
	}
	return strings.Join(names, ", ")
}

// Answer gives a collective's time by the fit for one of cost's closed forms, or
// for "" or "auto" what NCCL most likely runs. It is never below the time that
// the wires of the cluster need; m, the cluster's GPUs, may be nil where NCCL's
// model does not know them.
func (f *LinkFit) Answer(m *NCCL, op sched.Collective, algo string, gpus, nodes int, bytes unit.Bytes) (*Answer, error) {
	if err := f.Answers(op); err != nil {
		return nil, err
	}
	a := &Answer{Algo: "ring"}
	work := costOf(Point{Op: op, GPUs: gpus, Nodes: nodes, Bytes: bytes})
	if sends(op) {
		a.Algo = "direct"
	}
	if algo != "" && algo != "auto" && algo != a.Algo {
		algos, err := cost.Algos(op, gpus)
		if err != nil {
			return nil, err
		}
		if m != nil {
			algos = m.leave(op, algos)
		}
		at := slices.IndexFunc(algos, func(x cost.Algo) bool { return x.Name == algo })
		if at < 0 {
			var names []string
			for _, x := range algos {
				names = append(names, x.Name)
			}
			return nil, fmt.Errorf("a calibration answers for %s, not for %s", strings.Join(names, ", "), algo)
		}
		a.Notes = append(a.Notes, fmt.Sprintf("the points are of NCCL's own algorithms; %s is taken to cost what its steps and bytes do", algo))
		a.Algo, work = algo, algos[at].Cost(bytes)
	}
	a.Time = f.Model().Time(work)
	if len(f.Ops) > 0 && !slices.Contains(f.Ops, op) {
		a.Notes = append(a.Notes, fmt.Sprintf("no point is of %s; points of %s stand for it", op, opList(f.Ops)))
	}
	if f.MaxGPUs > 0 && (gpus < f.MinGPUs || gpus > f.MaxGPUs) {
		a.Notes = append(a.Notes, fmt.Sprintf("%d GPUs lie outside of the %d to %d measured", gpus, f.MinGPUs, f.MaxGPUs))
	}
	if f.To > 0 && (bytes < f.From || bytes > f.To) {
		a.Notes = append(a.Notes, fmt.Sprintf("%s lie outside of the %s to %s measured", bytes, f.From, f.To))
	}
	if m != nil {
		if floor := m.WireTime(op, bytes); floor > a.Time {
			a.Time, a.Floor = floor, true
			a.Notes = append(a.Notes, "the fit says less than the wires of this cluster need; were its points measured here?")
		}
	}
	return a, nil
}

// WireTime is the least time that the wires allow whatever runs over them: what a
// GPU has to send over its links where there is one node, what a node has to send
// over its NICs, and for an all-to-all what has to pass the fabric's cuts, all at
// wire rate.
func (m *NCCL) WireTime(op sched.Collective, bytes unit.Bytes) unit.Time {
	f, s := m.f, max(float64(bytes), 0)
	if f.nodes == 1 {
		if f.full == 0 {
			return 0
		}
		if op == sched.AllReduce && f.multi { // switches that add save half
			return cost.Span(s / f.full / 1e3)
		}
		return cost.Span(leastSent(op, float64(f.ranks), s) / f.full / 1e3)
	}
	sent := leastSent(op, float64(f.nodes), s)
	if op == sched.AllToAll {
		sent = f.crossing(op, p2p, s)
	}
	us := sent / f.nicWire() / 1e3
	if op == sched.AllToAll {
		us = max(us, f.fabric(op, p2p, s))
	}
	return cost.Span(us)
}

// leastSent is how many bytes the busiest of n parties has to send at least,
// where nobody on the way adds.
func leastSent(op sched.Collective, n, bytes float64) float64 {
	switch op {
	case sched.AllReduce:
		return 2 * bytes * (n - 1) / n
	case sched.ReduceScatter, sched.AllGather, sched.AllToAll, sched.Gather, sched.Scatter:
		return bytes * (n - 1) / n
	case sched.Barrier:
		return 0
	}
	return bytes
}
