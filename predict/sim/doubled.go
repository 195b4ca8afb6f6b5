package sim

import (
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Halving and doubling (rabenseifner, halving-doubling) reach all hosts in a logarithm of steps, each with half the bytes
// of the one before. A bad part is on the way of every step of its host, and all others wait for it in the end:
//
//	more time than where nothing is bad = d + e / ranks
//
// as the bytes that pass a host's NIC are S (1 - 1/hosts) each way. The ranks around the bad part alone say d and e, at two
// numbers of them, and a third says whether it is so: it must lie near the curve. How long all ranks take where nothing is
// bad is simulated, as they fold there.

// fewest is the number of ranks around a bad part that is looked at first.
const fewest = 128

// doubled gives the result of a job with Doubles whose ranks are too many to simulate around a bad part; nil if
// it cannot.
func (n *network) doubled(j Job) (*Result, error) {
	bad, known := n.badRanks(j)
	if !known {
		return nil, nil
	}
	o := n.o
	o.Fail, o.Slow, o.Deadline = nil, nil, 0
	healthy, err := networkOf(n.whole, o)
	if err != nil {
		return nil, err
	}
	w, err := newWorld(healthy, []Job{j}, o)
	if err != nil || w.sym == nil {
		return nil, err
	}
	if err := w.run(); err != nil {
		return nil, err
	}
	all := w.result()
	ranks := j.Program.Ranks
	few := ranks
	for few%2 == 0 && few/2 >= fewest {
		few /= 2
	}
	type point struct {
		res  *Result
		more float64 // picoseconds
	}
	var at []point
	for ; 2*few <= ranks; few *= 2 {
		part, ok, err := j.around(bad, few)
		if !ok || err != nil {
			return nil, err
		}
		res, err := n.run([]Job{part}, 0)
		if err != nil {
			return nil, err
		}
		plain, err := healthy.run([]Job{part}, 0)
		if err != nil {
			return nil, err
		}
		at = append(at, point{res, float64(res.Time - plain.Time)})
		if len(at) < 3 {
			continue
		}
		a, b, c := at[len(at)-3], at[len(at)-2], at[len(at)-1]
		bend := 2*(c.more-b.more) - (b.more - a.more)
		if max(bend, -bend) > 2*n.bend([]Job{j})*float64(c.res.Time) { // what is left to carry on is a third of it or less
			continue
		}
		more := c.more + (c.more-b.more)*(1-float64(few)/float64(ranks))
		r := *c.res
		r.Time = all.Time + unit.Time(max(more, 0)+.5)
		end := j.Start + r.Time
		alg := j.Size.Per(r.Time)
		r.Jobs = []JobResult{{j.Start, end, alg, alg * unit.Rate(j.Program.Op.BusFactor(ranks))}}
		r.AlgBW, r.BusBW, r.Shortened, r.Seed = r.Jobs[0].AlgBW, r.Jobs[0].BusBW, true, n.o.Seed
		scale := float64(r.Time) / float64(max(c.res.Time, 1))
		for k := range r.Critical {
			r.Critical[k] = unit.Time(float64(r.Critical[k]) * scale)
		}
		r.Limit = r.w.limit(&r)
		return &r, nil
	}
	return nil, nil
}

// badRanks are the ranks on hosts that hold a bad part or hang on one; false if one hangs on no host.
func (n *network) badRanks(j Job) ([]int, bool) {
	g := n.whole
	names := append([]string(nil), n.o.Fail...)
	for _, s := range n.o.Slow {
		names = append(names, s.Name)
	}
	hosts := map[topo.HostID]bool{}
	for _, name := range names {
		p, err := find(g, name)
		if err != nil {
			return nil, false
		}
		found := false
		for _, l := range p.links {
			for _, at := range []topo.NodeID{g.Links[l].A, g.Links[l].B} {
				if h := g.Nodes[at].Host; h != topo.None {
					hosts[h], found = true, true
				}
			}
		}
		if !found {
			return nil, false // it is between switches: all may pass it
		}
	}
	var ranks []int
	for r, at := range j.Place {
		if hosts[g.Nodes[at].Host] {
			ranks = append(ranks, r)
		}
	}
	return ranks, len(ranks) > 0
}

// around is the job with some of its ranks, those that surround the bad ones; false if they lie too far apart.
func (j Job) around(bad []int, ranks int) (Job, bool, error) {
	first := bad[0] / ranks * ranks
	if bad[len(bad)-1] >= first+ranks {
		return Job{}, false, nil
	}
	p, err := j.Fewer.Program(ranks)
	if err != nil {
		return Job{}, false, err
	}
	return Job{Program: p, Size: j.Size, Place: j.Place[first : first+ranks], Start: j.Start}, true, nil
}
