package sim

import (
	"errors"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/unit"
)

// symmetry says that ranks which differ by a multiple of period do the same at
// the same time. It holds the routes of every flow there may be, rank by rank: of all ranks, or of those that stand for all
// by a group of renamings (orbits).
// A program repeats itself by turning, as rings do, or by swapping, as halving and
// doubling do: how far a peer is away is a difference then, or an exclusive or.
type symmetry struct {
	net    *network
	n      int32
	base   int32 // ranks after which the program alone repeats itself
	swaps  bool
	period int32
	sends  [][]hop         // by rank below base: where it may send
	hops   []map[hop]int32 // the same, to find one: its index in sends
	group  *orbits         // what makes the flows of the listed ranks stand for those of all; nil if all are listed
	listed int32           // ranks whose flows are listed

	first    []int32 // by listed rank: its first flow; one more at the end
	uses     []use   // of all listed flows; with a group, summed up by orbit
	at       []int32 // by flow: its first use; one more at the end
	mid      []int32 // by flow: the middle with more uses; -1 for none
	middles  [][]use // what flows between two switches have in common: thousands of links, and few middles
	latency  []unit.Time
	leaves   []bool   // by flow: it leaves by a NIC
	colour   []uint64 // by wire
	capacity []int64  // by wire
	loads    [][]load // by flow of a rank below period
}

// hop is a way that messages may take, from any rank of a kind.
type hop struct {
	delta   int32
	channel int32
}

// findSymmetry looks for a period that leaves program and routes as they are;
// nil if there is none below the number of ranks.
func findSymmetry(net *network, r *run) (*symmetry, error) {
	n := r.job.Program.Ranks
	if r.job.Program.Switches > 0 || n < 2 {
		return nil, nil
	}
	s := &symmetry{net: net, n: int32(n)}
	if s.base, s.swaps = net.base(r.code, r.job.Program); s.base == 0 {
		return nil, nil
	}
	s.group, s.listed = findOrbits(net, r.job.Place, s.base, s.swaps), s.n
	if s.group != nil {
		s.listed = s.group.few * s.group.gpus
	}
	ok, err := s.list(r)
	if err == errNoOrbits {
		s.group, s.listed = nil, s.n
		ok, err = s.list(r)
	}
	if !ok || err != nil {
		return nil, err
	}
	s.refine(r)
	if s.period == s.n {
		return nil, nil
	}
	return s, nil
}

// base is the number of ranks after which a program repeats itself, by turning or by swapping; 0 if it does not.
type base struct {
	ranks int32
	swaps bool
}

// base finds a program's. It looks at every rank, so what was found is kept.
func (net *network) base(code *step.Code, p *sched.Program) (ranks int32, swaps bool) {
	if b, known := net.bases[p]; known {
		return b.ranks, b.swaps
	}
	n := p.Ranks
	if ranks = swapsAfter(code, n); ranks > 0 {
		swaps = true
	}
	for d := 1; d < n && (ranks == 0 || swaps && d <= int(ranks)); d++ {
		if n%d == 0 && code.Turns(d) {
			ranks, swaps = int32(d), false
		}
	}
	net.bases[p] = base{ranks, swaps}
	return ranks, swaps
}

// swapsAfter is the number of ranks after which a program repeats itself by swapping; 0 if it does not.
func swapsAfter(code *step.Code, n int) int32 {
	for d := 1; d < n; d *= 2 {
		if code.Swaps(d) {
			return int32(d)
		}
	}
	return 0
}

// errNoOrbits says that a flow takes a way of which it is not known whether flows that correspond do likewise.
var errNoOrbits = errors.New("a way that was found by looking for any")

// list finds where ranks send, and the ways; false if there are too many to keep, or if step cannot tell.
func (s *symmetry) list(r *run) (bool, error) {
	s.sends, s.hops = make([][]hop, s.base), make([]map[hop]int32, s.base)
	for k := range s.hops {
		s.hops[k] = map[hop]int32{}
	}
	flows := 0
	ok := r.code.Sends(int(s.base), func(from, to sched.Rank, channel int32) bool {
		h := hop{apart(int32(from), int32(to), s.n, s.swaps), channel}
		if _, known := s.hops[from][h]; known {
			return true
		}
		// The flows of an all-to-all grow with the square of the ranks, and the route of each is kept.
		if flows += int(s.listed / s.base); flows > s.net.o.maxFlows() {
			return false
		}
		s.hops[from][h] = int32(len(s.sends[from]))
		s.sends[from] = append(s.sends[from], h)
		return true
	})
	if !ok {
		return false, nil
	}
	return true, s.route(r)
}

