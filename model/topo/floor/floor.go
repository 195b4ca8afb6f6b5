// Package floor says where everything of a cluster stands: racks in rows, hosts
// and switches in racks, how much of a rack's height and power they take, and
// how long every cable is.
//
//	row A   ┌h┐┌h┐┌h┐┌n┐┌h┐┌h┐┌h┐     h: hosts, n: network rack with the leaves of these hosts
//	        └─┘└─┘└─┘└─┘└─┘└─┘└─┘
//	aisle   ═══════ tray ════════     a cable goes up to the tray, along rows and across them, and down
//	row B   ┌h┐┌h┐┌h┐┌c┐┌h┐┌h┐┌h┐     c: network rack in the middle, with spines and cores
//	        └─┘└─┘└─┘└─┘└─┘└─┘└─┘
//
// A leaf whose hosts share a rack stands in it, if there is room. Other leaves
// stand amid their hosts, a row's worth of racks at a time; all else stands in
// the middle.
package floor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Intent is what the owner says of the floor; lengths are in metres.
type Intent struct {
	Units   int     // rack units of a rack
	Reserve int     // of these, units for patch panels and the switch of the out-of-band network
	Power   float64 // watts that a rack gives; 0: not limited
	Hosts   int     // hosts a rack; 0: as the cluster has them, or as many as fit
	Width   float64 // of a rack
	Depth   float64 // of a rack
	Row     int     // racks a row
	Aisle   float64 // between two rows
	Tray    float64 // of the cable trays above the racks
	Slack   float64 // of cable at each end
	Lengths []float64
	Cables  string // "cheapest" that reaches, or "fibre" between racks
	Places  []Place
}

// Place says where devices stand that the owner put there.
type Place struct {
	Names []string
	Rack  string // "B04"
	Unit  int    // the lowest unit of the first device; 0: where there is room
	Line  int    // in the cluster file
}

// Default is a hall of 48-unit racks in rows of ten, of 600 by 1200 mm, and the
// lengths in which cables are sold.
func Default() Intent {
	return Intent{Units: 48, Reserve: 2, Width: 0.6, Depth: 1.2, Row: 10, Aisle: 1.2, Tray: 0.4, Slack: 0.5, Cables: "cheapest",
		Lengths: []float64{1, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500}}
}

// Device is something that stands in a rack.
type Device struct {
	Name  string  `json:"name"`
	Model string  `json:"model,omitempty"`
	Kind  string  `json:"kind"` // host or switch
	Units int     `json:"units"`
	Watts float64 `json:"watts"`
	Rack  int     `json:"rack"` // index in Plan.Racks
	Unit  int     `json:"unit"` // the lowest unit it takes, from 1
}

// Rack is a rack and what it holds.
type Rack struct {
	Name    string  `json:"name"` // row and number: B04
	Row     int     `json:"row"`
	Column  int     `json:"column"`
	Use     string  `json:"use"` // hosts, network, or empty
	Units   int     `json:"units"`
	Watts   float64 `json:"watts"`
	Devices []int   `json:"devices"` // indices in Plan.Devices, from the lowest unit
}

// Plan is where everything stands. Nothing changes it after Make.
type Plan struct {
	Intent  Intent   `json:"-"`
	Racks   []Rack   `json:"racks"`
	Devices []Device `json:"devices"`
	Rows    int      `json:"rows"`
	Width   float64  `json:"width_m"`
	Depth   float64  `json:"depth_m"`
	Fits    []Fit    `json:"fits"`

	byName map[string]int
	graph  *topo.Graph
}

// Fit says how many hosts of a kind a rack holds.
type Fit struct {
	Model    string  `json:"model"`
	Units    int     `json:"units"`
	Watts    float64 `json:"watts"`
	ByHeight int     `json:"by_height"`
	ByPower  int     `json:"by_power"` // -1: power is not limited
	Most     int     `json:"most"`     // hosts of any kind in a rack with this one
}

// Problem is what is wrong with a floor: the field of the section, or the line of a place.
type Problem struct {
	Field string
	Line  int
	Msg   string
}

