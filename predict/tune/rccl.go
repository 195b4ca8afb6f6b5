package tune

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// RCCL is a model of AMD's library on hosts whose GPUs are joined one by one, as MI300X to MI355X are. Public measurements are few
// (docs/reference/tables/rccl.md), so it has few constants:
//
//	GPU ──xGMI── GPU      one link to each of the others; rings carry what `Used` links do together
//
// A library takes the quickest of several ways to do the same, so the time is the least of theirs.
type RCCL struct {
	f    *facts
	link float64 // GB/s one way of an xGMI link that are data
}

// rcclWay is one way to do a collective inside a node: us = Floor + Hop*steps + bytes/(rate*Share).
type rcclWay struct {
	Floor, Hop, Share float64
}

// rcclFit holds the constants; TestRCCLConstantsAreTheFit gives them back.
type rcclFit struct {
	Used [9]float64 // by the GPUs of a node: how many links' data its rings carry

	LL, Some, All rcclWay // rings: small messages; some channels; all channels
	Eight         rcclWay // what RCCL has for small messages of all eight GPUs (MSCCL)
	Send          float64 // share of a link's data that an all-to-all reaches

	Net network // between nodes
}

// rcclApart is the size from which the model answers for several nodes: for smaller ones public logs differ by up to five times.
const rcclApart = 64 << 20

// eightFrom is the size from which RCCL has its own way for all eight GPUs.
const eightFrom = 1 << 10

// NewRCCL derives the model of some GPUs.
func NewRCCL(g *topo.Graph, gpus []topo.NodeID, c *catalog.Catalog) (*RCCL, error) {
	set := slices.Clone(gpus)
	slices.Sort(set)
	if len(set) < 2 {
		return nil, fmt.Errorf("RCCL's model needs two GPUs or more")
	}
	m := &RCCL{f: &facts{ranks: len(set)}}
	outline := OutlineOf(g)
	groups := nodesOf(g, set, outline)
	m.f.nodes, m.f.perNode = len(groups), len(groups[0])
	for _, group := range groups {
		if len(group) != m.f.perNode {
			return nil, fmt.Errorf("its nodes have %d and %d of the GPUs; all that was measured has as many on each", m.f.perNode, len(group))
		}
		if err := m.mesh(g, group, c); err != nil {
			return nil, err
		}
	}
	if m.f.nodes == 1 {
		return m, nil
	}
	if m.f.perNode != 8 {
		return nil, fmt.Errorf("%d GPUs a node; between nodes RCCL was measured with all eight of each only", m.f.perNode)
	}
	m.f.network(g, groups[0], c)
	ports := portsOf(g, groups)
	m.f.load, m.f.blind = loadOf(g, ports, outline.top), unknown(g, groups, ports)
	switch {
	case len(m.f.nics) == 0:
		return nil, fmt.Errorf("the hosts have no NIC that RCCL could use between them")
	case m.f.blind != "":
		return nil, fmt.Errorf("%s", m.f.blind)
	}
	return m, nil
}

// mesh takes in one node's GPUs, which have a link to each other.
func (m *RCCL) mesh(g *topo.Graph, group []topo.NodeID, c *catalog.Catalog) error {
	for _, a := range group {
		gpu, err := c.GPU(g.Nodes[a].Model)
		if err != nil || c.Links[gpu.Link].Kind != topo.XGMI {
			return fmt.Errorf("%s is a %s; the model covers MI300X, MI325X, MI350X and MI355X, of which measurements are public",
				g.NodeName(a), g.Nodes[a].Model)
		}
		if err := m.joins(g, a, group, cmp.Or(c.Links[gpu.Link].Efficiency, 1)); err != nil {
			return err
		}
	}
	m.f.model = g.Nodes[group[0]].Model
	return nil
}

// joins takes in the links of a GPU to the others of its node. data is what of a link's wire rate is data; RCCL counts with it, too.
func (m *RCCL) joins(g *topo.Graph, a topo.NodeID, group []topo.NodeID, data float64) error {
	joined := map[topo.NodeID]float64{}
	for _, e := range g.Edges(a) {
		if g.Class(e.Link).Kind == topo.XGMI {
			joined[e.Peer] += float64(g.Rate(e.Link)) / 1e9
		}
	}
	for _, b := range group {
		switch rate := joined[b] * data; {
		case a == b:
		case rate == 0:
			return fmt.Errorf("%s and %s have no link; RCCL was measured where every two GPUs have one", g.NodeName(a), g.NodeName(b))
		case m.link == 0 || rate < m.link:
			m.link = rate
		}
	}
	return nil
}

