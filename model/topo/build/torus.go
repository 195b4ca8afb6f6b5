package build

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Torus is a grid of switches that closes round in every dimension, with Ports
// NIC ports at each. Switch i stands at x = i mod X, y = i/X mod Y, and so on.
//
//	┌─ s0 ── s1 ── s2 ─┐      every row and every column is a ring;
//	│   │     │     │  │      a dimension of two has one link, not two
//	└───┼─────┼─────┼──┘
//	   s3 ── s4 ── s5
type Torus struct {
	Name    string
	NICs    []string
	Service bool
	Dims    []int
	Ports   int // NIC ports a switch
	Model   string
	Link    string // of the links to hosts; empty: what the NIC and the switch can both do
}

func (x Torus) describe() (string, []string, bool) { return x.Name, x.NICs, x.Service }

// checkDims gives the number of places, or says what is wrong.
func checkDims(dims []int) (int, error) {
	if len(dims) < 1 || len(dims) > 6 {
		return 0, fmt.Errorf("a torus has 1 to 6 dimensions, not %d; write dims: [4, 4, 4]", len(dims))
	}
	n := 1
	for _, d := range dims {
		if d < 1 || d > 1<<20 {
			return 0, fmt.Errorf("a dimension of %d in %v; it must be at least 1", d, dims)
		}
		if n *= d; n > 1<<20 {
			return 0, fmt.Errorf("torus %v has more than %d places", dims, 1<<20)
		}
	}
	return n, nil
}

// neighbours calls f for each link of a torus: from place i to place j, one step
// up in dimension dim.
func neighbours(dims []int, f func(i, j, dim int)) {
	places := 1
	for _, d := range dims {
		places *= d
	}
	for i := range places {
		stride := 1
		for dim, d := range dims {
			x := i / stride % d
			if d > 2 || d == 2 && x == 0 {
				f(i, i+((x+1)%d-x)*stride, dim)
			}
			stride *= d
		}
	}
}

// fit refuses a torus whose switches lack the ports for their hosts and for two neighbours in each dimension, or whose
// places are too few for all NICs.
func (x Torus) fit(model string, radix, nics, per, places int) error {
	if per < 1 || per > 1<<12 {
		return fmt.Errorf("ports is %d; a switch of a torus needs at least one for hosts", per)
	}
	if need := per + 2*len(x.Dims); need > radix {
		return fmt.Errorf("a switch needs %d ports for hosts and %d for its neighbours, and %s has %d", per, 2*len(x.Dims), model, radix)
	}
	if nics > per*places {
		return fmt.Errorf("%d NICs do not fit torus %v with %d a switch: %d fit; raise dims or ports", nics, x.Dims, per, per*places)
	}
	return nil
}

// lay builds a torus of switches: each has its hosts' ports first, then two per dimension.
func (x Torus) lay(c *catalog.Catalog, prefix string, hosts []party) (*layout, error) {
	places, err := checkDims(x.Dims)
	if err != nil {
		return nil, err
	}
	sw, err := c.Switch(x.Model)
	if err != nil {
		return nil, err
	}
	l := &layout{fabric: topo.Fabric{Family: topo.Torus, Dims: x.Dims}, rail: func(int, int) int16 { return topo.None }}
	up, radix, err := l.flat(c, sw, x.Link, hosts)
	if err != nil {
		return nil, err
	}
	first, total := starts(hosts)
	per := x.Ports
	if per == 0 {
		per = ceil(total, places)
	}
	if err := x.fit(sw.Name, radix, total, per, places); err != nil {
		return nil, err
	}
	for i := range places {
		n := topo.Part(topo.Switch, topo.None, fmt.Sprintf("%ssw%d", prefix, i))
		n.Tier, n.Ports, n.Model, n.Pos = 1, uint16(radix), sw.Name, int32(i)
		l.nodes = append(l.nodes, n)
	}
	l.classes = []topo.Class{up}
	neighbours(x.Dims, func(i, j, dim int) {
		w := wire{int32(i), int32(j), uint16(per + 2*dim + 1), uint16(per + 2*dim + 2), 0}
		if j < i {
			w.a, w.b, w.aport, w.bport = w.b, w.a, w.bport, w.aport
		}
		l.wires = append(l.wires, w)
	})
	sortWires(l.wires)
	l.attach = func(group, host, nic int, to []end) []end {
		t := first(group, host) + nic
		return append(to, end{int32(t / per), uint16(t%per + 1)})
	}
	l.pod = func(int, int) int32 { return topo.None }
	l.growth = Growth{Unit: "ring", MaxHosts: per * places / max(widest(hosts), 1)}
	return l, nil
}