func (p *Problem) Error() string { return p.Field + ": " + p.Msg }

func wrong(field, format string, args ...any) *Problem {
	return &Problem{Field: field, Msg: fmt.Sprintf(format, args...)}
}

// Extra is a switch that is not in the graph and stands in the middle: of a
// network beside it.
type Extra struct{ Name, Model string }

// maker is a plan being made.
type maker struct {
	g    *topo.Graph
	c    *catalog.Catalog
	in   Intent
	plan *Plan

	order []*shelf          // racks by their place on the floor
	fixed map[string]*shelf // racks that Places names
	of    map[string]*shelf
}

// shelf is a rack being filled, before it has its place on the floor.
type shelf struct {
	use     string
	host    int32 // its number in the graph; None for a network rack
	devices []*Device
	units   int
	watts   float64
	index   int // on the floor; fixed ones know it at once
}

func (m *maker) room(s *shelf, d *Device) bool {
	return s.units+d.Units <= m.in.Units-m.in.Reserve && (m.in.Power == 0 || s.watts+d.Watts <= m.in.Power*(1+1e-9))
}

func (s *shelf) put(d *Device) {
	s.devices = append(s.devices, d)
	s.units += d.Units
	s.watts += d.Watts
}

// Make places all hosts and switches of a graph, and the switches of networks beside it.
func Make(g *topo.Graph, c *catalog.Catalog, in Intent, more []Extra) (*Plan, *Problem) {
	m := &maker{g: g, c: c, in: in, plan: &Plan{Intent: in, byName: map[string]int{}, graph: g}, fixed: map[string]*shelf{},
		of: map[string]*shelf{}}
	if p := m.byHand(more); p != nil {
		return nil, p
	}
	racks, p := m.hostRacks()
	if p != nil {
		return nil, p
	}
	if p := m.arrange(racks, more); p != nil {
		return nil, p
	}
	m.settle()
	return m.plan, nil
}

// device describes a host or a switch.
func (m *maker) device(name, model string, host bool) *Device {
	d := &Device{Name: name, Model: model, Kind: "switch", Units: 1}
	if host {
		x := m.c.Hosts[model]
		d.Kind, d.Units, d.Watts = "host", max(x.Units, 1), x.Watts
	} else {
		x := m.c.Switches[model]
		d.Units, d.Watts = max(x.Units, 1), x.Watts
	}
	return d
}

// byHand puts devices where the owner wants them.
func (m *maker) byHand(more []Extra) *Problem {
	models := map[string]*Device{}
	for h := range m.g.Hosts {
		models[m.g.Hosts[h].Name] = m.device(m.g.Hosts[h].Name, m.g.Hosts[h].Model, true)
	}
	m.g.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) { models[n.Name] = m.device(n.Name, n.Model, false) })
	for _, x := range more {
		models[x.Name] = m.device(x.Name, x.Model, false)
	}
	for _, place := range m.in.Places {
		bad := func(format string, args ...any) *Problem {
			return &Problem{Field: "place", Line: place.Line, Msg: fmt.Sprintf(format, args...)}
		}
		at, ok := rackIndex(place.Rack, m.in.Row)
		if !ok {
			return bad("%q is no rack; write row and number, such as B04, with numbers up to %d", place.Rack, m.in.Row)
		}
		s := m.fixed[place.Rack]
		if s == nil {
			s = &shelf{use: "network", host: topo.None, index: at}
			m.fixed[place.Rack] = s
		}
		unit := place.Unit
		for _, name := range place.Names {
			d := models[name]
			switch {
			case d == nil:
				return bad("there is no host and no switch %q", name)
			case m.of[name] != nil:
				return bad("%q has two places", name)
			case s.units+d.Units > m.in.Units:
				return bad("%q does not fit into rack %s: %d of its %d units are taken; give it another rack", name, place.Rack, s.units, m.in.Units)
			case m.in.Power > 0 && s.watts+d.Watts > m.in.Power*(1+1e-9):
				return bad("%q draws %s and rack %s has %s left of %s; give it another rack",
					name, kilowatts(d.Watts), place.Rack, kilowatts(m.in.Power-s.watts), kilowatts(m.in.Power))
			}
			if d.Kind == "host" {
				s.use = "hosts"
			}
			if unit > 0 {
				if unit+d.Units-1 > m.in.Units {
					return bad("%q would take units %d to %d of %d", name, unit, unit+d.Units-1, m.in.Units)
				}
				for _, other := range s.devices {
					if other.Unit > 0 && unit < other.Unit+other.Units && other.Unit < unit+d.Units {
						return bad("%q would take unit %d of rack %s, which %q has", name, max(unit, other.Unit), place.Rack, other.Name)
					}
				}
				d.Unit = unit
				unit += d.Units
			}
			s.put(d)
			m.of[name] = s
		}
	}
	return nil
}

