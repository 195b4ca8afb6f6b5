package sim

import (
	"cmp"
	"math"
)

// sharing is the max-min fair division of links among the flows on them.
//
// Rates rise together until a link is full; the flows on it keep that rate, and
// the others rise on (progressive filling; Bertsekas and Gallagher, Data
// Networks, 1992, section 6.5). A flow that is striped loads each link by its
// share. A change is worked out only where it can be felt: for the flows that
// are joined to it by links in common. All arithmetic is on whole numbers, so the
// outcome does not depend on the order of flows or links.
type sharing struct {
	res   []resource
	flows []stream
	dirty []int32 // resources whose flows changed

	epoch uint32
	queue []int32 // resources of a component
	part  []int32 // flows of a component
	heap  []filling
	full  []int32

	pause *pausing // nil where only full links hold flows back

	changed []int32 // flows whose rate is new
	work    int64   // flows and links looked at, until somebody takes note
}

// resource is a link as flows see it. What a solution asks of it lies side by side:
// among many ranks most of the time goes into fetching it from memory.
type resource struct {
	cap    int64 // bytes a second
	sum    int64 // shares of the flows on it
	used   int64 // what frozen flows take, times whole
	open   int64 // shares of flows that still rise
	even   int64 // what all its flows together could have each, if evenOf is sum: worked out once for as many flows
	evenOf int64
	on     []member
	seen   uint32 // the epoch in which it was last part of a component
	tight  uint32 // the epoch if it is in full
	own    bool   // no flow on it ever loads another
	marked bool   // in dirty
}

// member is a flow on a resource, and which of its loads that is.
type member struct{ flow, load int32 }

// load is a flow's part of a resource.
type load struct {
	res   int32
	at    int32 // in on[res]
	share int64
}

// stream is a flow as the links see it.
type stream struct {
	loads  []load
	rate   int64
	was    int64 // the rate before it was last changed, for whoever keeps track
	limit  int32 // the resource that holds it back
	epoch  uint32
	active bool
	frozen bool
}

// filling is a resource and the rate at which it will be full.
type filling struct {
	level int64
	res   int32
}

// resource adds one.
func (s *sharing) resource(capacity int64) int32 {
	s.res = append(s.res, resource{cap: capacity})
	return int32(len(s.res) - 1)
}

// flow adds one that is not active yet. A resource may be named once only.
func (s *sharing) flow(loads []load) int32 {
	s.flows = append(s.flows, stream{loads: loads})
	return int32(len(s.flows) - 1)
}

func (s *sharing) touch(res int32) {
	if !s.res[res].marked {
		s.res[res].marked = true
		s.dirty = append(s.dirty, res)
	}
}

// start makes a flow active; solve gives it its rate.
func (s *sharing) start(f int32) {
	x := &s.flows[f]
	x.active, x.rate, x.was = true, 0, 0
	if s.pause != nil {
		s.pause.begun(x.loads)
	}
	for i := range x.loads {
		l := &x.loads[i]
		l.at = int32(len(s.res[l.res].on))
		s.res[l.res].on = append(s.res[l.res].on, member{f, int32(i)})
		s.res[l.res].sum += l.share
		s.touch(l.res)
	}
}

// stop takes a flow off its links.
func (s *sharing) stop(f int32) {
	x := &s.flows[f]
	x.active = false
	for i := range x.loads {
		l := &x.loads[i]
		list := s.res[l.res].on
		last := list[len(list)-1]
		list[l.at] = last
		s.flows[last.flow].loads[last.load].at = l.at
		s.res[l.res].on = list[:len(list)-1]
		s.res[l.res].sum -= l.share
		if len(list) > 1 {
			s.touch(l.res)
		}
	}
}

// solve works out the rates after changes and lists the flows whose rate is new.
func (s *sharing) solve() []int32 {
	s.changed = s.changed[:0]
	s.epoch++
	for _, res := range s.dirty {
		s.res[res].marked = false
		if s.res[res].seen == s.epoch || len(s.res[res].on) == 0 {
			continue
		}
		if s.res[res].own {
			level := s.even(res)
			for _, m := range s.res[res].on {
				s.set(m.flow, level, res)
			}
			s.work += int64(len(s.res[res].on))
			continue
		}
		s.component(res)
		if s.pause != nil {
			s.fillPaused()
		} else {
			s.fill()
		}
		s.work += int64(len(s.part) + len(s.queue))
	}
	s.dirty = s.dirty[:0]
	return s.changed
}

// even is the rate at which a resource is full if all its flows have the same.
func (s *sharing) even(r int32) int64 {
	x := &s.res[r]
	if x.evenOf != x.sum {
		x.even, x.evenOf = max(1, rate(x.cap, x.sum)), x.sum
	}
	return x.even
}