// route finds the way of every flow.
func (s *symmetry) route(r *run) error {
	s.first = make([]int32, s.listed+1)
	s.uses, s.at, s.mid, s.middles, s.latency, s.leaves = nil, nil, nil, nil, nil, nil
	total := int32(0)
	for k := range s.listed {
		s.first[k] = total
		total += int32(len(s.sends[k%s.base]))
	}
	s.first[s.listed] = total
	s.at = make([]int32, 0, total+1)
	s.latency = make([]unit.Time, 0, total)
	s.leaves = make([]bool, 0, total)
	s.uses = make([]use, 0, int(total)*9)
	s.mid = make([]int32, 0, total)
	known := map[*use]int32{}
	var p path
	var looks int64
	for k := range s.listed {
		for _, h := range s.sends[k%s.base] {
			if s.net.o.stopped(&looks, 1) {
				return ErrLate
			}
			if err := s.net.route(r.job.Place[k], r.job.Place[away(k, h.delta, s.n, s.swaps)], h.channel, &p); err != nil {
				return err
			}
			s.at = append(s.at, int32(len(s.uses)))
			if err := s.keep(&p, known); err != nil {
				return err
			}
			s.latency = append(s.latency, p.latency)
			s.leaves = append(s.leaves, p.net)
		}
	}
	s.at = append(s.at, int32(len(s.uses)))
	return nil
}

// keep adds the uses of a flow, its middle once for all flows that have it; known says which middles are there.
func (s *symmetry) keep(p *path, known map[*use]int32) error {
	own, middle, ok := p.uses, p.mid, true
	if s.group != nil {
		if own, ok = s.group.own(own); !ok {
			return errNoOrbits
		}
	}
	s.uses = append(s.uses, own...)
	if len(middle) == 0 {
		s.mid = append(s.mid, -1)
		return nil
	}
	mid, there := known[&middle[0]]
	if !there {
		mid = int32(len(s.middles))
		known[&middle[0]] = mid
		if s.group != nil {
			if middle, ok = s.group.gather(middle); !ok {
				return errNoOrbits
			}
		}
		s.middles = append(s.middles, middle)
	}
	s.mid = append(s.mid, mid)
	return nil
}

// own gives the uses of a flow that are not in its middle.
func (s *symmetry) own(f int32) []use { return s.uses[s.at[f]:s.at[f+1]] }

// middle gives the others.
func (s *symmetry) middle(f int32) []use {
	if s.mid[f] < 0 {
		return nil
	}
	return s.middles[s.mid[f]]
}

// refine finds the smallest period that colours of links respect.
func (s *symmetry) refine(r *run) {
	s.capacity = s.net.capacities()
	sig := make([]uint64, s.listed)
	for k := range s.listed {
		h := uint64(1)
		if f, ok := s.net.lame[r.job.Place[k]]; ok {
			h = math.Float64bits(f)
		}
		for f := s.first[k]; f < s.first[k+1]; f++ {
			h = mix(h, uint64(s.latency[f]))
			sum := uint64(len(s.middle(f))) // the loop below looks closer
			for _, u := range s.own(f) {
				sum += mix(uint64(s.capacity[u.wire]), uint64(u.share))
			}
			h = mix(h, sum)
		}
		sig[k] = h
	}
	s.period = s.repeats(sig, s.base)
	s.colour = make([]uint64, len(s.capacity))
	next, sums := make([]uint64, s.listed), make([]uint64, len(s.middles))
	for s.period < s.listed {
		s.paint()
		for i, mid := range s.middles {
			sums[i] = s.seen(mid)
		}
		for k := range s.listed {
			h := sig[k]
			for f := s.first[k]; f < s.first[k+1]; f++ {
				sum := s.seen(s.own(f))
				if mid := s.mid[f]; mid >= 0 {
					sum += sums[mid]
				}
				h = mix(h, sum)
			}
			next[k] = h
		}
		p := s.repeats(next, s.period)
		if p == s.period {
			return
		}
		s.period = p
	}
	if s.period < s.n { // the listed ranks all differ, and stand for all
		s.paint()
	}
}

// blank is the colour of wires before any flow is looked at. Orbits of different sizes are not the same, even if each flow gives both
// the same share.
func (s *symmetry) blank() {
	clear(s.colour)
	if s.group != nil {
		for x, size := range s.group.sizes {
			s.colour[x] = uint64(size)
		}
	}
}

// paint gives every wire a colour: a sum over the flows that cross it, in which those that correspond count the same.
// The flows of one middle are added up before its wires are looked at.
func (s *symmetry) paint() {
	s.blank()
	shares := s.shares()
	through := make([][]uint64, len(s.middles)) // by middle and by share
	for i := range through {
		through[i] = make([]uint64, len(shares[i]))
	}
	for k := range s.listed {
		for f := s.first[k]; f < s.first[k+1]; f++ {
			orbit := uint64(s.orbit(k, f)) + 1
			for _, u := range s.own(f) {
				s.colour[u.wire] += mix(orbit, uint64(u.share))
			}
			if mid := s.mid[f]; mid >= 0 {
				for i, share := range shares[mid] {
					through[mid][i] += mix(orbit, uint64(share))
				}
			}
		}
	}
	for mid, uses := range s.middles {
		last := 0
		for _, u := range uses {
			if shares[mid][last] != u.share {
				last = slices.Index(shares[mid], u.share)
			}
			s.colour[u.wire] += through[mid][last]
		}
	}
}