// Chips is a torus of accelerators without switches, as TPU v4 is built: every
// chip has a link each way in every dimension. Each host holds a small block of
// chips: four hold 2 x 2 x 1.
type Chips struct {
	Name  string
	Dims  []int
	Box   *topo.Graph // one host
	Link  string      // "ici4"
	Hosts []string    // names; none means n0, n1, ...
}

func (x Chips) names(hosts int) []string {
	if x.Hosts != nil {
		return x.Hosts
	}
	return numbered("n", hosts)
}

// position is where a chip of a host stands in the torus: the host's place among blocks and the chip's in its block,
// dimension by dimension.
func (x Chips) position(block []int, host, chip int) int {
	pos, stride := 0, 1
	for d, length := range x.Dims {
		along := length / block[d]
		pos += (host%along*block[d] + chip%block[d]) * stride
		host, chip, stride = host/along, chip/block[d], stride*length
	}
	return pos
}

// inside has the links that a host brings along.
func (x Chips) inside() map[[2]topo.NodeID]bool {
	links := map[[2]topo.NodeID]bool{}
	for _, l := range x.Box.Links {
		if x.Box.Classes[l.Class].Kind == topo.ICI {
			links[[2]topo.NodeID{l.A, l.B}] = true
		}
	}
	return links
}

// Build makes the graph. Chip i of the torus stands at x = i mod X and so on;
// hosts are numbered the same way over their blocks.
func (x Chips) Build(c *catalog.Catalog) (*topo.Graph, Growth, error) {
	fail := func(format string, args ...any) (*topo.Graph, Growth, error) {
		return nil, Growth{}, fmt.Errorf("torus %q: "+format, append([]any{x.Name}, args...)...)
	}
	places, err := checkDims(x.Dims)
	if err != nil {
		return fail("%w", err)
	}
	link, err := c.Link(x.Link)
	if err != nil {
		return fail("%w", err)
	}
	chips := x.Box.Count(topo.GPU)
	block, ok := blockOf(x.Dims, chips)
	if !ok {
		return fail("%v does not divide into hosts of %d chips; make the dimensions even", x.Dims, chips)
	}
	hosts := places / chips
	names := x.names(hosts)
	if len(names) != hosts {
		return fail("%v has %d chips and so %d hosts of %d, but %d hosts are named", x.Dims, places, hosts, chips, len(names))
	}
	b := topo.NewBuilder(x.Name)
	fabric := b.Fabric(topo.Fabric{Name: "ici", Family: topo.Torus, Dims: x.Dims})
	b.Grow(hosts*len(x.Box.Nodes), hosts*len(x.Box.Links)+len(x.Dims)*places)
	at := make([]topo.NodeID, places)
	for h := range hosts {
		_, first := b.Stamp(x.Box, topo.Host{Name: names[h], Model: x.Box.Hosts[0].Model, Pod: topo.None, Rack: topo.None})
		chip := 0
		for i := range x.Box.Nodes {
			if x.Box.Nodes[i].Kind != topo.GPU {
				continue
			}
			pos := x.position(block, h, chip)
			n := b.At(first + topo.NodeID(i))
			n.Fabric, n.Pos = fabric, int32(pos)
			at[pos] = first + topo.NodeID(i)
			chip++
		}
	}
	inside, size := x.inside(), topo.NodeID(len(x.Box.Nodes))
	class := b.Class(link.Class(0))
	neighbours(x.Dims, func(i, j, dim int) {
		p, q := min(at[i], at[j]), max(at[i], at[j])
		if p/size == q/size && inside[[2]topo.NodeID{p % size, q % size}] {
			return
		}
		b.Link(topo.Link{A: at[i], B: at[j], Class: class})
	})
	g, err := b.Graph()
	return g, Growth{Unit: "slice", UnitHosts: max(hosts/max(x.Dims[len(x.Dims)-1]/block[len(block)-1], 1), 1)}, err
}

// blockOf shapes n chips into a block that divides the torus, as near a cube as
// the prime factors of n allow, the first dimensions first.
func blockOf(dims []int, n int) ([]int, bool) {
	block := make([]int, len(dims))
	for i := range block {
		block[i] = 1
	}
	for f := 2; n > 1; {
		if n%f != 0 {
			f++
			continue
		}
		best := -1
		for i := range dims {
			if dims[i]/block[i]%f == 0 && (best < 0 || block[i] < block[best]) {
				best = i
			}
		}
		if best < 0 {
			return nil, false
		}
		block[best] *= f
		n /= f
	}
	return block, true
}

// numbered gives n names: n0, n1, ...
func numbered(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return names
}
