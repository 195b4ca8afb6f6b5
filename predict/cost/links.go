package cost

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// Links is what the processes of a host or of a small cluster cost one another,
// as measured when they meet. Times are in microseconds.
//
// Where ranks see one another's memory, a flat program (direct, one-shot,
// rank-order) needs no messages: ranks meet, read one another's buffers where
// they lie, and meet again. Its time is that of the meetings and of what goes
// through memory:
//
//	t = Sync * meetings + max(1, Ranks/Cores) * traffic * pace(traffic of all)
//
// where traffic is what a rank loads and stores. Programs that send messages
// are replayed over Near and Far: see Replay.
type Links struct {
	Kind  string  `json:"kind"`           // mem, shm or tcp
	Ranks int     `json:"ranks"`          // of all hosts
	Cores int     `json:"cores"`          // of the machine that has fewest
	Hosts int     `json:"hosts,omitzero"` // that share these cores, as namespaces and pods of one machine do; 0 is one
	Sync  float64 `json:"sync_us"`        // for all ranks to meet
	Paces []Pace  `json:"paces"`          // of memory, by growing traffic
	Near  Link    `json:"near"`           // between ranks of a host
	Far   Link    `json:"far,omitzero"`   // between hosts; zero where there is one

	Doubtful bool `json:"doubtful,omitzero"` // measured beside other work

	// Run is how long a chunk is at most, in bytes; longer ones are sent in several
	// runs of the program, each with all of its messages. Zero is any length.
	Run unit.Bytes `json:"-"`
}

// Pace is what a byte of memory traffic costs a rank that has a core to itself
// while all ranks of a host together pass over Traffic bytes: more where they do
// not fit the caches.
type Pace struct {
	Traffic float64 `json:"traffic_bytes"` // loads and stores of all; a store to what was not loaded counts twice
	Byte    float64 `json:"us_per_byte"`
}

// Link is the way of messages between two ranks.
type Link struct {
	Alpha float64 `json:"alpha_us"`         // from the end of a send to the start of the receive
	Post  float64 `json:"post_us"`          // of a core, a message, at each end
	Beta  float64 `json:"beta_us_per_byte"` // of a core, a byte, at each end
	Wire  float64 `json:"wire_us_per_byte"` // of the host's way out, which its ranks share; zero inside a host
}

// Check refuses links that no measurement gives.
func (l *Links) Check() error {
	if l.Ranks < 1 || l.Cores < 1 || l.Hosts < 0 {
		return fmt.Errorf("links of %d ranks on %d cores; at least one of each expected", l.Ranks, l.Cores)
	}
	if len(l.Paces) == 0 {
		return fmt.Errorf("links without a pace of memory; at least one expected")
	}
	numbers := []float64{l.Sync, l.Near.Alpha, l.Near.Post, l.Near.Beta, l.Near.Wire, l.Far.Alpha, l.Far.Post, l.Far.Beta, l.Far.Wire}
	last := 0.0
	for _, p := range l.Paces {
		if p.Traffic <= last {
			return fmt.Errorf("a pace for %g bytes of traffic after one for %g; they must grow", p.Traffic, last)
		}
		last = p.Traffic
		numbers = append(numbers, p.Traffic, p.Byte)
	}
	for _, x := range numbers {
		if x < 0 || math.IsNaN(x) || x > 1e12 {
			return fmt.Errorf("links cost %g us; a number from 0 to 1e12 expected", x)
		}
	}
	return nil
}

// memory is the time in us that a rank's traffic takes if it has a core to
// itself and all ranks of its host do the same. Between two paces the time
// of all grows as a power of the traffic, and never falls.
func (l *Links) memory(traffic float64, ranks int) float64 {
	if traffic <= 0 || len(l.Paces) == 0 {
		return 0
	}
	all := traffic * float64(ranks)
	last, at := Pace{}, 0.0 // a pace and the time of its traffic, no less than that of the paces before
	for _, p := range l.Paces {
		time := max(p.Traffic*p.Byte, at)
		if all <= p.Traffic {
			if at == 0 {
				return time * traffic / p.Traffic
			}
			part := math.Log(all/last.Traffic) / math.Log(p.Traffic/last.Traffic)
			return at * math.Pow(time/at, part) / float64(ranks)
		}
		last, at = p, time
	}
	return at * traffic / last.Traffic
}

// Own is how many cores each of the ranks of a host has: less than one where they share.
func (l *Links) Own(ranks int) float64 {
	return float64(max(l.Cores, 1)) / float64(max(ranks, 1)*max(l.Hosts, 1))
}

// crowd is how many ranks share a core, for a number of ranks on a host.
func (l *Links) crowd(ranks int) float64 { return max(1, 1/l.Own(ranks)) }

// Flat is the model of flat programs over memory that all ranks see. A cost's
// steps are meetings and its wire bytes memory traffic, as FlatAlgos counts them.
type Flat struct{ *Links }

// Time is the time of a flat program's cost.
func (f Flat) Time(c Work) unit.Time {
	return Span(f.Sync*c.Steps + f.crowd(f.Ranks)*f.memory(c.Wire, f.Ranks))
}

// FlatAlgos lists the flat programs of a collective over n ranks that see one
// another's memory: how often they meet, the bytes that the busiest rank loads
// and stores for a larger buffer of S bytes, and the bytes it adds. A store to
// memory that was not loaded costs a load as well.
//
//	                            meetings  loads          stores
//	all-reduce      one-shot       1      S + nS         S + S         a copy of its input, then all copies
//	                rank-order     2      n S/n          n S/n         its part of all, into all
//	reduce-scatter  rank-order     2      n S/n          S/n
//	reduce          rank-order     2      nS             S             at the root
//	moves           direct         2      S              S             S/n for a scatter; S at the root of a gather
//	barrier         one-shot       1      0              0
func FlatAlgos(op sched.Collective, n int) ([]Algo, error) {
	if n < 1 {
		return nil, fmt.Errorf("%d ranks; at least 1 expected", n)
	}
	ranks, share := float64(n), 1/float64(n)
	form := func(name string, meetings, traffic, added float64) Algo {
		if n == 1 {
			meetings, traffic, added = 0, min(traffic, 3), 0
		}
		return Algo{name, func(b unit.Bytes) Work {
			s := max(float64(b), 0)
			return Work{meetings, traffic * s, added * s}
		}}
	}
	switch op {
	case sched.AllReduce:
		return []Algo{form("one-shot", 1, ranks+3, ranks-1), form("rank-order", 2, 2, 1-share)}, nil
	case sched.ReduceScatter:
		return []Algo{form("rank-order", 2, 1+2*share, 1-share)}, nil
	case sched.Reduce:
		return []Algo{form("rank-order", 2, ranks+2, ranks-1)}, nil
	case sched.AllGather, sched.AllToAll, sched.Broadcast, sched.SendRecv, sched.Gather:
		return []Algo{form("direct", 2, 3, 0)}, nil
	case sched.Scatter:
		return []Algo{form("direct", 2, 3*share, 0)}, nil
	case sched.Barrier:
		return []Algo{form("one-shot", 1, 0, 0)}, nil
	}
	return nil, fmt.Errorf("no flat program does %s", op)
}
