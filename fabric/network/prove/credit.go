package prove

import (
	"fmt"
	"slices"
)

// turns are the waits of an InfiniBand fabric's buffers for one another. A packet that came over one cable and leaves over
// another holds a buffer of the first until the second has room. If such waits form a circle, all of it may stand still for good.
//
// Paths that go up and then down form none: whoever waits for a step up waits for one nearer to the roots, and whoever
// waits for a step down for one farther from them. But a switch forwards by target alone, so it may send up what came down
// to it, where its own path begins so; and roots that are joined are above each other. Where there are such turns, the
// circle is looked for.
type turns struct {
	r       *routes
	count   int
	suspect bool
	at      []turning
	order   []int32               // switches that packets pass
	next    map[channel][]channel // nil while turns are only counted
	known   map[[2]channel]bool
}

// channel is a cable in one direction.
type channel struct{ from, cable int32 }

// turning is what packets for one target do at a switch.
type turning struct {
	used           bool
	in             int
	fallen, level  bool // some of them came down, or from one root to another
	out            int
	climbs, levels bool // some of them go up, or from this root to another
}

// suspect says whether a circle may lead through the switch.
func (x *turning) suspect(free bool) bool {
	return free && x.in > 0 && x.out > 0 || x.fallen && x.climbs || x.level && x.levels
}

// add takes the turns of all packets from some switches to the target that the routes were last computed for.
func (t *turns) add(from []int32) {
	if t.at == nil {
		t.at = make([]turning, len(t.r.s.switches))
	}
	clear(t.at)
	t.order = t.order[:0]
	for _, u := range from {
		if t.r.dist[u] < far {
			t.visit(u)
		}
	}
	for _, u := range t.order {
		x := &t.at[u]
		t.count += x.in * x.out
		t.suspect = t.suspect || x.suspect(t.r.free)
		if t.next != nil {
			t.join(u)
		}
	}
}

// visit marks the switches that packets from u pass.
func (t *turns) visit(u int32) {
	x := &t.at[u]
	if x.used {
		return
	}
	x.used = true
	t.order = append(t.order, u)
	for _, l := range t.r.s.switches[u].next {
		if !t.r.onward(u, l) {
			continue
		}
		t.visit(l.to)
		y := &t.at[l.to]
		climbs := t.r.climbs(u, l.to)
		level := t.r.rank[u] == 0 && t.r.rank[l.to] == 0
		x.out, x.climbs, x.levels = x.out+1, x.climbs || climbs, x.levels || level
		y.in, y.fallen, y.level = y.in+1, y.fallen || !climbs, y.level || level
	}
}

// join notes which channels wait for which where packets leave u and are forwarded by the next switch.
func (t *turns) join(u int32) {
	for _, in := range t.r.s.switches[u].next {
		if !t.r.onward(u, in) {
			continue
		}
		for _, out := range t.r.s.switches[in.to].next {
			pair := [2]channel{{u, in.cable}, {in.to, out.cable}}
			if t.r.onward(in.to, out) && !t.known[pair] {
				t.known[pair] = true
				t.next[pair[0]] = append(t.next[pair[0]], pair[1])
			}
		}
	}
}

// circle finds channels that wait for one another; nil if there are none. It looks depth first, with a stack of its own.
func (t *turns) circle() []channel {
	const open, done = 1, 2
	state := map[channel]int{}
	var stack []channel
	at := map[channel]int{} // the next one to look at behind each
	for _, u := range t.order {
		for _, l := range t.r.s.switches[u].next {
			stack = append(stack[:0], channel{u, l.cable})
			for len(stack) > 0 {
				c := stack[len(stack)-1]
				if state[c] == 0 {
					state[c] = open
				}
				if state[c] == done || at[c] == len(t.next[c]) {
					state[c] = done
					stack = stack[:len(stack)-1]
					continue
				}
				n := t.next[c][at[c]]
				at[c]++
				if state[n] == open {
					return slices.Clone(stack[slices.Index(stack, n):])
				}
				stack = append(stack, n)
			}
		}
	}
	return nil
}

// credits looks for buffers that wait in a circle.
func (p *subnetProof) credits(t *turns) Verdict {
	v := Verdict{Property: noCircle, Of: "turns", Cases: t.count}
	if p.r.engine == "nue" {
		return p.lanes()
	}
	if !t.suspect {
		return v
	}
	t.next, t.known = map[channel][]channel{}, map[[2]channel]bool{}
	for _, d := range p.edges {
		p.r.to(d)
		t.add(p.edges)
	}
	for u := range p.s.switches {
		if !slices.Contains(t.order, int32(u)) {
			t.order = append(t.order, int32(u))
		}
	}
	p.refuteCircle(&v, t.circle())
	return v
}

// refuteCircle names the switches of a circle, if there is one.
func (p *subnetProof) refuteCircle(v *Verdict, circle []channel) {
	if circle == nil {
		return
	}
	var names []string
	for _, c := range append(circle, circle[0]) {
		names = append(names, p.s.switches[c.from].name)
	}
	v.refute(1, Counterexample{Path: names,
		Why: "each waits for room in the next one's buffers, so packets on all of these cables stop for good; " +
			"OpenSM's nue avoids it on any fabric (routing_engine nue,no_fallback)"})
}

// noCircle is what buffers must not do.
const noCircle = "buffers do not wait in a circle"

// lanes is what nue promises: it lays its paths so that no circle forms on a virtual lane. Over several of them that holds only
// for packets with the service levels that the subnet manager gives out on request, for which NCCL does not ask.
func (p *subnetProof) lanes() Verdict {
	v := Verdict{Property: noCircle, Of: "virtual lane", Cases: max(1, p.s.lanes),
		Note: "nue's promise; with var/log/opensm-lfts.dump beside etc/opensm its tables are judged"}
	if p.s.lanes != 1 {
		v.refute(1, Counterexample{Why: fmt.Sprintf("nue_max_num_vls is %d: paths are apart only if senders ask for their service level; "+
			"1 needs none", p.s.lanes)})
	}
	return v
}