// hostRacks groups the hosts: as the graph has them, with a given number in each rack, or as many as fit.
func (m *maker) hostRacks() ([]*shelf, *Problem) {
	known := true
	for h := range m.g.Hosts {
		known = known && (m.g.Hosts[h].Rack >= 0 || m.of[m.g.Hosts[h].Name] != nil)
	}
	var out []*shelf
	byRack := map[int32]*shelf{}
	var open *shelf
	pod := int32(topo.None)
	for h := range m.g.Hosts {
		host := &m.g.Hosts[h]
		if m.of[host.Name] != nil {
			continue
		}
		d := m.device(host.Name, host.Model, true)
		switch empty := (&shelf{}); {
		case d.Units > m.in.Units-m.in.Reserve:
			return nil, wrong("rack.units", "%d: a %s takes %d and %d are kept for patch panels; a rack needs at least %d",
				m.in.Units, host.Model, d.Units, m.in.Reserve, d.Units+m.in.Reserve)
		case !m.room(empty, d):
			return nil, wrong("rack.power", "%s: one %s draws %s; a rack must give at least that",
				kilowatts(m.in.Power), host.Model, kilowatts(d.Watts))
		}
		var s *shelf
		if known && m.in.Hosts == 0 {
			if s = byRack[host.Rack]; s == nil {
				s = &shelf{use: "hosts", host: host.Rack}
				byRack[host.Rack] = s
				out = append(out, s)
			}
		} else {
			if open == nil || host.Pod != pod || m.in.Hosts > 0 && len(open.devices) == m.in.Hosts || m.in.Hosts == 0 && !m.room(open, d) {
				open = &shelf{use: "hosts", host: int32(len(out))}
				out = append(out, open)
			}
			s, pod = open, host.Pod
		}
		if !m.room(s, d) {
			n := len(s.devices) + 1
			if s.units+d.Units > m.in.Units-m.in.Reserve {
				return nil,
					wrong("rack.units",
						"%d: %d hosts such as %s (%s, %d units) do not fit into one rack with %d units kept for patch panels; %d do: write floor: {rack: {hosts: %d}}",
						m.in.Units, n, host.Name, host.Model, d.Units, m.in.Reserve, n-1, n-1)
			}
			return nil,
				wrong("rack.power",
					"%s: %d hosts such as %s (%s) in one rack draw %s; %d may: write floor: {rack: {hosts: %d}}, or give a rack more power",
					kilowatts(m.in.Power), n, host.Name, host.Model, kilowatts(s.watts+d.Watts), n-1, n-1)
		}
		s.put(d)
		m.of[host.Name] = s
	}
	if m.in.Hosts == 0 && known {
		m.chips(byRack)
	}
	m.fits(out)
	return out, nil
}

// chips puts NVSwitches that stand beside hosts into the hosts' racks, two on a
// tray of one unit as in an NVL72.
func (m *maker) chips(byRack map[int32]*shelf) {
	count := map[*shelf]int{}
	model := ""
	m.g.Each(topo.NVSwitch, func(_ topo.NodeID, n *topo.Node) {
		if s := byRack[n.Rack]; n.Host == topo.None && s != nil {
			count[s]++
			model = n.Model
		}
	})
	for _, s := range byRack {
		if n := count[s]; n > 0 {
			s.put(&Device{Name: fmt.Sprintf("%s-nvlink", s.devices[0].Name), Model: model, Kind: "switch", Units: (n + 1) / 2,
				Watts: m.c.Switches[model].Watts * float64(n)})
		}
	}
}

