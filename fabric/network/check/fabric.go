package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Cable is a cable of an InfiniBand fabric as ibnetdiscover or iblinkinfo have it. Adapters are named by their host and a
// word for the adapter, as in "n0 mlx5_0".
type Cable struct {
	A, B         string
	APort, BPort int
	Width        int    // lanes
	Speed        string // of a lane: "HDR", or as iblinkinfo has it "25.78125 Gbps"
	Up           bool
	Command      string // that showed it
}

// laneRates are the data rates of a lane by name, and the signalling rate by which iblinkinfo calls it.
var laneRates = []struct {
	name     string
	gbps     float64
	signaled string
}{
	{"SDR", 2, "2.5"}, {"DDR", 4, "5.0"}, {"QDR", 8, "10.0"}, {"FDR10", 10, "10.3125"}, {"FDR", 13.64, "14.0625"},
	{"EDR", 25, "25.78125"}, {"HDR", 50, "53.125"}, {"NDR", 100, "106.25"}, {"XDR", 200, "212.5"},
}

// rate is the data rate of a cable; 0 where it is not known.
func (c *Cable) rate() unit.Rate {
	speed := strings.TrimSuffix(c.Speed, " Gbps")
	for _, l := range laneRates {
		if c.Speed == l.name || speed == l.signaled || speed == strings.TrimSuffix(l.signaled, ".0") {
			return unit.Rate(float64(c.Width) * l.gbps * 1e9 / 8)
		}
	}
	return 0
}

// socket is an end of a cable.
type socket struct {
	node string
	port int // 0 for an adapter with one cable
}

func (s socket) String() string {
	if s.port == 0 {
		return s.node
	}
	return fmt.Sprintf("%s port %d", s.node, s.port)
}

// Fabric compares the cables of an InfiniBand fabric with those that were planned: crossed, elsewhere, missing, slower or
// narrower, and switches of which nothing is seen. It is what LLDP is for Ethernet.
func Fabric(g *topo.Graph, cables []Cable) []Finding {
	f := &fabric{want: map[socket]socket{}, rate: map[socket]unit.Rate{}, far: map[socket]socket{}, seen: map[socket]*Cable{},
		sw: map[string]bool{}}
	f.planned(topo.Cabled(g))
	f.actual(cables)
	return f.compare()
}

type fabric struct {
	want, far map[socket]socket
	rate      map[socket]unit.Rate
	seen      map[socket]*Cable
	sw        map[string]bool     // planned switches
	nics      map[string][]string // planned adapters of a host, in order
	single    map[string]bool     // adapters with one cable: their port's number says nothing
	found     []Finding
}

// planned reads what should be there: cables by their ends, and rates where they are stated. Devices other than
// switches with one cable are remembered, as their port number does not matter.
func (f *fabric) planned(g *topo.Graph) {
	f.nics, f.single = map[string][]string{}, map[string]bool{}
	name := make([]string, len(g.Nodes))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		name[i] = n.Name
		if n.Kind == topo.Switch {
			f.sw[n.Name] = true
		} else if n.Host >= 0 {
			host := g.Hosts[n.Host].Name
			name[i] = host + " " + n.Name
			f.nics[host] = append(f.nics[host], name[i])
		}
	}
	count := map[string]int{}
	for _, l := range g.Links {
		count[name[l.A]]++
		count[name[l.B]]++
	}
	for n, k := range count {
		f.single[n] = !f.sw[n] && k == 1
	}
	for i, l := range g.Links {
		a, b := f.socket(name[l.A], int(l.APort)), f.socket(name[l.B], int(l.BPort))
		f.want[a], f.want[b] = b, a
		if c := g.Class(topo.LinkID(i)); c.Stated() {
			f.rate[a], f.rate[b] = c.Rate, c.Rate
		}
	}
	for _, list := range f.nics {
		slices.SortFunc(list, topo.Natural)
	}
}

func (f *fabric) socket(node string, port int) socket {
	if f.single[node] {
		port = 0
	}
	return socket{node, port}
}

// actual names what was read as the plan does. An adapter whose name the plan does not have, as in "n0 mlx5_3", is the
// host's adapter in the same place of the order.
func (f *fabric) actual(cables []Cable) {
	said := map[string]map[string]bool{}
	for _, c := range cables {
		for _, n := range []string{c.A, c.B} {
			if host, _, ok := strings.Cut(n, " "); ok && f.nics[host] != nil {
				if said[host] == nil {
					said[host] = map[string]bool{}
				}
				said[host][n] = true
			}
		}
	}
	as := map[string]string{}
	for host, names := range said {
		var list []string
		known := true
		for n := range names {
			list = append(list, n)
			known = known && slices.Contains(f.nics[host], n)
		}
		slices.SortFunc(list, topo.Natural)
		for i, n := range list {
			if !known && i < len(f.nics[host]) {
				as[n] = f.nics[host][i]
			}
		}
	}
	name := func(n string) string {
		if x, ok := as[n]; ok {
			return x
		}
		return n
	}
	for i := range cables {
		c := &cables[i]
		if !c.Up || c.B == "" {
			continue
		}
		a, b := f.socket(name(c.A), c.APort), f.socket(name(c.B), c.BPort)
		f.far[a], f.far[b] = b, a
		f.seen[a], f.seen[b] = c, c
	}
}

