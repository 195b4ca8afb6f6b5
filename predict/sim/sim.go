// Package sim says how long a program takes on a topology.
//
// It is the world of time behind collective/step: an action that sends becomes a flow
// of bytes over the exact links of its route, flows share links max-min fairly,
// and a message arrives when its last byte does. What a program means stays
// step's business; sim never looks at one.
//
//	ready ──► message there and slot free ──► overhead ──► flow at its share ──► done
//	                                                                       └─ latency ──► arrival
//
// A receive that reduces takes the memory's time besides, streamed with the flow
// where it also sends. Time is in picoseconds; rates, capacities and shares are
// whole numbers, so that sums do not depend on the order of their terms and a
// result has the same bits however it was reached.
//
// Two things are folded, and both are exact, not estimates:
//
//   - Ranks. If renaming rank r to r+p leaves the program (step.Turns) and the
//     pattern of routes as they are, ranks that differ by a multiple of p do the
//     same at the same time, and p of them are simulated. The routes of all flows
//     are compared: colour every link by its capacity and by which flows, up to
//     the renaming, cross it; if flows that correspond cross links of the same
//     colours, the partition is equitable and max-min rates are equal in it. Where
//     renaming hosts leaves the fabric itself as it is (orbits), the routes of one
//     rank of each orbit are enough.
//   - Rounds. When the whole state (places in the program, flows with what is
//     left of them, messages under way, all relative to now) comes back with only
//     loop counters higher, the rounds ahead are skipped at once; step says how
//     many there are (step.Machine.Room).
//
// Options.Unfolded turns both off; the results are the same to the picosecond.
//
// Two more things make it quick, exact as well: links that could carry all their
// flows at the most that the rest of their ways allows are left out of the sharing
// (world.prune), and where after that no two flows share a link, times follow from
// one another without events (lanes); where a part failed and few flows share, only
// these have events. An all-reduce on 131,072 GPUs of three tiers
// takes half a second so, on 16,384 less than a tenth (BenchmarkSim).
//
// What folds little: one slow or dead part among very many ranks makes them all
// different, and hashed collisions do the same; then every rank is simulated. Very
// many ranks around a bad part are simulated with the same part bad in many hosts, where they fold
// again (Result.Every), and rings with fewer ranks (Fewer). Best leaves out what is slower even without the fault, and
// what takes very many actions, and says so.
package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Routing says how switches choose among equal ways.
type Routing uint8

// The ways to route.
const (
	Adaptive Routing = iota // every flow is spread evenly over all equal ways
	ECMP                    // every flow takes one way, by the hash of its ends and the seed
	Flowlets                // the same, with another hash after every gap in the flow
)

// Transport says how bytes pass between a GPU and its NIC.
type Transport uint8

// The transports.
const (
	RDMA Transport = iota // the NIC reads and writes GPU memory; no copy, no kernel
	TCP                   // sockets: the CPU copies every byte twice a side
)

// Options says how to simulate. The zero value is a healthy fabric at wire
// rates with adaptive routing, RDMA and no overhead.
type Options struct {
	Catalog    *catalog.Catalog // latencies of chips, efficiencies; nil for the built-in one
	Measured   bool             // links reach the efficiency measured for their kind rather than the wire rate
	Costs      Costs            // overheads of software and memory; see DefaultCosts
	Routing    Routing
	Congestion Congestion // what a full link does to flows that do not pass it
	Seed       uint64     // what ECMP hashes with
	QPs        int        // queue pairs that a flow between NICs is split over evenly, which ECMP hashes one by one; 0 for one
	PXN        bool       // between rails, go over the accelerator network of the sender's host first
	Transport  Transport
	Fail       []string // parts that are dead: a node "leaf3", "n7:nic2", a host "n7", a port "leaf3:p5" or a link as LinkName prints it
	Slow       []Slow   // parts at a fraction of their rate; a GPU's factor slows its overhead and memory as well
	Unfolded   bool     // simulate every rank and every round
	Wide       bool     // links between switches carry whatever comes: a fabric that blocks nobody
	ordered    bool     // and everything in the order of time, without lanes: what tests compare with
	listed     bool     // prove symmetry by the routes of all ranks, without orbits: what tests compare with
	shorten    bool     // shorten rings that are not too long, for tests
	ways       ways     // how what two nodes send one another is split, where that is not by the shortest ways
	Trace      int      // spans to record at most, of ranks spread over the job; 0 for none

	// TraceRanks is how many ranks a trace shows at most; 0 for 16.
	TraceRanks int

	// Processors are the cores that ranks share, if ranks are processes whose work is theirs; nil for GPUs, of which each has its own.
	// With them Costs but Net count for nothing.
	Processors *Processors

	// Deadline is a simulated time after which the jobs are given up with ErrLate;
	// 0 for never.
	Deadline unit.Time

	// Stop, if set, is asked now and then; once it says yes, the jobs are given up with ErrLate.
	Stop func() bool

	// Memory is about how much a simulation may allocate beyond the graph; 0 for DefaultMemory. What needs more fails
	// with a MemoryError.
	Memory unit.Bytes

	// Progress, if set, is called now and then with the simulated time and the
	// number of actions carried out.
	Progress func(now unit.Time, actions int64)
}