// shares lists which shares the uses of every middle have.
func (s *symmetry) shares() [][]int32 {
	list := make([][]int32, len(s.middles))
	for i, uses := range s.middles {
		for _, u := range uses {
			if n := len(list[i]); n > 0 && list[i][n-1] == u.share || slices.Contains(list[i], u.share) {
				continue
			}
			list[i] = append(list[i], u.share)
		}
	}
	return list
}

// seen sums up what a flow sees of wires.
func (s *symmetry) seen(uses []use) (sum uint64) {
	for _, u := range uses {
		sum += mix(mix(s.colour[u.wire], uint64(s.capacity[u.wire])), uint64(u.share))
	}
	return sum
}

// load is what a wire gets of a listed flow and of all those for which it stands.
func (s *symmetry) load(u use) int64 {
	if s.group == nil {
		return int64(u.share)
	}
	return s.group.load(u)
}

// orbit numbers a rank's flow together with all that correspond to it.
func (s *symmetry) orbit(k, f int32) int32 { return s.first[k%s.period] + f - s.first[k] }

// repeats gives the smallest multiple of least that divides the listed ranks and after which
// the signatures repeat.
func (s *symmetry) repeats(sig []uint64, least int32) int32 {
	for p := least; p < s.listed; {
		if s.listed%p == 0 {
			same := true
			for k := p; k < s.listed && same; k++ {
				same = sig[k] == sig[k-p]
			}
			if same {
				return p
			}
		}
		if s.swaps {
			p *= 2
		} else {
			p += least
		}
	}
	return s.listed
}

// apart is how far it is from one rank to another of n: round the ring of all, or the exclusive or.
func apart(from, to, n int32, swaps bool) int32 {
	if swaps {
		return from ^ to
	}
	return (to - from + n) % n
}

// away is the rank at that distance from another.
func away(from, delta, n int32, swaps bool) int32 {
	if swaps {
		return from ^ delta
	}
	return (from + delta) % n
}

// resources makes one of every colour of wire that simulated ranks use. A flow
// stands for all that correspond to it, so it loads the resource with the
// shares of all of them that cross one wire of the colour.
func (s *symmetry) resources(w *world) {
	flows := s.first[s.period]
	byColour := map[uint64]int32{}
	stands := make([]int32, len(s.colour)) // the resource, plus one, that a wire stands for
	s.loads = make([][]load, flows)
	stand := func(uses []use) {
		for _, u := range uses {
			key := mix(s.colour[u.wire], uint64(s.capacity[u.wire]))
			if _, ok := byColour[key]; !ok {
				byColour[key] = w.resource(u.wire, s.capacity[u.wire])
				stands[u.wire] = byColour[key] + 1
			}
		}
	}
	looked := make([]bool, len(s.middles))
	for f := range flows {
		stand(s.own(f))
		if mid := s.mid[f]; mid >= 0 && !looked[mid] {
			looked[mid] = true
			stand(s.middles[mid])
		}
	}
	loads := func(uses []use) (list []load) {
		for _, u := range uses {
			if res := stands[u.wire] - 1; res >= 0 {
				list = append(list, load{res: res, share: s.load(u)})
			}
		}
		return list
	}
	middles := make([][]load, len(s.middles))
	for i, uses := range s.middles {
		middles[i] = loads(uses)
	}
	for k := range s.listed {
		for f := s.first[k]; f < s.first[k+1]; f++ {
			orbit := s.orbit(k, f)
			for _, u := range s.own(f) {
				if res := stands[u.wire] - 1; res >= 0 {
					s.add(orbit, res, s.load(u))
				}
			}
			if mid := s.mid[f]; mid >= 0 {
				for _, l := range middles[mid] {
					s.add(orbit, l.res, l.share)
				}
			}
		}
	}
	s.colour = nil // a number for each wire, which worlds that are kept need no more
}

func (s *symmetry) add(orbit, res int32, share int64) {
	for i := range s.loads[orbit] {
		if l := &s.loads[orbit][i]; l.res == res {
			l.share += share
			return
		}
	}
	s.loads[orbit] = append(s.loads[orbit], load{res: res, share: share})
}

// flow gives what a simulated rank's flow loads.
func (s *symmetry) flow(rank, delta, channel int32) (loads []load, flow int32, latency unit.Time, net bool) {
	i, ok := s.hops[rank%s.base][hop{delta, channel}]
	if !ok {
		return nil, -1, 0, false
	}
	f := s.first[rank] + i
	return s.loads[f], f, s.latency[f], s.leaves[f]
}