// fits says how many hosts of each kind a rack holds, by height and by power.
func (m *maker) fits(racks []*shelf) {
	at := map[string]int{}
	for _, s := range racks {
		hosts := 0
		for _, d := range s.devices {
			if d.Kind == "host" {
				hosts++
			}
		}
		for _, d := range s.devices {
			if d.Kind != "host" {
				continue
			}
			i, seen := at[d.Model]
			if !seen {
				i = len(m.plan.Fits)
				at[d.Model] = i
				f := Fit{Model: d.Model, Units: d.Units, Watts: d.Watts, ByHeight: (m.in.Units - m.in.Reserve) / d.Units, ByPower: -1}
				if m.in.Power > 0 && d.Watts > 0 {
					f.ByPower = int(m.in.Power * (1 + 1e-9) / d.Watts)
				}
				m.plan.Fits = append(m.plan.Fits, f)
			}
			m.plan.Fits[i].Most = max(m.plan.Fits[i].Most, hosts)
		}
	}
}

// arrange gives the racks their order on the floor and puts switches among them.
func (m *maker) arrange(racks []*shelf, more []Extra) *Problem {
	var central []*Device
	byGroup := map[int][]*Device{}
	group, at := m.groups(racks)
	var problem *Problem
	m.g.Each(topo.Switch, func(id topo.NodeID, n *topo.Node) {
		if m.of[n.Name] != nil || problem != nil {
			return
		}
		d := m.device(n.Name, n.Model, false)
		if !m.room(&shelf{}, d) {
			problem = wrong("rack.power", "%s: switch %s (%s) takes %d units and draws %s; a rack must hold it",
				kilowatts(m.in.Power), n.Name, n.Model, d.Units, kilowatts(d.Watts))
			return
		}
		service := n.Fabric >= 0 && m.g.Fabrics[n.Fabric].Service
		homes := m.homes(id)
		switch {
		case len(homes) == 1 && m.room(homes[0], d):
			homes[0].put(d)
			m.of[n.Name] = homes[0]
		case n.Tier <= 1 && len(homes) > 0 && !service:
			k := at[homes[len(homes)/2]]
			byGroup[k] = append(byGroup[k], d)
		default:
			central = append(central, d)
		}
	})
	if problem != nil {
		return problem
	}
	for _, x := range more {
		if m.of[x.Name] == nil {
			central = append(central, m.device(x.Name, x.Model, false))
		}
	}
	if len(group) <= 1 { // one group: its middle is the middle of all
		central, byGroup = append(byGroup[0], central...), map[int][]*Device{}
	}
	middle := m.pack(central)
	for k, list := range group {
		half := (len(list) + 1) / 2
		m.order = append(m.order, list[:half]...)
		m.order = append(m.order, m.pack(byGroup[k])...)
		m.order = append(m.order, list[half:]...)
	}
	m.order = slices.Insert(m.order, len(m.order)/2, middle...)
	return nil
}

// groups takes neighbouring racks together until a row is full, without parting
// the racks of a pod, and says which group each rack is in.
func (m *maker) groups(racks []*shelf) (out [][]*shelf, at map[*shelf]int) {
	at = map[*shelf]int{}
	pod := func(s *shelf) int32 {
		h, _ := m.g.HostByName(s.devices[0].Name)
		return m.g.Hosts[h].Pod
	}
	for _, s := range racks {
		last := len(out) - 1
		if last < 0 || len(out[last]) >= m.in.Row-1 && pod(out[last][len(out[last])-1]) != pod(s) {
			out = append(out, nil)
			last++
		}
		out[last] = append(out[last], s)
		at[s] = last
	}
	for _, s := range m.fixed {
		at[s] = max(0, len(out)-1)
	}
	return out, at
}

