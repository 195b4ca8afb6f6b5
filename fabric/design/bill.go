package design

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Item is a line of the bill of materials.
type Item struct {
	Item      string  `json:"item"`
	Kind      string  `json:"kind"` // host, switch, cable
	Count     int     `json:"count"`
	UnitUSD   float64 `json:"unit_usd"`
	USD       float64 `json:"usd"`
	Date      string  `json:"date"`
	Source    string  `json:"source"`
	UnitWatts float64 `json:"unit_watts"`
	Watts     float64 `json:"watts"`
	Note      string  `json:"note,omitempty"`
}

// Optics counts what cables need besides themselves, and says by which rule cables were chosen.
type Optics struct {
	Transceivers int      `json:"transceivers"`
	Rule         string   `json:"rule"`
	Choices      []Choice `json:"choices"`
}

// Choice is the cable taken for a sort of link.
type Choice struct {
	Link   string  `json:"link"` // "host-leaf, in the rack"
	Gen    string  `json:"gen"`
	Metres float64 `json:"metres"` // by the floor plan, or assumed
	Cable  string  `json:"cable"`  // catalogue key; empty if the catalogue has none
	Count  int     `json:"count"`
	Optics int     `json:"optics"` // transceivers for all of them, at both ends
}

const cableRule = "the cheapest in the catalogue that fits the link and reaches: copper or active cable inside a rack (2 m), fibre with its own transceivers between racks, so that either can be replaced by itself (20 m from host to leaf, 30 m from leaf to spine and inside a tier, 100 m above)"

const floorRule = "the cheapest in the catalogue that fits the link and reaches: copper, then active cable, then fibre with its own transceivers; lengths are those of the floor plan"

// bill prices everything from the catalogue. What has no entry or no price is
// listed at 0 with a note, and named in Unpriced.
func (r *Report) bill(v *view, c *catalog.Catalog) {
	r.billHosts(v.g, c)
	r.billSwitches(v.g, c)
	r.billCables(v, c)
	r.own = len(r.Bill)
	r.billServices()
	for i := range r.Bill {
		it := &r.Bill[i]
		it.USD, it.Watts = it.UnitUSD*float64(it.Count), it.UnitWatts*float64(it.Count)
		r.CostUSD += it.USD
		r.PowerWatts += it.Watts
		if it.UnitUSD == 0 {
			r.Unpriced = append(r.Unpriced, it.Item)
		}
	}
}

// BillCSV writes the bill of materials, a line an item.
func (r *Report) BillCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"item", "kind", "count", "unit_usd", "usd", "date", "unit_watts", "watts", "note", "source"}}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for _, it := range r.Bill {
		rows = append(rows, []string{it.Item, it.Kind, strconv.Itoa(it.Count), number(it.UnitUSD), number(it.USD), it.Date, number(it.UnitWatts),
			number(it.Watts), it.Note, it.Source})
	}
	return out.WriteAll(rows)
}

// billHosts counts hosts by model. A host that the catalogue does not have costs at least its GPUs and NICs, and a note
// says that these alone are counted.
func (r *Report) billHosts(g *topo.Graph, c *catalog.Catalog) {
	type key struct {
		model string
		gpu   string
		gpus  int
		nics  string
		ports int
	}
	counts := map[key]int{}
	var order []key
	for h := range g.Hosts {
		k := key{model: g.Hosts[h].Model}
		if _, err := c.Host(k.model); err != nil {
			for _, n := range g.HostNodes(topo.HostID(h)) {
				switch n.Kind {
				case topo.GPU:
					k.gpu = n.Model
					k.gpus++
				case topo.NIC:
					k.nics = n.Model
					k.ports++
				}
			}
		}
		if counts[k]++; counts[k] == 1 {
			order = append(order, k)
		}
	}
	for _, k := range order {
		it := Item{Item: k.model, Kind: "host", Count: counts[k]}
		if host, err := c.Host(k.model); err == nil {
			it.UnitUSD, it.Date, it.Source, it.UnitWatts = host.Price.USD, host.Price.Date, string(host.Price.Source), host.Watts
		} else {
			gpu, nic := c.GPUs[k.gpu], c.NICs[k.nics]
			adapters := float64(k.ports) / float64(max(nic.Ports, 1))
			it.UnitUSD = gpu.Price.USD*float64(k.gpus) + nic.Price.USD*adapters
			it.UnitWatts = gpu.Watts*float64(k.gpus) + nic.Watts*adapters
			it.Date, it.Source = cmp.Or(gpu.Price.Date, nic.Price.Date), string(cmp.Or(gpu.Price.Source, nic.Price.Source))
			it.Note = "no such host in the catalogue: its GPUs and NICs alone"
			it.Item = cmp.Or(k.model, ternary(k.gpus > 0, fmt.Sprintf("host of %d %s", k.gpus, cmp.Or(k.gpu, "GPUs of unknown make")),
				"service host"))
			if it.UnitUSD == 0 {
				it.Note = "no such host in the catalogue"
			}
		}
		r.Bill = append(r.Bill, it)
	}
}