// ways are the links between pairs of nodes.
type ways map[[2]topo.NodeID][]topo.Use

// Slow is a part that reaches only a fraction of its rate.
type Slow struct {
	Name   string
	Factor float64
}

// ErrLate means that jobs were not done by Options.Deadline, or were stopped.
var ErrLate = errors.New("not done by the deadline")

// Job is one collective to simulate.
type Job struct {
	Program *sched.Program
	Size    unit.Bytes    // of the larger of input and output, as nccl-tests counts
	Place   []topo.NodeID // where each rank is; nil means DefaultPlace
	Start   unit.Time     // when its ranks begin
	Repeat  int           // operations, if more than one: a rank begins the next when its own part of one is done

	Fewer *Fewer // nil if it is simulated with all its ranks, however many
}

// Fewer gives the same algorithm for fewer ranks. A job around a bad part that takes too long to simulate is simulated
// with it at three smaller numbers of ranks; see Result.Shortened.
type Fewer struct {
	Program func(ranks int) (*sched.Program, error)
	Grain   int // the ranks of a domain: Program takes multiples of it; 0 for any number
}

// maxSize is the largest collective that is simulated: 1 PiB less a byte would
// already exceed what any cluster holds.
const maxSize = unit.Bytes(1) << 50

// maxRepeat bounds the operations of a job.
const maxRepeat = 1 << 16

// Collective simulates one program on its own.
func Collective(g *topo.Graph, p *sched.Program, size unit.Bytes, o Options) (*Result, error) {
	return Run(g, []Job{{Program: p, Size: size}}, o)
}

// Run simulates jobs side by side; they contend for links.
func Run(g *topo.Graph, jobs []Job, o Options) (*Result, error) {
	f, err := NewFabric(g, o)
	if err != nil {
		return nil, err
	}
	return f.Run(jobs)
}

// Fabric is a graph prepared for several simulations with the same options. On a large graph that takes longer than a small simulation.
type Fabric struct{ net *network }

// NewFabric prepares a graph.
func NewFabric(g *topo.Graph, o Options) (*Fabric, error) {
	net, err := networkOf(g, o)
	if err != nil {
		return nil, err
	}
	return &Fabric{net}, nil
}

// Run simulates jobs side by side, as the function Run does.
func (f *Fabric) Run(jobs []Job) (*Result, error) {
	if len(jobs) == 0 {
		return nil, fmt.Errorf("there is no job to simulate")
	}
	g := f.net.g
	if f.net.whole != nil {
		g = f.net.whole
	}
	full := make([]Job, len(jobs))
	for i, j := range jobs {
		var err error
		if full[i], err = j.placed(g); err != nil {
			return nil, err
		}
	}
	r, err := f.net.run(full, f.net.o.Deadline)
	return r, f.net.unreached(full, err)
}

// unreached says which rank stands on a dead GPU, if that is why another cannot be reached.
func (n *network) unreached(jobs []Job, err error) error {
	if !errors.Is(err, topo.ErrUnreachable) || n.whole == nil {
		return err
	}
	for _, name := range n.o.Fail {
		bad, lookup := find(n.whole, name)
		if lookup != nil {
			continue
		}
		for _, j := range jobs {
			for r, at := range j.Place {
				if n.whole.Nodes[at].Kind == topo.GPU && slices.Contains(bad.nodes, at) {
					return fmt.Errorf("rank %d stands on %s, which is dead; place the ranks on others: %w", r, n.whole.NodeName(at), err)
				}
			}
		}
	}
	return err
}