// homes lists the racks of the hosts that are plugged into a switch, in the order of the hosts.
func (m *maker) homes(sw topo.NodeID) []*shelf {
	var out []*shelf
	seen := map[*shelf]bool{}
	for _, e := range m.g.Edges(sw) {
		if h := m.g.Nodes[e.Peer].Host; h != topo.None && m.g.Class(e.Link).Kind.Network() {
			if s := m.of[m.g.Hosts[h].Name]; s != nil && !seen[s] {
				seen[s] = true
				out = append(out, s)
			}
		}
	}
	return out
}

// pack fills network racks, all to about the same height.
func (m *maker) pack(list []*Device) []*shelf {
	var out []*shelf
	for _, d := range list {
		if len(out) == 0 || !m.room(out[len(out)-1], d) {
			out = append(out, &shelf{use: "network", host: topo.None})
		}
		out[len(out)-1].put(d)
		m.of[d.Name] = out[len(out)-1]
	}
	return out
}

// settle gives every rack its place and every device its unit: hosts from the
// bottom, switches from the top.
func (m *maker) settle() {
	taken := map[int]*shelf{}
	last := 0
	for _, s := range m.fixed {
		taken[s.index] = s
		last = max(last, s.index+1)
	}
	next := 0
	for _, s := range m.order {
		for taken[next] != nil {
			next++
		}
		s.index = next
		taken[next] = s
		last = max(last, next+1)
	}
	p := m.plan
	p.Racks = make([]Rack, last)
	for i := range p.Racks {
		r := &p.Racks[i]
		*r = Rack{Name: rackName(i, m.in.Row), Row: i / m.in.Row, Column: i % m.in.Row, Devices: []int{}}
		s := taken[i]
		if s == nil {
			continue
		}
		r.Use, r.Units, r.Watts = s.use, s.units, s.watts
		m.stack(s)
		slices.SortStableFunc(s.devices, func(a, b *Device) int { return cmp.Compare(a.Unit, b.Unit) })
		for _, d := range s.devices {
			d.Rack = i
			r.Devices = append(r.Devices, len(p.Devices))
			p.byName[d.Name] = len(p.Devices)
			p.Devices = append(p.Devices, *d)
		}
	}
	p.Rows = (last + m.in.Row - 1) / m.in.Row
	p.Width = float64(min(last, m.in.Row)) * m.in.Width
	p.Depth = float64(p.Rows)*m.in.Depth + float64(max(0, p.Rows-1))*m.in.Aisle
}

// stack gives the devices of a rack their units around those that have one.
func (m *maker) stack(s *shelf) {
	used := make(units, m.in.Units+2)
	used[len(used)-1] = true // no unit, but where the rack ends
	for _, d := range s.devices {
		if d.Unit > 0 {
			used.take(d)
		}
	}
	for _, d := range s.devices {
		switch {
		case d.Unit > 0:
			continue
		case d.Kind == "host":
			d.Unit = used.lowest(d.Units)
		default:
			d.Unit = used.highest(m.in.Units-m.in.Reserve-d.Units+1, d.Units)
		}
		d.Unit = max(d.Unit, 1)
		used.take(d)
	}
}

// units says which units of a rack are taken, from 1 on.
type units []bool

func (x units) take(d *Device) {
	for u := d.Unit; u < d.Unit+d.Units && u < len(x); u++ {
		x[u] = true
	}
}

func (x units) free(u, n int) bool { return u+n <= len(x) && !slices.Contains(x[u:u+n], true) }

// lowest finds room for n units as far down as there is some, 0 if there is none.
func (x units) lowest(n int) int {
	for u := 1; u < len(x); u++ {
		if x.free(u, n) {
			return u
		}
	}
	return 0
}

// highest finds room for n units from one on downwards, 0 if there is none.
func (x units) highest(from, n int) int {
	for u := from; u >= 1; u-- {
		if x.free(u, n) {
			return u
		}
	}
	return 0
}

// rackName is row and number: A01, B10, AA03.
func rackName(i, row int) string {
	letters := ""
	for r := i/row + 1; r > 0; r = (r - 1) / 26 {
		letters = string(rune('A'+(r-1)%26)) + letters
	}
	return fmt.Sprintf("%s%02d", letters, i%row+1)
}

