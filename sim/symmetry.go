package sim

import (
	"math"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/unit"
)

// symmetry says that ranks which differ by a multiple of period do the same at
// the same time. It holds the routes of every flow there may be, rank by rank.
type symmetry struct {
	net    *network
	n      int32
	base   int32 // ranks after which the program alone repeats itself
	period int32
	sends  [][]hop         // by rank below base: where it may send
	hops   []map[hop]int32 // the same, to find one: its index in sends

	first   []int32 // by rank: its first flow; one more at the end
	uses    []use   // of all flows
	at      []int32 // by flow: its first use; one more at the end
	mid     [][]use // by flow: more uses
	latency []unit.Time
	leaves  []bool   // by flow: it leaves by a NIC
	colour  []uint64 // by wire
	loads   [][]load // by flow of a rank below period
}

// hop is a way that messages may take, from any rank of a kind.
type hop struct {
	delta   int32
	channel int32
}

// maxFlows bounds the flows of all ranks together, beyond which ranks are not
// folded: those of an all-to-all grow with the square of the ranks, and the route
// of each is kept.
const maxFlows = 1 << 21

// findSymmetry looks for a period that leaves program and routes as they are;
// nil if there is none below the number of ranks.
func findSymmetry(net *network, r *run) (*symmetry, error) {
	n := r.job.Program.Ranks
	if r.job.Program.Switches > 0 || n < 2 {
		return nil, nil
	}
	s := &symmetry{net: net, n: int32(n)}
	for d := 1; d < n && s.base == 0; d++ {
		if n%d == 0 && r.code.Turns(d) {
			s.base = int32(d)
		}
	}
	if s.base == 0 {
		return nil, nil
	}
	s.sends, s.hops = make([][]hop, s.base), make([]map[hop]int32, s.base)
	for k := range s.hops {
		s.hops[k] = map[hop]int32{}
	}
	few, flows := true, 0
	ok := r.code.Sends(int(s.base), func(from, to sched.Rank, channel int32) {
		h := hop{(int32(to) - int32(from) + s.n) % s.n, channel}
		if _, known := s.hops[from][h]; known {
			return
		}
		flows += n / int(s.base)
		if few = few && flows <= maxFlows; few {
			s.hops[from][h] = int32(len(s.sends[from]))
			s.sends[from] = append(s.sends[from], h)
		}
	})
	if !ok || !few {
		return nil, nil
	}
	if err := s.route(r); err != nil {
		return nil, err
	}
	s.refine(r)
	if s.period == s.n {
		return nil, nil
	}
	return s, nil
}

// route finds the way of every flow.
func (s *symmetry) route(r *run) error {
	s.first = make([]int32, s.n+1)
	total := int32(0)
	for k := range s.n {
		s.first[k] = total
		total += int32(len(s.sends[k%s.base]))
	}
	s.first[s.n] = total
	s.at = make([]int32, 0, total+1)
	s.latency = make([]unit.Time, 0, total)
	s.leaves = make([]bool, 0, total)
	s.uses = make([]use, 0, int(total)*9)
	s.mid = make([][]use, 0, total)
	var p path
	for k := range s.n {
		for _, h := range s.sends[k%s.base] {
			if err := s.net.route(r.job.Place[k], r.job.Place[(k+h.delta)%s.n], h.channel, &p); err != nil {
				return err
			}
			s.at = append(s.at, int32(len(s.uses)))
			s.uses = append(s.uses, p.uses...)
			s.mid = append(s.mid, p.mid)
			s.latency = append(s.latency, p.latency)
			s.leaves = append(s.leaves, p.net)
		}
	}
	s.at = append(s.at, int32(len(s.uses)))
	return nil
}

// parts gives the uses of a flow.
func (s *symmetry) parts(f int32) [2][]use { return [2][]use{s.uses[s.at[f]:s.at[f+1]], s.mid[f]} }

// refine finds the smallest period that colours of links respect.
func (s *symmetry) refine(r *run) {
	sig := make([]uint64, s.n)
	for k := range s.n {
		h := uint64(1)
		if f, ok := s.net.lame[r.job.Place[k]]; ok {
			h = math.Float64bits(f)
		}
		for f := s.first[k]; f < s.first[k+1]; f++ {
			h = mix(h, uint64(s.latency[f]))
			sum := uint64(len(s.mid[f])) // the loop below looks closer
			for _, u := range s.uses[s.at[f]:s.at[f+1]] {
				sum += mix(uint64(s.net.capacity(u.wire)), uint64(u.share))
			}
			h = mix(h, sum)
		}
		sig[k] = h
	}
	s.period = s.repeats(sig, s.base)
	s.colour = make([]uint64, 2*(len(s.net.g.Links)+len(s.net.g.Nodes)))
	next := make([]uint64, s.n)
	for s.period < s.n {
		clear(s.colour)
		for k := range s.n {
			for f := s.first[k]; f < s.first[k+1]; f++ {
				orbit := uint64(s.orbit(k, f))
				for _, part := range s.parts(f) {
					for _, u := range part {
						s.colour[u.wire] += mix(orbit+1, uint64(u.share))
					}
				}
			}
		}
		for k := range s.n {
			h := sig[k]
			for f := s.first[k]; f < s.first[k+1]; f++ {
				sum := uint64(0)
				for _, part := range s.parts(f) {
					for _, u := range part {
						sum += mix(mix(s.colour[u.wire], uint64(s.net.capacity(u.wire))), uint64(u.share))
					}
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
}

// orbit numbers a rank's flow together with all that correspond to it.
func (s *symmetry) orbit(k, f int32) int32 { return s.first[k%s.period] + f - s.first[k] }

// repeats gives the smallest multiple of least that divides n and after which
// the signatures repeat.
func (s *symmetry) repeats(sig []uint64, least int32) int32 {
	for p := least; p < s.n; p += least {
		if s.n%p != 0 {
			continue
		}
		same := true
		for k := int32(0); k < s.n && same; k++ {
			other := k + p
			if other >= s.n {
				other -= s.n
			}
			same = sig[k] == sig[other]
		}
		if same {
			return p
		}
	}
	return s.n
}

// resources makes one of every colour of wire that simulated ranks use. A flow
// stands for all that correspond to it, so it loads the resource with the
// shares of all of them that cross one wire of the colour.
func (s *symmetry) resources(w *world) {
	flows := s.first[s.period]
	byColour := map[uint64]int32{}
	stands := make([]int32, len(s.colour)) // the resource, plus one, that a wire stands for
	s.loads = make([][]load, flows)
	for f := range flows {
		for _, part := range s.parts(f) {
			for _, u := range part {
				key := mix(s.colour[u.wire], uint64(s.net.capacity(u.wire)))
				if _, ok := byColour[key]; !ok {
					byColour[key] = w.resource(u.wire, s.net.capacity(u.wire))
					stands[u.wire] = byColour[key] + 1
				}
			}
		}
	}
	for k := range s.n {
		for f := s.first[k]; f < s.first[k+1]; f++ {
			for _, part := range s.parts(f) {
				for _, u := range part {
					if res := stands[u.wire] - 1; res >= 0 {
						s.add(s.orbit(k, f), res, u.share)
					}
				}
			}
		}
	}
}

func (s *symmetry) add(orbit, res int32, share int32) {
	for i := range s.loads[orbit] {
		if l := &s.loads[orbit][i]; l.res == res {
			l.share += int64(share)
			return
		}
	}
	s.loads[orbit] = append(s.loads[orbit], load{res: res, share: int64(share)})
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