// plain reports whether flows keep all links of their way, each by itself.
func (o *Options) plain() bool { return o.Congestion != FairShares || o.Routing == Flowlets }

// networkOf is a graph as a simulation with options sees it: without what failed.
func networkOf(g *topo.Graph, o Options) (*network, error) {
	if o.Catalog == nil {
		o.Catalog = catalog.Default()
	}
	if o.Processors != nil {
		if err := o.Processors.check(g); err != nil {
			return nil, err
		}
		o.Unfolded, o.Costs.Launch = true, 0
	}
	if o.plain() {
		o.Unfolded, o.ordered = true, true
	}
	whole := g
	if len(o.Fail) > 0 {
		cut, err := without(g, o.Fail)
		if err != nil {
			return nil, err
		}
		g = cut
	}
	n, err := newNetwork(g, o)
	if err == nil && len(o.Fail)+len(o.Slow) > 0 {
		n.whole = whole
	}
	return n, err
}

// run simulates jobs that are placed. A network may run several sets of jobs one
// after another, and finds the routes that they share once.
func (n *network) run(jobs []Job, deadline unit.Time) (*Result, error) {
	n.o.Deadline = deadline
	if r, err := n.repeatFaults(jobs); r != nil || err != nil {
		return r, err
	}
	return n.runExactly(jobs, deadline)
}

// runExactly is run without repeating bad parts.
func (n *network) runExactly(jobs []Job, deadline unit.Time) (*Result, error) {
	n.o.Deadline = deadline
	if err := n.soonest(jobs, deadline, manyPeers); err != nil {
		return nil, err
	}
	w, err := newWorld(n, jobs, n.o)
	if err != nil {
		return nil, err
	}
	if parts := w.apart(); len(parts) > 1 {
		return n.runApart(jobs, parts, deadline)
	}
	if err := w.inTime(deadline); err != nil {
		return nil, err
	}
	if r, err := w.short(jobs, deadline); r != nil || err != nil {
		return r, err
	}
	if err := w.many(jobs[0]); err != nil {
		return nil, err
	}
	if jobs[0].Program == n.bounded {
		w.keepPace(n.bounds)
	}
	err = w.run()
	n.work += w.actions - w.folded
	if err != nil {
		return nil, err
	}
	return w.result(), nil
}

// many refuses a job that has very many actions around a bad part, where Best tries many algorithms.
func (w *world) many(j Job) error {
	if !w.net.quick || w.sym != nil || w.net.whole == nil {
		return nil
	}
	if work := j.actions(); work > maxBroken {
		return manyError(work)
	}
	return nil
}

// placed checks a job and says where its ranks are.
func (j Job) placed(g *topo.Graph) (Job, error) {
	if err := j.check(); err != nil {
		return j, err
	}
	if j.Place == nil {
		place, err := DefaultPlace(g, j.Program)
		if err != nil {
			return j, err
		}
		j.Place = place
	}
	if len(j.Place) != j.Program.Ranks+j.Program.Switches {
		return j, fmt.Errorf("%s has %d ranks and %d switches, but %d places", j.Program.Name, j.Program.Ranks, j.Program.Switches, len(j.Place))
	}
	return j, nil
}

// chunk is the bytes of one chunk of the program's buffers.
func (j Job) chunk() int64 {
	if j.Program.Op == sched.Barrier {
		return 1 // a barrier moves no data, whatever the size
	}
	chunks := int64(max(j.Program.NumChunks(sched.In), j.Program.NumChunks(sched.Out)))
	return (int64(j.Size) + chunks - 1) / chunks
}

func (j Job) check() error {
	switch {
	case j.Program == nil:
		return fmt.Errorf("a job has no program")
	case j.Program.Ranks < 2:
		return fmt.Errorf("%s has %d rank; a collective needs at least two to take any time", j.Program.Name, j.Program.Ranks)
	case j.Size <= 0:
		return fmt.Errorf("size %s: a collective moves at least one byte", j.Size)
	case j.Size >= maxSize:
		return fmt.Errorf("size %d is too large; the limit is %d bytes", int64(j.Size), int64(maxSize-1))
	case j.Repeat < 0 || j.Repeat > maxRepeat:
		return fmt.Errorf("%s runs %d times; at most %d expected", j.Program.Name, j.Repeat, maxRepeat)
	case j.Start < 0:
		return fmt.Errorf("%s starts at %s, before time begins", j.Program.Name, j.Start)
	}
	return nil
}