func (f *fabric) add(x Finding) { f.found = append(f.found, x) }

// compare returns what differs between the plan and what was read, devices first.
func (f *fabric) compare() []Finding {
	command := "ibnetdiscover"
	for _, c := range f.seen {
		if c.Command != "" {
			command = c.Command
			break
		}
	}
	lost := f.dark(command)
	done := map[socket]bool{}
	for _, e := range f.order() {
		if w := f.want[e]; done[e] || done[w] || f.gone(lost, e.node) || f.gone(lost, w.node) {
			continue
		}
		f.cable(e, done, command)
	}
	f.extra(done, command)
	slices.SortStableFunc(f.found, func(a, b Finding) int { return a.Kind.order(a.State) - b.Kind.order(b.State) })
	return f.found
}

// order lists the planned cables, each by the end at the first of its switches.
func (f *fabric) order() (order []socket) {
	for s, w := range f.want {
		if f.sw[s.node] && (!f.sw[w.node] || s.node < w.node || s.node == w.node && s.port < w.port) {
			order = append(order, s)
		}
	}
	slices.SortFunc(order, bySocket)
	return order
}

func bySocket(a, b socket) int { return cmp.Or(topo.Natural(a.node, b.node), a.port-b.port) }

// dark reports the devices of which no cable is seen. One cable that is not seen is not a lost device, except at a
// switch. It returns how many planned cables each silent device has.
func (f *fabric) dark(command string) map[string]int {
	alive := map[string]bool{}
	for s := range f.far {
		alive[s.node] = true
	}
	lost := map[string]int{}
	for s := range f.want {
		if !alive[s.node] {
			lost[s.node]++
		}
	}
	for _, n := range sorted(lost) {
		if f.sw[n] || lost[n] > 1 {
			f.add(Finding{State: Missing, Kind: Device, Device: n, Part: "device",
				What: fmt.Sprintf("nothing is seen of it nor of its %d cables", lost[n]), Want: n, Command: command, Fix: "look whether it has power"})
		}
	}
	return lost
}

// cable compares one planned cable with what is plugged in. A mistake that involves several sockets is one finding:
// the others go into done.
func (f *fabric) cable(e socket, done map[socket]bool, command string) {
	w, got := f.want[e], f.far[e]
	x := Finding{State: Differ, Kind: Neighbour, Device: e.node, Part: fmt.Sprintf("port %d", e.port), Command: command}
	switch {
	case got == w:
		f.speed(e, w, command)
		return
	case got.node != "" && f.far[f.want[got]] == w && f.want[got] != e:
		other := f.want[got]
		done[e], done[w], done[got], done[other] = true, true, true, true
		x.Kind, x.What = Crossed, "two cables are crossed"
		x.Want, x.Got = fmt.Sprintf("%s at %s and %s at %s", w, e, got, other), fmt.Sprintf("%s at %s and %s at %s", got, e, w, other)
		x.Fix = fmt.Sprintf("swap the cables of %s and %s", e, other)
	case f.far[w].node != "": // plugged in elsewhere
		done[f.far[w]], done[w], done[e] = true, true, true
		x.What, x.Want, x.Got = "cable in another port", fmt.Sprintf("%s at %s", w, e), fmt.Sprintf("%s at %s", w, f.far[w])
		x.Fix = fmt.Sprintf("move the cable of %s to %s", w, e)
	case got.node != "":
		done[got], done[e] = true, true
		x.What, x.Want, x.Got, x.Fix = "neighbour", w.String(), got.String(), "move the cable"
	default:
		x.State, x.What, x.Want, x.Fix = Missing, "cable", w.String(), "look for the cable, then at the port's state: ibportstate"
	}
	f.add(x)
}

// extra reports cables between sockets that the plan leaves empty and that no other finding has named.
func (f *fabric) extra(done map[socket]bool, command string) {
	var extra []socket
	for s, o := range f.far {
		if _, planned := f.want[s]; !planned && !done[s] && !done[o] {
			if _, also := f.want[o]; !also && (o.node < s.node) { // told from its first end
				continue
			}
			extra = append(extra, s)
		}
	}
	slices.SortFunc(extra, bySocket)
	for _, s := range extra {
		f.add(Finding{State: Extra, Kind: Neighbour, Device: s.node, Part: fmt.Sprintf("port %d", s.port),
			What: "a cable that the plan does not have", Got: f.far[s].String(), Command: command, Fix: "add it to the cluster file, or unplug it"})
	}
}

// gone reports whether a device was told of as a whole.
func (f *fabric) gone(lost map[string]int, node string) bool {
	return lost[node] > 1 || lost[node] > 0 && f.sw[node]
}

// speed compares what a cable carries with what was planned.
func (f *fabric) speed(e, w socket, command string) {
	c, want := f.seen[e], f.rate[e]
	got := c.rate()
	if want == 0 || got == 0 || float64(got) > 0.95*float64(want) {
		return
	}
	f.add(Finding{State: Differ, Kind: Degraded, Device: e.node, Part: fmt.Sprintf("port %d", e.port),
		What: "the cable to " + w.String() + " is slow", Want: want.String(), Got: fmt.Sprintf("%s (%dX %s)", got, c.Width, c.Speed),
		Command: command, Fix: "reseat the cable; look at its lanes with mlxlink"})
}

func sorted(m map[string]int) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, topo.Natural)
	return out
}