// apart finds the resources whose flows load no other, now that all flows are
// known: their flows have the same rate, which takes no search.
func (s *sharing) apart() {
	for r := range s.res {
		s.res[r].own = true
	}
	for f := range s.flows {
		if loads := s.flows[f].loads; len(loads) > 1 {
			for _, l := range loads {
				s.res[l.res].own = false
			}
		}
	}
}

// component collects what is joined to a resource.
func (s *sharing) component(res int32) {
	s.queue, s.part = append(s.queue[:0], res), s.part[:0]
	s.res[res].seen = s.epoch
	for q := 0; q < len(s.queue); q++ {
		for _, m := range s.res[s.queue[q]].on {
			x := &s.flows[m.flow]
			if x.epoch == s.epoch {
				continue
			}
			x.epoch, x.frozen = s.epoch, false
			s.part = append(s.part, m.flow)
			for i := range x.loads {
				if r := x.loads[i].res; s.res[r].seen != s.epoch {
					s.res[r].seen = s.epoch
					s.queue = append(s.queue, r)
				}
			}
		}
	}
}

// fill raises the rates of a component.
func (s *sharing) fill() {
	if len(s.part) == 1 {
		f := s.part[0]
		x := &s.flows[f]
		level, limit := int64(0), int32(0)
		for i := range x.loads {
			l := &x.loads[i]
			if v := rate(s.res[l.res].cap, l.share); i == 0 || v < level {
				level, limit = v, l.res
			}
		}
		s.set(f, level, limit)
		return
	}
	least := int64(math.MaxInt64)
	all := false // a link that is full first carries all flows
	for _, r := range s.queue {
		x := &s.res[r]
		x.used, x.open = 0, x.sum
		if v := s.even(r); v < least {
			least, all = v, len(x.on) == len(s.part)
		} else if v == least {
			all = all || len(x.on) == len(s.part)
		}
	}
	if all {
		s.alike(least)
		return
	}
	s.heap = s.heap[:0]
	for _, r := range s.queue {
		s.push(filling{s.even(r), r})
	}
	for left := len(s.part); left > 0; {
		top := s.pop()
		if s.res[top.res].open == 0 {
			continue
		}
		if v := s.level(top.res); v != top.level { // others have left it since
			s.push(filling{v, top.res})
			continue
		}
		// All resources that are full at this level, before any of them changes.
		s.full = append(s.full[:0], top.res)
		for len(s.heap) > 0 && s.heap[0].level == top.level {
			next := s.pop()
			if s.res[next.res].open == 0 {
				continue
			}
			if v := s.level(next.res); v != top.level {
				s.push(filling{v, next.res})
				continue
			}
			s.full = append(s.full, next.res)
		}
		for _, r := range s.full {
			s.res[r].tight = s.epoch
		}
		for _, r := range s.full {
			for _, m := range s.res[r].on {
				x := &s.flows[m.flow]
				if x.frozen {
					continue
				}
				x.frozen = true
				left--
				// Of several that hold a flow back, the one with the fewest flows is named.
				limit := r
				for i := range x.loads {
					l := &x.loads[i]
					s.res[l.res].used += l.share * top.level
					s.res[l.res].open -= l.share
					if s.res[l.res].tight == s.epoch && cmp.Or(len(s.res[l.res].on)-len(s.res[limit].on), int(l.res-limit)) < 0 {
						limit = l.res
					}
				}
				s.set(m.flow, top.level, limit)
			}
		}
		for _, r := range s.full {
			s.res[r].tight = 0
		}
	}
}

// alike gives all flows of a component one rate, and names what holds each back.
func (s *sharing) alike(level int64) {
	for _, f := range s.part {
		limit := int32(-1)
		for _, l := range s.flows[f].loads {
			if s.even(l.res) == level && (limit < 0 || cmp.Or(len(s.res[l.res].on)-len(s.res[limit].on), int(l.res-limit)) < 0) {
				limit = l.res
			}
		}
		s.set(f, level, limit)
	}
}

// level is the rate at which a resource is full if all its open flows rise alike.
func (s *sharing) level(r int32) int64 {
	if s.res[r].open == 0 {
		return 0
	}
	return max(1, (s.res[r].cap*whole-s.res[r].used)/s.res[r].open)
}

func (s *sharing) set(f int32, rate int64, limit int32) {
	x := &s.flows[f]
	x.limit = limit
	if x.rate != rate {
		x.rate = rate
		s.changed = append(s.changed, f)
	}
}

func (s *sharing) push(x filling) {
	h := append(s.heap, x)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].level <= h[i].level {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
	s.heap = h
}

func (s *sharing) pop() filling {
	h := s.heap
	top := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && h[down+1].level < h[down].level {
			down++
		}
		if h[i].level <= h[down].level {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	s.heap = h
	return top
}