// rcclOps are the collectives that RCCL was measured with, and reduce-scatter, an all-gather backwards.
var rcclOps = []sched.Collective{sched.AllReduce, sched.AllGather, sched.ReduceScatter, sched.AllToAll}

// time is how long a collective takes with one process for each GPU.
func (x *rcclFit) time(m *RCCL, op sched.Collective, bytes float64) (us float64, way, limit string) {
	us, way, limit = x.inside(m, op, bytes)
	if m.f.nodes == 1 {
		return us, way, limit
	}
	f := m.f
	carried, limit := f.crossing(op, ring, bytes)/(f.nicWire()*x.Net.Share)/1e3, "nic"
	if w := f.fabric(op, ring, bytes) / x.Net.Share; w > carried {
		carried, limit = w, "fabric"
	}
	part := 1 - 1/float64(f.perNode) // a ring leaves a node once: of its hops there one goes by a NIC
	if w := x.ringWork(m, op, bytes) * part; w > carried {
		carried, limit = w, "xgmi"
	}
	first := x.LL.Floor + x.Net.Hop*math.Ceil(math.Log2(float64(f.nodes)))
	if first > carried {
		limit = "latency"
	}
	return cost.Join(first, carried, x.Net.Overlap), "Ring", limit
}

// ringWork is how long the links are busy with a ring's bytes, us.
func (x *rcclFit) ringWork(m *RCCL, op sched.Collective, bytes float64) float64 {
	return bytes * op.BusFactor(m.f.ranks) / (m.link * x.Used[m.f.perNode]) / 1e3
}

// inside is time on one node.
func (x *rcclFit) inside(m *RCCL, op sched.Collective, bytes float64) (us float64, way, limit string) {
	n := m.f.perNode
	if op == sched.AllToAll {
		work := bytes / float64(n) / (m.link * x.Send) / 1e3
		return x.LL.Floor + work, "P2P", "xgmi"
	}
	work := bytes * op.BusFactor(n) / (m.link * x.Used[n]) / 1e3 // of this node alone
	hops := steps(op, n)
	us = math.Inf(1)
	try := func(w rcclWay, name string) {
		fixed, moved := w.Floor+w.Hop*hops, work/w.Share
		if fixed+moved >= us {
			return
		}
		us, way, limit = fixed+moved, name, "xgmi"
		if fixed > moved {
			limit = "latency"
		}
	}
	try(x.LL, "Ring")
	try(x.Some, "Ring")
	try(x.All, "Ring")
	if n == 8 && op == sched.AllReduce && bytes >= eightFrom {
		try(x.Eight, "MSCCL")
	}
	return us, way, limit
}

// kind is which of rcclErrors belong to the model's GPUs.
func (m *RCCL) kind() int {
	switch {
	case m.f.nodes > 1:
		return 2
	case m.f.ranks < 8:
		return 1
	}
	return 0
}

// why says what keeps the model from an answer; empty if nothing does.
func (m *RCCL) why(op sched.Collective, bytes unit.Bytes) string {
	switch {
	case !slices.Contains(rcclOps, op):
		return fmt.Sprintf("no measurement of %s by RCCL is public that the model could be held to; it answers for %s", op, opList(rcclOps))
	case m.f.nodes > 1 && op == sched.AllToAll:
		return "no measurement of it between nodes is public"
	case m.f.nodes > 1 && bytes < rcclApart:
		return "between nodes the model answers from 64 MiB on: public logs of smaller messages differ by up to five times"
	}
	return ""
}

// Predict gives the time of a collective over bytes (the larger buffer).
func (m *RCCL) Predict(op sched.Collective, bytes unit.Bytes) (Prediction, error) {
	if why := m.why(op, bytes); why != "" {
		return Prediction{}, errors.New(why)
	}
	us, way, limit := rcclFitted.time(m, op, max(float64(bytes), 0))
	p := Prediction{Choice: Choice{Op: op.String(), Algo: way, Limit: limit}.timed(op, m.f.ranks, bytes, us)}
	e := rcclErrors[m.kind()][bandOf(float64(bytes))]
	p.Error, p.Within = e.Median, e.P90
	p.Nearest = fmt.Sprintf("%d points in %d logs", e.Points, e.Logs)
	if op != sched.AllReduce {
		p.Nearest += ", nearly all of all-reduce"
	}
	return p, nil
}

// rcclError sums up the errors of one kind of points, each left out of the fit with all others of its log.
type rcclError struct {
	Points, Logs int
	Median, P90  float64 // the latter with every log weighing the same, and no less than others of its sizes where logs are few
}
