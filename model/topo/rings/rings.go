// Package rings finds, for any set of GPUs, the rings and trees over which a
// collective moves the most bytes, and the bus bandwidth they add up to.
//
//	V100 cube mesh, GPUs 0 to 3          ring 0→1→2→3→0 and its reverse,
//	   0 ── 1                            ring 0→2→1→3→0 …: four in all,
//	   ║╲  ╱│      ═ two links           since GPU 0 has four links into the set
//	   ║ ╲╱ │      ─ one link
//	   ║ ╱╲ │                            tree 3→0, 2→3, 1→2 …: three in all,
//	   3 ══ 2 (and 1 ══ 2)               since nine links make three trees of three
//
// A ring is a directed Hamiltonian cycle. A physical link carries one ring each
// way, so a link of Count 2 carries two each way, and a pair of GPUs joined by
// one link has one ring, there and back. The most rings that fit is found by a
// search that proves its answer: no more fit through the smallest cut, and the
// search either fills that bound or exhausts what lies between. A tree carries
// the reduction up and the result down, one link both ways, and the most trees
// that fit is found exactly by matroid partition.
//
// GPUs behind NVSwitches take any order; rates then follow from how the links
// to the switches, and between them, are shared.
//
// Every edge of a ring is one link or one way through switches. NVLink by way
// of a third GPU is not used, as NCCL does not use it for rings. Nor are rings
// made of both NVLink and PCIe: such a ring is no faster than its PCIe hops, and
// a PCIe ring in tree order already crosses every PCIe link only once each way.
package rings

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Options bounds the search; the zero value gives the defaults.
type Options struct {
	Budget int    // steps for each number of rings tried, one step an edge; default 4,000,000, about a second
	Seed   uint64 // of the restarts that look for rings before the exhaustive search
}

const defaultBudget = 4_000_000

// Medium says over what a plan's bytes move.
type Medium string

// The media.
const (
	NVLink   Medium = "nvlink"   // direct links between GPUs
	NVSwitch Medium = "nvswitch" // NVLinks through switches
	XGMI     Medium = "xgmi"     // AMD Infinity Fabric between accelerators
	ICI      Medium = "ici"      // links between TPU chips
	PCIe     Medium = "pcie"     // the PCIe tree and the sockets of a host
	Socket   Medium = "smp"      // sockets alone, where GPUs hang on them without PCIe
)

// Ring is a directed cycle through all GPUs of the set.
type Ring struct {
	Order []topo.NodeID // starts with the GPU that the search chose; the last sends to the first
	Rate  unit.Rate     // on the wire
	Uses  []topo.Use    // edge by edge in the order of Order
}

// Tree is a spanning tree of the set: data is reduced towards the root and
// broadcast back.
type Tree struct {
	Root   topo.NodeID
	Parent []topo.NodeID // of Result.GPUs, index by index; None for the root
	Depth  int           // edges from the root to the farthest GPU
	Rate   unit.Rate     // on the wire, each way
	Uses   []topo.Use    // child to parent, by child in the order of Result.GPUs; the way down is the reverse
}

// Bound is what no set of rings can exceed.
type Bound struct {
	Rings int       // 0 where links are shared and rings are not counted
	Rate  unit.Rate // on the wire
	Why   string
}

// Plan is a set of rings and one of trees over one medium. Either may be empty.
type Plan struct {
	Medium Medium
	Rings  []Ring
	Trees  []Tree

	// Bus bandwidth of an all-reduce, in the sense of nccl-tests: bytes of the
	// buffer times 2(n-1)/n over the time.
	RingBus, TreeBus           unit.Rate // on the wire
	RingExpected, TreeExpected unit.Rate // with the efficiency measured for the generation

	Bound Bound  // of the rings
	Exact bool   // no better set of rings exists, proven
	Steps int    // what the search took
	Why   string // what limits the rings, or why there are none

	// Unmeasured is the generation of the links that set the pace when nobody has
	// measured what a ring reaches of their rate; what is expected is then what is on the wire.
	Unmeasured string
}

// Bus is the larger expected bus bandwidth of the two shapes.
func (p *Plan) Bus() unit.Rate { return max(p.RingExpected, p.TreeExpected) }

// Best names the shape that Bus belongs to: "ring" or "tree".
func (p *Plan) Best() string {
	if p.TreeExpected > p.RingExpected {
		return "tree"
	}
	return "ring"
}

// Result is what Search finds: the plan with the largest Bus (of two within 1%
// the one that leaves PCIe alone), and the others.
type Result struct {
	GPUs []topo.NodeID // the set, in the graph's order
	Plan
	Others []Plan
}

// plans tries every medium, and says of those that join the GPUs in no way why they do not.
func (s *search) plans() (plans []Plan, reasons []error) {
	for _, try := range []func() (Plan, error){s.switched, s.meshed, s.hosted} {
		p, err := try()
		if err != nil {
			reasons = append(reasons, err)
			continue
		}
		plans = append(plans, p)
	}
	return plans, reasons
}

// bestOf is the number of the best plan. The accelerators' own network comes first, and a tie leaves the host's links free.
func bestOf(plans []Plan) (best int) {
	for i := range plans {
		if plans[i].Bus() > plans[best].Bus()*1.01 {
			best = i
		}
	}
	return best
}

