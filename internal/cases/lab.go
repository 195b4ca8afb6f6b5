package cases

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/tune"
)

// lab computes. Its first error sticks and makes all that follows zero, so that
// a case can be written as one expression.
type lab struct {
	c      *catalog.Catalog
	graphs map[string]*topo.Graph
	err    error
}

func newLab() *lab { return &lab{c: catalog.Default(), graphs: map[string]*topo.Graph{}} }

func (l *lab) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// preset builds a known design, once.
func (l *lab) preset(name string, params map[string]int) *topo.Graph {
	return l.graph(fmt.Sprintf("%s %v", name, params), func() (*cluster.Cluster, error) { return cluster.Preset(name, params) })
}

// file builds what a cluster file describes, once.
func (l *lab) file(text string) *topo.Graph {
	return l.graph(text, func() (*cluster.Cluster, error) { return cluster.Parse("case", []byte(text), nil) })
}

func (l *lab) graph(key string, build func() (*cluster.Cluster, error)) *topo.Graph {
	if g, ok := l.graphs[key]; ok || l.err != nil {
		return g
	}
	c, err := build()
	if err != nil {
		l.fail(err)
		return nil
	}
	l.graphs[key] = c.Graph
	return c.Graph
}

// rate is the payload of one link of a generation, one way.
func (l *lab) rate(gen string) unit.Rate {
	link, err := l.c.Link(gen)
	if err != nil {
		l.fail(err)
	}
	return link.Class(0).Rate
}

// gpus lists a graph's accelerators in its order; none where the graph could not be built.
func gpus(g *topo.Graph) []topo.NodeID {
	var list []topo.NodeID
	if g == nil {
		return nil
	}
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { list = append(list, n) })
	return list
}

// program builds an algorithm's program.
func (l *lab) program(name string, s algo.Spec) *sched.Program {
	a, err := algo.Find(name)
	if err == nil {
		var p *sched.Program
		if p, err = a.Program(s); err == nil {
			return p
		}
	}
	l.fail(err)
	return nil
}

// placed is a ring all-reduce over the first n GPUs, with as many rings as the
// machine has room for: those of the search inside a host, one for each NIC
// between hosts.
func (l *lab) placed(g *topo.Graph, n int) *sched.Program {
	if l.err != nil {
		return nil
	}
	orders := sim.Orders(g, g.First(topo.GPU, n), l.c)
	return l.program("ring", algo.Spec{Op: sched.AllReduce, Ranks: n, Channels: len(orders), Orders: orders})
}

// crossed is a ring for each GPU of a host, every host gone through alike, so that
// steps between hosts go from a rail to the next and over the spines.
func (l *lab) crossed(n, perHost int) *sched.Program {
	s := algo.Spec{Op: sched.AllReduce, Ranks: n, Channels: perHost}
	for k := range perHost {
		order := make([]sched.Rank, n)
		for i := range order {
			order[i] = sched.Rank(i/perHost*perHost + (i+k)%perHost)
		}
		s.Orders = append(s.Orders, order)
	}
	return l.program("ring", s)
}

// together simulates pairs of GPUs that exchange size bytes, all at once, and gives
// what all of them move one way.
func (l *lab) together(g *topo.Graph, size unit.Bytes, pairs ...[2]int) unit.Rate {
	p := l.sendRecv(2)
	if l.err != nil {
		return 0
	}
	var jobs []sim.Job
	for _, x := range pairs {
		jobs = append(jobs, sim.Job{Program: p, Size: size, Place: pick(g, x[0], x[1])})
	}
	res, err := sim.Run(g, jobs, sim.Options{})
	if err != nil {
		l.fail(err)
		return 0
	}
	return (unit.Bytes(len(pairs)) * size).Per(res.Time)
}

// run simulates one program; place nil puts rank i on GPU i.
func (l *lab) run(g *topo.Graph, p *sched.Program, size unit.Bytes, place []topo.NodeID, o sim.Options) *sim.Result {
	if l.err != nil {
		return &sim.Result{Time: 1}
	}
	if place == nil && p.Switches == 0 {
		place = gpus(g)[:p.Ranks]
	}
	res, err := sim.Run(g, []sim.Job{{Program: p, Size: size, Place: place}}, o)
	if err != nil {
		l.fail(err)
		return &sim.Result{Time: 1}
	}
	return res
}

// wire simulates at the rates of the links, without any overhead of software.
func (l *lab) wire(g *topo.Graph, p *sched.Program, size unit.Bytes) *sim.Result {
	return l.run(g, p, size, nil, sim.Options{})
}

// measured is the same with what transports were measured to reach and cost.
func (l *lab) measured(g *topo.Graph, p *sched.Program, size unit.Bytes, t sim.Transport) *sim.Result {
	return l.run(g, p, size, nil, sim.Options{Measured: true, Costs: l.costs(g), Transport: t})
}

// costs is what software adds on a graph's GPUs.
func (l *lab) costs(g *topo.Graph) sim.Costs {
	if l.err != nil {
		return sim.Costs{}
	}
	return sim.DefaultCosts(g, l.c)
}

// send simulates every GPU of a list sending size bytes to the next, the last to
// the first: all at once.
func (l *lab) send(g *topo.Graph, size unit.Bytes, o sim.Options, at ...int) *sim.Result {
	place := pick(g, at...)
	return l.run(g, l.sendRecv(len(place)), size, place, o)
}

// nccl is what NCCL chooses and how long it takes by the fitted model.
func (l *lab) nccl(g *topo.Graph, n int, op sched.Collective, size unit.Bytes) tune.Prediction {
	if m := l.ncclModel(g, n); m != nil {
		return m.Predict(op, size)
	}
	return tune.Prediction{}
}

func (l *lab) ncclModel(g *topo.Graph, n int) *tune.NCCL {
	if l.err != nil {
		return nil
	}
	m, err := tune.NewNCCL(g, gpus(g)[:n], l.c, tune.NCCLOptions{})
	if err != nil {
		l.fail(err)
		return nil
	}
	return m
}

// proof is the verifier's report on a program.
func (l *lab) proof(p *sched.Program) *verify.Report {
	if l.err != nil {
		return &verify.Report{}
	}
	r, err := verify.Program(p)
	if err != nil {
		l.fail(err)
		return &verify.Report{}
	}
	return r
}

func ms(t unit.Time) float64   { return t.Seconds() * 1e3 }
func us(t unit.Time) float64   { return t.Microseconds() }
func gbps(r unit.Rate) float64 { return float64(r) / 1e9 }

// sendRecv is every rank sending to the next, the last to the first.
func (l *lab) sendRecv(n int) *sched.Program {
	return l.program("ring", algo.Spec{Op: sched.SendRecv, Ranks: n})
}

// block is a ring of eight for a collective on blocks.
func (l *lab) block(op sched.Collective) *sched.Program {
	return l.program("ring", algo.Spec{Op: op, Ranks: 8})
}
