package sim

import (
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Under flowlet routing a switch sends a flow on by the path that its last packets took, and hashes it anew after a gap that is
// longer than paths differ. Collectives seldom leave such gaps, so that most flows stay where they are, as with ECMP.

// flowletGap is the idle time after which a flow is hashed anew.
const flowletGap = 50 * unit.Microsecond

// hashes is how many paths a flow takes in turn.
const hashes = 8

// flowlets are the paths of a connection.
type flowlets struct {
	paths []flowlet
	at    int       // the path that was taken last
	ended unit.Time // when its last byte left
}

type flowlet struct {
	flow  int32 // in sharing
	uses  []use
	bytes int64
}

// hashAnew finds the other paths of a connection between two nodes, the first of which it has.
func (w *world) hashAnew(id int32, from, to topo.NodeID, channel int32) error {
	c := &w.conns[id]
	x := &flowlets{paths: []flowlet{{flow: c.flow, uses: append(slices.Clone(c.path), c.mid...)}}}
	seed := w.net.o.Seed
	defer func() { w.net.o.Seed = seed }()
	var p path
	for k := uint64(1); k < hashes; k++ {
		w.net.o.Seed = mix(seed, k)
		if err := w.net.route(from, to, channel, &p); err != nil {
			return err
		}
		uses := append(slices.Clone(p.uses), p.mid...)
		flow := w.share.flow(w.loads(uses))
		w.threadOf = append(w.threadOf, c.from)
		x.paths = append(x.paths, flowlet{flow: flow, uses: uses})
	}
	if w.flowlets == nil {
		w.flowlets = map[int32]*flowlets{}
	}
	w.flowlets[id] = x
	return nil
}

// next chooses the path of a message that begins now.
func (x *flowlets) next(now unit.Time) int32 {
	if now-x.ended > flowletGap && x.ended > 0 {
		x.at = (x.at + 1) % len(x.paths)
	}
	return x.paths[x.at].flow
}

// left notes a message whose last byte has left.
func (x *flowlets) left(now unit.Time, bytes int64) {
	x.paths[x.at].bytes += bytes
	x.ended = now
}

// pass adds the bytes of all messages to the wires they took.
func (x *flowlets) pass(sum []float64) {
	for _, p := range x.paths {
		for _, u := range p.uses {
			sum[u.wire] += float64(p.bytes) * float64(u.share)
		}
	}
}
