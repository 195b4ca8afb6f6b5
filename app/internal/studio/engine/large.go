package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// A reader waits for a picture, not for two minutes. On very many GPUs a single algorithm is judged before it starts: rings
// are estimated from two short ones, and algorithms in which everybody sends to everybody are refused, together with others
// that do finish. What is not known to be slow has patience to finish.
const (
	manyGPUs  = 4096
	longRing  = 16384 // ranks above which a ring is estimated at once
	manyPeers = 1024  // to which a rank sends, that simulations of very many ranks take minutes for
	patience  = 30 * time.Second
	ringTries = 10 * time.Second // patience for a ring, which can be estimated
)

// patiently runs one algorithm. Bad parts have short cuts of their own in the simulator.
func (j *job) patiently(a *asked, name string, work sim.Job) (*sim.Found, []string, error) {
	if len(a.gpus) < manyGPUs || len(a.o.Fail)+len(a.o.Slow) > 0 {
		f, err := a.run(name, work)
		return f, nil, err
	}
	ring := strings.HasSuffix(name, "ring") && len(a.gpus) >= 4*shortRing(a)
	_, conns := work.Footprint()
	switch {
	case ring && len(a.gpus) > longRing:
		return j.estimated(a, name, work)
	case conns/int64(len(a.gpus)) >= manyPeers:
		return nil, nil, a.tooLarge(name)
	}
	most := patience
	if ring {
		most = ringTries
	}
	f, late, err := j.within(most, a, name, work)
	switch {
	case !late:
		return f, nil, err
	case ring:
		return j.estimated(a, name, work)
	}
	return nil, nil, a.tooLarge(name)
}

// within runs a job for some time; late says that it was given up then.
func (j *job) within(most time.Duration, a *asked, name string, work sim.Job) (f *sim.Found, late bool, err error) {
	began, quick := time.Now(), *a
	quick.o.Stop = func() bool { late = late || time.Since(began) > most; return late || j.stop() }
	f, err = quick.run(name, work)
	return f, late && err != nil && j.ctx.Err() == nil, err
}

// scales are algorithms whose ranks take few steps, the ones with the fewest messages first.
var scales = []string{"hierarchical", "rabenseifner", "recursive-doubling", "bruck", "tree", "binomial"}

// tooLarge refuses an algorithm and names others for the same operation.
func (a *asked) tooLarge(name string) error {
	fit := algorithms()[a.op.String()]
	others := slices.DeleteFunc(slices.Clone(scales), func(s string) bool { return s == name || !slices.Contains(fit, s) })
	text := fmt.Sprintf("%s on %s GPUs has too many messages to simulate while you wait", name, grouped(int64(len(a.gpus))))
	if len(others) > 0 {
		text += "; choose " + strings.Join(others[:min(3, len(others))], ", ") + ", or"
	} else {
		text += ";"
	}
	return fmt.Errorf("%s at most %s GPUs, or run 'weft sim collective --limit 0'", text, grouped(manyGPUs))
}

// shortRing is the number of ranks of the shorter of two rings: whole pods, after which a fabric repeats itself. Two of them
// at least, where they are small, so that the ring leaves its pod.
func shortRing(a *asked) int {
	g, pod := a.c.Graph, len(a.gpus)
	if first := g.Nodes[a.gpus[0]].Pod; first != topo.None {
		if n := slices.IndexFunc(a.gpus, func(id topo.NodeID) bool { return g.Nodes[id].Pod != first }); n > 0 {
			pod = n
		}
	}
	switch {
	case pod > 1024:
		return 512
	case pod > 256:
		return pod
	}
	return pod * max(2, (128+pod-1)/pod)
}

// estimated is the time of a long ring. Messages keep their size, so each rank more takes one step more, and the time is a
// straight line in the number of ranks. Two short rings over whole pods give the line.
func (j *job) estimated(a *asked, name string, work sim.Job) (*sim.Found, []string, error) {
	short := shortRing(a)
	var at [2]*sim.Result
	for i := range at {
		n := (i + 1) * short
		j.tell(Progress{Text: fmt.Sprintf("simulating %s on %s of %s GPUs", name, grouped(int64(n)), grouped(int64(len(a.gpus))))})
		one := *a
		one.gpus = a.gpus[:n]
		fewer, _, err := one.named(name)
		if err != nil {
			return nil, nil, err
		}
		f, err := one.run(name, sim.Job{Program: fewer.Program, Size: sameMessages(work, fewer.Program)})
		if err != nil {
			return nil, nil, err
		}
		at[i] = f.Result
	}
	times := float64(len(a.gpus)-2*short) / float64(short)
	far := func(first, second unit.Time) unit.Time { return second + unit.Time(float64(second-first)*times) }
	r := *at[1]
	r.Time = far(at[0].Time, at[1].Time)
	for k := range r.Critical {
		r.Critical[k] = far(at[0].Critical[k], at[1].Critical[k])
	}
	r.AlgBW = a.size.Per(r.Time)
	r.BusBW = r.AlgBW * unit.Rate(a.op.BusFactor(len(a.gpus)))
	note := fmt.Sprintf("An estimate: rings of %s and %s GPUs were simulated with messages of the same size, and their time was carried on to %s, within about 2%%. No messages are drawn.",
		grouped(int64(short)), grouped(int64(2*short)), grouped(int64(len(a.gpus))))
	a.estimate = true
	return &sim.Found{Algo: name, Program: work.Program, Result: &r}, []string{note}, nil
}

// sameMessages is the size of an operation of fewer ranks whose messages are as long.
func sameMessages(work sim.Job, fewer *sched.Program) unit.Bytes {
	chunks := func(p *sched.Program) int64 { return int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out))) }
	return max(1, unit.Bytes(float64(work.Size)*float64(chunks(fewer))/float64(chunks(work.Program))+.5))
}