// rackIndex reads what rackName prints.
func rackIndex(name string, row int) (int, bool) {
	i := strings.IndexFunc(name, func(c rune) bool { return c < 'A' || c > 'Z' })
	if i < 1 || i > 3 || len(name)-i > 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(name[i:], 10, 16)
	if err != nil {
		return 0, false
	}
	r := 0
	for _, c := range name[:i] {
		r = r*26 + int(c-'A') + 1
	}
	return (r-1)*row + int(n) - 1, n >= 1 && int(n) <= row
}

// kilowatts prints watts.
func kilowatts(w float64) string { return fmt.Sprintf("%.4g kW", w/1000) }

const unitMetres = 0.04445

// Find gives where a device stands.
func (p *Plan) Find(name string) (Device, bool) {
	i, ok := p.byName[name]
	if !ok {
		return Device{}, false
	}
	return p.Devices[i], true
}

// RackOf is the name of the rack of a device; empty if it has none.
func (p *Plan) RackOf(name string) string {
	d, ok := p.Find(name)
	if !ok {
		return ""
	}
	return p.Racks[d.Rack].Name
}

// Way is how long a cable between two devices is at least: up to the trays,
// along and across the rows, down again, and what lies slack at both ends. In
// one rack it goes along the rack's side.
func (p *Plan) Way(a, b Device) float64 {
	in := &p.Intent
	height := func(d Device) float64 { return (float64(d.Unit) - 1 + float64(d.Units)/2) * unitMetres }
	if a.Rack == b.Rack {
		return math.Abs(height(a)-height(b)) + in.Width/2 + 2*in.Slack
	}
	top := float64(in.Units)*unitMetres + in.Tray
	x, y := &p.Racks[a.Rack], &p.Racks[b.Rack]
	along := math.Abs(float64(x.Column-y.Column)) * in.Width
	across := math.Abs(float64(x.Row-y.Row)) * (in.Depth + in.Aisle)
	return top - height(a) + along + across + top - height(b) + 2*in.Slack
}

// Length is the shortest cable that is sold for a way.
func (p *Plan) Length(way float64) float64 {
	for _, l := range p.Intent.Lengths {
		if l >= way-1e-9 {
			return l
		}
	}
	return math.Ceil(way)
}

// Between is the cable to buy between two devices by name; 0 if one has no place.
func (p *Plan) Between(a, b string) float64 {
	x, ok := p.Find(a)
	y, ok2 := p.Find(b)
	if !ok || !ok2 {
		return 0
	}
	return p.Length(p.Way(x, y))
}

// Apply gives the graph with racks and lengths of cables as the plan has them.
func (p *Plan) Apply(g *topo.Graph) *topo.Graph {
	return g.Placed(func(device string) int32 {
		if d, ok := p.Find(device); ok {
			return int32(d.Rack)
		}
		return topo.None
	}, func(l topo.LinkID) float64 { return p.Between(device(g, g.Links[l].A), device(g, g.Links[l].B)) })
}

// TooLong names a cable of the graph that is longer than every length sold.
func (p *Plan) TooLong(g *topo.Graph) *Problem {
	if len(p.Intent.Lengths) == 0 {
		return nil
	}
	longest := slices.Max(p.Intent.Lengths)
	for _, l := range g.Links {
		if !g.Classes[l.Class].Kind.Network() {
			continue
		}
		a, ok := p.Find(device(g, l.A))
		b, ok2 := p.Find(device(g, l.B))
		if !ok || !ok2 {
			continue
		}
		if way := p.Way(a, b); way > longest+1e-9 {
			return wrong("lengths", "the longest is %gm, and %s to %s is %.1fm; add a length of %gm or more",
				longest, a.Name, b.Name, way, math.Ceil(way))
		}
	}
	return nil
}

// device is the host of a part, or the switch itself.
func device(g *topo.Graph, n topo.NodeID) string {
	if h := g.Nodes[n].Host; h != topo.None {
		return g.Hosts[h].Name
	}
	return g.Nodes[n].Name
}