// Search finds the best rings and trees over a set of GPUs of one host or of
// one accelerator network. The same arguments give the same result.
func Search(g *topo.Graph, gpus []topo.NodeID, c *catalog.Catalog, o Options) (*Result, error) {
	if o.Budget <= 0 {
		o.Budget = defaultBudget
	}
	set := slices.Clone(gpus)
	slices.Sort(set)
	if err := check(g, set); err != nil {
		return nil, err
	}
	s := &search{g: g, c: c, o: o, gpus: set}
	plans, reasons := s.plans()
	best := bestOf(plans)
	if len(plans) == 0 || plans[best].Bus() == 0 {
		for _, p := range plans {
			reasons = append(reasons, errors.New(p.Why))
		}
		return nil, fmt.Errorf("no ring or tree joins %s: %w", s.names(set), errors.Join(reasons...))
	}
	r := &Result{GPUs: set, Plan: plans[best]}
	for i, p := range plans {
		if i != best && p.Bus() > 0 {
			r.Others = append(r.Others, p)
		}
	}
	return r, nil
}

// check refuses sets without a ring. The set must be sorted: neighbours that are equal are one GPU twice.
func check(g *topo.Graph, set []topo.NodeID) error {
	for i, n := range set {
		if n < 0 || int(n) >= len(g.Nodes) {
			return fmt.Errorf("node number %d; the graph has %d nodes", n, len(g.Nodes))
		}
		if g.Nodes[n].Kind != topo.GPU {
			return fmt.Errorf("%s is a %s; rings join GPUs", g.NodeName(n), g.Nodes[n].Kind)
		}
		if i > 0 && set[i-1] == n {
			return fmt.Errorf("%s is named twice; a ring visits a GPU once", g.NodeName(n))
		}
	}
	if len(set) < 2 {
		return fmt.Errorf("%d GPUs; a ring needs at least 2", len(set))
	}
	return nil
}

// search is one call's state.
type search struct {
	g    *topo.Graph
	c    *catalog.Catalog
	o    Options
	gpus []topo.NodeID
}

// treeShare is what a tree reaches of the ring's efficiency on the same links:
// an inner GPU receives, adds and sends in one pass. NCCL's cost model (2.30.7,
// tuning) takes the same 0.92.
const treeShare = 0.92

// efficiency is what a large ring transfer reaches of a class's rate; 1 where nobody measured.
func (s *search) efficiency(l topo.LinkID) float64 {
	if s.c == nil {
		return 1
	}
	if e := s.c.Links[s.g.Class(l).Gen].Efficiency; e > 0 {
		return e
	}
	return 1
}

// unmeasured gives the generation of a link whose efficiency is not known, else nothing.
func (s *search) unmeasured(l topo.LinkID) string {
	gen := s.g.Class(l).Gen
	if s.c == nil || s.c.Links[gen].Efficiency <= 0 {
		return gen
	}
	return ""
}

// name is a GPU's name, short where all of the set are in one host.
func (s *search) name(n topo.NodeID) string { return shortName(s.g, n, s.oneHost()) }

func shortName(g *topo.Graph, n topo.NodeID, one bool) string {
	if one {
		return g.Nodes[n].Name
	}
	return g.NodeName(n)
}

func oneHost(g *topo.Graph, gpus []topo.NodeID) bool {
	for _, n := range gpus {
		if g.Nodes[n].Host == topo.None || g.Nodes[n].Host != g.Nodes[gpus[0]].Host {
			return false
		}
	}
	return true
}

func (s *search) oneHost() bool { return oneHost(s.g, s.gpus) }

// names lists GPUs, at most eight of them.
func (s *search) names(list []topo.NodeID) string {
	text := ""
	for i, n := range list {
		if i == 8 {
			return fmt.Sprintf("%s … (%d GPUs)", text, len(list))
		}
		if i > 0 {
			text += " "
		}
		text += s.name(n)
	}
	return text
}

// load adds up, per directed link, how many times over the set's bytes pass it.
type load struct {
	at   map[way]float64
	list []way // in order of first use
}

type way struct {
	link    topo.LinkID
	forward bool
}

func newLoad() *load { return &load{at: map[way]float64{}} }

func (l *load) add(uses []topo.Use, times float64, reverse bool) {
	for _, u := range uses {
		w := way{u.Link, u.Forward != reverse}
		if _, seen := l.at[w]; !seen {
			l.list = append(l.list, w)
		}
		l.at[w] += times * float64(u.Share)
	}
}

// rate is what every use gets when the most loaded link is full, on the wire
// and as measured, and that link.
func (s *search) rate(l *load) (wire, expected unit.Rate, worst way) {
	for i, w := range l.list {
		full := s.g.Rate(w.link) / unit.Rate(l.at[w])
		if i == 0 || full < wire*(1-1e-6) {
			wire, worst = full, w
		}
		if e := full * unit.Rate(s.efficiency(w.link)); i == 0 || e < expected {
			expected = e
		}
	}
	return exact(wire), exact(expected), worst
}

// exact rounds to seven digits. Shares are single-precision numbers: a third of
// the bytes over a third of the links is not quite the whole rate.
func exact(r unit.Rate) unit.Rate {
	if r <= 0 {
		return r
	}
	step := math.Pow(10, math.Floor(math.Log10(float64(r)))-6)
	return unit.Rate(math.Round(float64(r)/step) * step)
}

// direction names a directed link by its ends.
func (s *search) direction(w way) string {
	from, to := s.g.Links[w.link].Ends(w.forward)
	return s.name(from) + " → " + s.name(to)
}