// billSwitches counts switches by model. NVSwitches inside hosts belong to the host's price.
func (r *Report) billSwitches(g *topo.Graph, c *catalog.Catalog) {
	counts := map[string]int{}
	kind := map[string]string{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Kind == topo.Switch || n.Kind == topo.NVSwitch && n.Host == topo.None {
			counts[n.Model]++
			kind[n.Model] = n.Kind.String()
		}
	}
	for _, model := range slices.Sorted(maps.Keys(counts)) {
		it := Item{Item: cmp.Or(model, kind[model]+" of unknown make"), Kind: "switch", Count: counts[model]}
		if s, err := c.Switch(model); err == nil {
			it.UnitUSD, it.Date, it.Source, it.UnitWatts = s.Price.USD, s.Price.Date, string(s.Price.Source), s.Watts
		} else {
			it.Note = "no such switch in the catalogue"
		}
		r.Bill = append(r.Bill, it)
	}
}

// service comes before the ranks of segments of storage and management networks.
const service = 4

// segment is a sort of link that one cable is chosen for.
type segment struct {
	rank   int
	name   string
	gen    string
	metres float64
	inRack bool
}

// segment sorts a link into a kind of cable: between which tiers, how long, in one rack or not. Cables of a segment get
// the same product.
func (v *view) segment(id topo.LinkID) segment {
	g := v.g
	l := &g.Links[id]
	s := segment{gen: g.Classes[l.Class].Gen, metres: g.Metres(id), inRack: g.SameRack(id)}
	tier := func(id topo.NodeID) uint8 {
		switch p := v.index[id]; {
		case g.Nodes[id].Kind != topo.Switch:
			return 0
		case p >= 0:
			return max(v.tier[p], 1)
		default:
			return max(g.Nodes[id].Tier, 1)
		}
	}
	low, high := min(tier(l.A), tier(l.B)), max(tier(l.A), tier(l.B))
	switch {
	case low == 0 && s.inRack:
		s.rank, s.name = 0, "host-leaf, in the rack"
	case low == 0:
		s.rank, s.name = 1, "host-leaf"
	case low == 1 && high <= 2:
		s.rank, s.name = 2, tierName(low)+"-"+tierName(high)
	default:
		s.rank, s.name = 3, tierName(low)+"-"+tierName(high)
	}
	if !compute(g, &g.Nodes[l.A]) || !compute(g, &g.Nodes[l.B]) {
		s.rank, s.name = s.rank+service, "service "+s.name
	}
	return s
}

// cageEnd is where links end that can share cages.
type cageEnd struct {
	of   int64 // a switch, a NIC, or a host whose NICs share cages
	host bool
	rank int
	gen  string
}

// cage finds whose cages a link ends in, and how many links of that rate one of them holds.
func (v *view) cage(c *catalog.Catalog, id topo.NodeID, rate unit.Rate) (e cageEnd, fits int) {
	n := &v.g.Nodes[id]
	if n.Kind == topo.Switch {
		model := c.Switches[n.Model]
		return cageEnd{of: int64(id)}, max(model.PerCage, 1) * slower(c, model.Link, rate, model.Split)
	}
	fits = slower(c, c.NICs[n.Model].Link, rate, maxBreakout)
	if n.Host != topo.None {
		if host := c.Hosts[v.g.Hosts[n.Host].Model]; host.Shared > 1 && host.NIC == n.Model {
			return cageEnd{of: int64(n.Host), host: true}, fits * host.Shared
		}
	}
	return cageEnd{of: int64(id)}, fits
}

// cages counts, for every segment with transceivers, the cages that its links end
// in: each takes one transceiver. A cage may hold several ports, a port several
// links, and links of one cage may differ in length.
func (v *view) cages(c *catalog.Catalog, optical map[segment]bool) map[segment]int {
	g := v.g
	type stretch struct {
		cageEnd
		segment
	}
	links, per := map[stretch]int{}, map[cageEnd]int{}
	var order []stretch
	for i := range g.Links {
		l := &g.Links[i]
		class := g.Class(topo.LinkID(i))
		if !class.Kind.Network() {
			continue
		}
		s := v.segment(topo.LinkID(i))
		if !optical[s] {
			continue
		}
		for _, id := range []topo.NodeID{l.A, l.B} {
			e, fits := v.cage(c, id, class.Rate)
			e.rank, e.gen = s.rank, s.gen
			at := stretch{e, s}
			if links[at] == 0 {
				order = append(order, at)
			}
			links[at] += int(l.Count)
			per[e] = fits
		}
	}
	sum, before := map[segment]int{}, map[cageEnd]int{}
	for _, at := range order {
		fits, n := per[at.cageEnd], before[at.cageEnd]
		before[at.cageEnd] += links[at]
		sum[at.segment] += (before[at.cageEnd]+fits-1)/fits - (n+fits-1)/fits
	}
	return sum
}

