package sim

import (
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Spread is how a result varies with the seed that ECMP hashes with.
type Spread struct {
	Seeds []uint64
	Times []unit.Time // by seed
	Mean  unit.Time
	P99   unit.Time // the time that 99 of 100 seeds stay within, from the seeds tried
	Worst *Result   // the result of the slowest seed
}

// Seeds runs jobs under ECMP, or with flowlets if these are asked for, with a number of seeds from Options.Seed on.
func Seeds(g *topo.Graph, jobs []Job, o Options, count int) (*Spread, error) {
	if o.Routing == Adaptive {
		o.Routing = ECMP
	}
	s := &Spread{}
	sum := 0.0
	for i := range max(count, 1) {
		opt := o
		opt.Seed = o.Seed + uint64(i)
		r, err := Run(g, jobs, opt)
		if err != nil {
			return nil, err
		}
		s.Seeds = append(s.Seeds, opt.Seed)
		s.Times = append(s.Times, r.Time)
		sum += float64(r.Time)
		if s.Worst == nil || r.Time > s.Worst.Time {
			s.Worst = r
		}
	}
	s.Mean = unit.Time(math.Round(sum / float64(len(s.Times))))
	sorted := slices.Clone(s.Times)
	slices.Sort(sorted)
	s.P99 = sorted[min(len(sorted)-1, int(math.Ceil(0.99*float64(len(sorted))))-1)]
	return s, nil
}
