package prove

import (
	"fmt"
	"math/rand/v2"
)

// failures decides a class for every single failure and the chosen pairs. NICs are no way for
// other hosts' packets, as hosts pass nothing on, so their failures concern themselves alone.
func (p *prover) failures(c *class) {
	if p.o.Failures {
		for _, u := range p.known {
			if p.state[u].hops != 1 || p.base.dist[u] == 0 {
				continue // any one of its cables may go
			}
			p.w.hops(&p.base, u, nil, func(e edge) {
				p.begin()
				p.lose(u)
				p.settle(c, &p.single, func() *failed { return &failed{cables: []int32{e.cable}} })
			})
		}
		for _, r := range p.known {
			p.fail(c, &p.single, r)
		}
	}
	for k, group := range p.groups {
		before := p.double.Broken
		if p.fail(c, &p.double, group...); p.double.Broken > before {
			p.cutPairs[k] = true
		}
	}
}

// fail decides a class while routers are down.
func (p *prover) fail(c *class, v *Verdict, routers ...int32) {
	p.begin()
	for _, r := range routers {
		p.state[r].gone, p.state[r].lost = 0, true
		p.state[r].epoch = p.epoch
	}
	for _, r := range routers {
		p.spread(r)
	}
	p.settle(c, v, func() *failed { return &failed{routers: routers} })
}

// begin forgets the last failure.
func (p *prover) begin() {
	p.epoch++
	p.lost, p.work = p.lost[:0], p.work[:0]
}

// lose takes one next hop from a router.
func (p *prover) lose(u int32) {
	s := &p.state[u]
	if s.epoch != p.epoch {
		s.epoch, s.gone, s.lost = p.epoch, 0, false
	}
	if s.lost {
		return
	}
	if s.gone++; s.gone >= s.hops {
		s.lost = true
		p.lost = append(p.lost, u)
		p.work = append(p.work, u)
	}
}

// spread takes a router from all that send by it.
func (p *prover) spread(r int32) {
	far := p.base.dist[r]
	if far < 0 {
		return
	}
	for _, e := range p.n.sessions[r] {
		if p.base.dist[e.to] == far+1 && !p.base.shut[[2]int32{r, e.cable}] {
			p.lose(e.to)
		}
	}
}

// settle finds the sources that lost all their next hops, and computes what BGP finds for them.
func (p *prover) settle(c *class, v *Verdict, failure func() *failed) {
	if p.drain(); len(p.lost) == 0 {
		return
	}
	var f *failed
	for _, l := range p.legs {
		if c.count[l.to] == 0 {
			continue
		}
		for _, s := range l.sources {
			if !p.isLost(s.router) || s.vni != c.vni {
				continue
			}
			if f == nil {
				f = failure()
				if gone(f, c.chain[0].origins) {
					return // the targets' own switch
				}
				p.w.rib(c.chain[0].origins, c.chain[0].shut, f, &p.again)
			}
			p.detour(v, c, l.to, s, f)
		}
	}
}

// detour looks at what a failure leaves to a source that lost all its next hops.
func (p *prover) detour(v *Verdict, c *class, area int, s source, f *failed) {
	switch {
	case f.router(s.router) || p.elsewhere(&s, f):
	case p.again.dist[s.router] < 0:
		p.cut(v, c, area, s, f)
	default:
		p.turns(&p.again, f, s.router)
	}
}

// isLost reports whether a router has no next hop left.
func (p *prover) isLost(r int32) bool { return p.state[r].epoch == p.epoch && p.state[r].lost }

// drain takes lost routers from those that send by them, until nobody loses any more.
func (p *prover) drain() {
	for len(p.work) > 0 {
		r := p.work[len(p.work)-1]
		p.work = p.work[:len(p.work)-1]
		p.spread(r)
	}
}

// gone reports whether a failure takes all routers of a list.
func gone(f *failed, routers []int32) bool {
	for _, r := range routers {
		if !f.router(r) {
			return false
		}
	}
	return true
}

// cut notes that a failure cuts a source from a class.
func (p *prover) cut(v *Verdict, c *class, area int, s source, f *failed) {
	cases := s.count * c.count[area]
	if len(v.Counter) >= maxCounter {
		v.Broken += cases
		return
	}
	dst := p.far(c, area, s.some.port.on)
	trip := p.n.follow(s.some.port.on.Name, s.some.addr, dst, f)
	why := trip.Why
	if p.joined(s.router, c.chain[0].origins, f) {
		why += "; cables lead on, routes do not"
	} else {
		why += "; no cable leads on"
	}
	v.refute(cases, Counterexample{Packet: fmt.Sprintf("%s %s -> %s", trip.From, trip.Source, trip.Target), Failure: p.n.named(f),
		Path: trip.Hops, Why: why})
}

// joined reports whether cables lead from a router to one of others.
func (p *prover) joined(from int32, to []int32, f *failed) bool {
	seen := map[int32]bool{from: true}
	for queue := []int32{from}; len(queue) > 0; queue = queue[1:] {
		for _, o := range to {
			if o == queue[0] {
				return true
			}
		}
		for _, e := range p.n.trunks[queue[0]] {
			if !seen[e.to] && !f.cable(e.cable) && !f.router(e.to) {
				seen[e.to] = true
				queue = append(queue, e.to)
			}
		}
	}
	return false
}

// named puts a failure in words.
func (n *Net) named(f *failed) string {
	var x Failure
	for _, r := range f.routers {
		x.Switches = append(x.Switches, n.routers[r].Name)
	}
	for _, c := range f.cables {
		x.Cables = append(x.Cables, n.cables[c].String())
	}
	return x.String()
}

// ids finds routers by their names.
func (n *Net) ids(names []string) (out []int32) {
	for _, name := range names {
		if d := n.Devices[name]; d != nil && d.Router {
			out = append(out, d.id)
		}
	}
	return out
}

// choosePairs lists the groups that were named, and all pairs of routers or as many as were asked for, the same every time.
func (p *prover) choosePairs() {
	for _, names := range p.o.Together {
		if group := p.n.ids(names); len(group) > 0 {
			p.groups = append(p.groups, group)
		}
	}
	n := int32(len(p.n.routers))
	all := int(n) * int(n-1) / 2
	if all <= p.o.Pairs {
		for a := range n {
			for b := range a {
				p.groups = append(p.groups, []int32{a, b})
			}
		}
		return
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for drawn := 0; drawn < p.o.Pairs; {
		if a, b := rng.Int32N(n), rng.Int32N(n); a != b {
			p.groups = append(p.groups, []int32{a, b})
			drawn++
		}
	}
}