// maxBreakout is into how many links the port of a NIC is broken out at most.
const maxBreakout = 4

// slower is how many links of a rate a port of a generation carries, at most as many as it may be split into.
func slower(c *catalog.Catalog, gen string, rate unit.Rate, most int) int {
	own, ok := c.Links[gen]
	if !ok || rate <= 0 {
		return 1
	}
	return max(1, min(most, int(float64(own.Class(0).Rate/rate)*(1+1e-9))))
}

// segments counts the network's links by what decides on their cables.
func (v *view) segments() map[segment]int {
	counts := map[segment]int{}
	for i := range v.g.Links {
		if v.g.Class(topo.LinkID(i)).Kind.Network() {
			counts[v.segment(topo.LinkID(i))] += int(v.g.Links[i].Count)
		}
	}
	return counts
}

// pick is the cable for a segment; ok is false where the catalogue has none that fits and reaches.
type pick struct {
	gen   string
	n     int
	cable catalog.Cable
	ok    bool
}

// pick chooses one cable for several links where the catalogue has such cables.
func (r *Report) pick(c *catalog.Catalog, s segment, n int) pick {
	p := pick{gen: s.gen, n: n}
	if s.rank < service {
		if wide, ok := twin(c, s.gen, r.perCable); ok {
			p.gen, p.n = wide, (p.n+r.perCable-1)/r.perCable
		}
	}
	p.cable, p.ok = c.CableFor(p.gen, s.metres, r.fibre && !s.inRack)
	return p
}

// billCables chooses a product for every segment and counts it. Transceivers follow from the cages at both ends, since
// one cage may take several links.
func (r *Report) billCables(v *view, c *catalog.Catalog) {
	counts := v.segments()
	if r.Optics.Rule == "" {
		r.Optics.Rule = cableRule
	}
	r.Optics.Choices = []Choice{}
	items := map[string]int{}
	list := slices.SortedFunc(maps.Keys(counts), func(a, b segment) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name), cmp.Compare(a.gen, b.gen), cmp.Compare(a.metres, b.metres))
	})
	picks, optical := map[segment]pick{}, map[segment]bool{}
	for _, s := range list {
		p := r.pick(c, s, counts[s])
		picks[s], optical[s] = p, p.cable.Optics > 0
	}
	cages := v.cages(c, optical)
	for _, s := range list {
		n, gen, cable, ok := picks[s].n, picks[s].gen, picks[s].cable, picks[s].ok
		choice := Choice{Link: s.name, Gen: gen, Metres: s.metres, Cable: cable.Name, Count: n}
		if cable.Optics > 0 {
			choice.Optics = cages[s]
		}
		r.Optics.Choices = append(r.Optics.Choices, choice)
		r.Optics.Transceivers += choice.Optics
		name := cable.Name
		if !ok {
			name = fmt.Sprintf("%s cable of %g m", gen, s.metres)
		}
		if at, seen := items[name]; seen {
			r.Bill[at].Count += n
			continue
		}
		items[name] = len(r.Bill)
		it := Item{Item: name, Kind: "cable", Count: n, UnitUSD: cable.Price.USD, Date: cable.Price.Date, Source: string(cable.Price.Source),
			UnitWatts: cable.Watts}
		if !ok {
			it.Note = "no cable in the catalogue fits the link and reaches"
		}
		r.Bill = append(r.Bill, it)
	}
}

// twin finds the generation of a cable that carries per links of gen at once:
// of the same kind and exactly per times the rate.
func twin(c *catalog.Catalog, gen string, per int) (string, bool) {
	link, err := c.Link(gen)
	if per < 2 || err != nil {
		return "", false
	}
	want := float64(link.Class(0).Rate) * float64(per)
	for _, name := range slices.Sorted(maps.Keys(c.Links)) {
		if l := c.Links[name]; l.Kind == link.Kind && math.Abs(float64(l.Class(0).Rate)-want) < 1e-6*want {
			return name, true
		}
	}
	return "", false
}
