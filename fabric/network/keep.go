package network

import (
	"slices"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/floor"
)

// Socket is where an end of a cable is plugged in: a switch's port by number, or a host's
// by the name of its interface.
type Socket struct {
	Device string `json:"device"`
	Port   string `json:"port"`
}

func (s Socket) String() string { return s.Device + ":" + s.Port }

// Cable joins two sockets; the first is a switch's.
type Cable [2]Socket

func (c Cable) String() string { return c[0].String() + " - " + c[1].String() }

// keeper plugs the cables of a graph in again, so that those which a lock knows stay where
// they are. A cluster file says how many hosts and switches there are, and the builder of a
// Clos numbers hosts from the first leaf's first port: a host that comes or goes in the middle
// would move all behind it. Which host is in which of the equal places is free, so hosts of
// the lock keep theirs, and new ones take what is left. The same holds for ports of uplinks.
//
// Only cables of a Clos are free to move. Places in a torus or a dragonfly have a meaning, and
// cables that the file names one by one are where it says.
type keeper struct {
	g     *topo.Graph
	lock  *Lock
	links []topo.Link
	names [][2]string // of each link, the ports of hosts at its ends
	seats []seat
	used  map[topo.NodeID]map[uint16]bool // ports of switches that are taken
	most  map[topo.NodeID]int             // hosts' cables that a leaf takes
	held  map[topo.NodeID]int             // that it has
	pods  map[topo.HostID]int32
}

// seat is where a host is in one fabric: its cables, and where the builder plugged them in.
type seat struct {
	host   topo.HostID
	links  []topo.LinkID
	leaves []topo.NodeID
}

// keep gives the graph with the cables of a lock where the lock has them, as far as the switches
// of the graph allow.
func keep(g *topo.Graph, lock *Lock) (*topo.Graph, error) {
	if len(lock.Cables) == 0 {
		return g, nil
	}
	k := &keeper{g: g, lock: lock, links: slices.Clone(g.Links), names: hostPorts(g), used: map[topo.NodeID]map[uint16]bool{},
		most: map[topo.NodeID]int{}, held: map[topo.NodeID]int{}, pods: map[topo.HostID]int32{}}
	k.sit()
	k.seatHosts()
	k.number()
	return g.Replugged(k.links, func(h topo.HostID) int32 {
		if pod, moved := k.pods[h]; moved {
			return pod
		}
		return g.Hosts[h].Pod
	})
}

// hostPorts names the ends of links at hosts: the NIC, with a letter where it has several cables.
func hostPorts(g *topo.Graph) [][2]string {
	out := make([][2]string, len(g.Links))
	g.Each(topo.NIC, func(id topo.NodeID, n *topo.Node) {
		edges := cables(g, id)
		for i, e := range edges {
			name := n.Name
			if len(edges) > 1 {
				name += string(rune('a' + i))
			}
			at := 0
			if g.Links[e.Link].B == id {
				at = 1
			}
			out[e.Link][at] = name
		}
	})
	return out
}

// free reports whether a link may be plugged in elsewhere.
func (k *keeper) free(l topo.LinkID) bool {
	x := &k.g.Links[l]
	if !k.g.Class(l).Kind.Network() {
		return false
	}
	for _, n := range []topo.NodeID{x.A, x.B} {
		if f := k.g.Nodes[n].Fabric; f < 0 || k.g.Fabrics[f].Family != topo.Clos {
			return false
		}
	}
	return k.g.Nodes[x.B].Kind == topo.Switch && x.Count == 1
}

// hostLink reports whether a link's first end is a host's NIC.
func (k *keeper) hostLink(l topo.LinkID) bool { return k.g.Nodes[k.g.Links[l].A].Host != topo.None }

// sit lists the seats of all hosts, and how many cables of hosts a leaf has at most.
func (k *keeper) sit() {
	type key struct {
		host   topo.HostID
		fabric int8
	}
	at := map[key]int{}
	for i := range k.g.Links {
		l := topo.LinkID(i)
		if !k.free(l) || !k.hostLink(l) {
			continue
		}
		x := &k.g.Links[i]
		w := key{k.g.Nodes[x.A].Host, k.g.Nodes[x.A].Fabric}
		s, known := at[w]
		if !known {
			s = len(k.seats)
			at[w] = s
			k.seats = append(k.seats, seat{host: w.host})
		}
		k.seats[s].links, k.seats[s].leaves = append(k.seats[s].links, l), append(k.seats[s].leaves, x.B)
		k.most[x.B]++
	}
	full := map[[2]int]int{} // of leaves alike: by fabric and number of ports
	alike := func(n topo.NodeID) [2]int { return [2]int{int(k.g.Nodes[n].Fabric), int(k.g.Nodes[n].Ports)} }
	for n, has := range k.most {
		full[alike(n)] = max(full[alike(n)], has)
	}
	k.g.Each(topo.Switch, func(n topo.NodeID, x *topo.Node) {
		if x.Tier == 1 {
			k.most[n] = full[alike(n)]
		}
	})
}

// seatHosts gives hosts of the lock their old leaves, and the others leaves that have ports left.
func (k *keeper) seatHosts() {
	var late []int
	for i := range k.seats {
		if leaves, ok := k.locked(&k.seats[i]); !ok || !k.take(&k.seats[i], leaves) {
			late = append(late, i)
		}
	}
	for _, i := range late {
		s := &k.seats[i]
		if k.take(s, s.leaves) {
			continue
		}
		for j := range k.seats { // the place of another host of the same shape
			if k.alike(s, &k.seats[j]) && k.take(s, k.seats[j].leaves) {
				break
			}
		}
	}
}

// locked gives the leaves that a lock has for all cables of a seat.
func (k *keeper) locked(s *seat) (out []topo.NodeID, ok bool) {
	for i, l := range s.links {
		far, known := k.lock.far(Socket{k.g.Hosts[s.host].Name, k.names[l][0]})
		if !known {
			return nil, false
		}
		leaf, err := k.g.Lookup(far.Device)
		if err != nil || k.g.Nodes[leaf].Fabric != k.g.Nodes[s.leaves[i]].Fabric || k.g.Nodes[leaf].Tier != 1 {
			return nil, false
		}
		out = append(out, leaf)
	}
	return out, true
}

// alike reports whether two seats have NICs of the same names, so that one host can have the other's.
func (k *keeper) alike(a, b *seat) bool {
	return slices.EqualFunc(a.links, b.links, func(x, y topo.LinkID) bool {
		return k.names[x][0] == k.names[y][0] && k.g.Links[x].Class == k.g.Links[y].Class &&
			k.g.Nodes[k.g.Links[x].B].Fabric == k.g.Nodes[k.g.Links[y].B].Fabric
	})
}

// take plugs a host into leaves, if they have ports left.
func (k *keeper) take(s *seat, leaves []topo.NodeID) bool {
	need := map[topo.NodeID]int{}
	for _, n := range leaves {
		if need[n]++; k.held[n]+need[n] > k.most[n] {
			return false
		}
	}
	for i, l := range s.links {
		k.held[leaves[i]]++
		if k.links[l].B != leaves[i] {
			k.links[l].B, k.links[l].BPort = leaves[i], 0
		}
	}
	if pod := k.g.Nodes[leaves[0]].Pod; pod != topo.None && !k.g.Fabrics[k.g.Nodes[leaves[0]].Fabric].Service {
		k.pods[s.host] = pod
	}
	return true
}

// number gives every cable its ports: those of the lock first, then the builder's, then others.
func (k *keeper) number() {
	for i := range k.links {
		if !k.free(topo.LinkID(i)) { // these stay where they are
			k.claim(k.links[i].A, k.links[i].APort)
			k.claim(k.links[i].B, k.links[i].BPort)
		}
	}
	var rest []topo.LinkID
	spare := k.lock.between()
	for i := range k.links {
		if l := topo.LinkID(i); k.free(l) && !k.asLocked(l, spare) {
			rest = append(rest, l)
		}
	}
	for _, l := range rest {
		x := &k.links[l]
		if !k.hostLink(l) {
			x.APort = k.port(x.A, k.g.Links[l].APort, false)
		}
		x.BPort = k.port(x.B, x.BPort, k.hostLink(l))
	}
}

// asLocked gives a cable the ports of one between the same two devices in the lock.
func (k *keeper) asLocked(l topo.LinkID, spare map[[2]string][]Cable) bool {
	x := &k.links[l]
	if k.hostLink(l) {
		return k.hostAsLocked(l)
	}
	pair := pairOf(k.g.Nodes[x.A].Name, k.g.Nodes[x.B].Name)
	for len(spare[pair]) > 0 {
		c := spare[pair][0]
		spare[pair] = spare[pair][1:]
		a, b := portNumber(c[0].Port), portNumber(c[1].Port)
		if c[0].Device != k.g.Nodes[x.A].Name {
			a, b = b, a
		}
		if k.used[x.A][a] || k.used[x.B][b] || !k.claim(x.A, a) || !k.claim(x.B, b) {
			continue
		}
		x.APort, x.BPort = a, b
		return true
	}
	return false
}

// hostAsLocked gives a host's cable the port of the lock, if it is still plugged into that switch.
func (k *keeper) hostAsLocked(l topo.LinkID) bool {
	x := &k.links[l]
	far, known := k.lock.far(Socket{k.g.Hosts[k.g.Nodes[x.A].Host].Name, k.names[l][0]})
	if !known || far.Device != k.g.Nodes[x.B].Name || !k.claim(x.B, portNumber(far.Port)) {
		return false
	}
	x.BPort = portNumber(far.Port)
	return true
}

// claim takes a port of a switch; false if it is taken or the switch does not have it.
func (k *keeper) claim(n topo.NodeID, port uint16) bool {
	x := &k.g.Nodes[n]
	if x.Kind != topo.Switch || port == 0 || x.Ports > 0 && port > x.Ports || k.used[n][port] {
		return false
	}
	if k.used[n] == nil {
		k.used[n] = map[uint16]bool{}
	}
	k.used[n][port] = true
	return true
}

// port finds a port of a switch: the builder's for this cable, or one that the builder has for
// cables of the same sort, or any.
func (k *keeper) port(n topo.NodeID, wish uint16, host bool) uint16 {
	if k.claim(n, wish) {
		return wish
	}
	for _, e := range k.g.Edges(n) {
		l := &k.g.Links[e.Link]
		at := l.APort
		if l.B == n {
			at = l.BPort
		}
		if k.hostLink(e.Link) == host && k.claim(n, at) {
			return at
		}
	}
	for at := uint16(1); at < 1<<15; at++ {
		if k.claim(n, at) {
			return at
		}
	}
	return 0
}

// byOwner has the devices that the owner places elsewhere than the lock; of the others it clears the places.
func byOwner(places []floor.Place, lock *Lock) map[string]bool {
	out := map[string]bool{}
	for i := range places {
		p := &places[i]
		p.Names = slices.DeleteFunc(slices.Clone(p.Names), func(name string) bool { return p.Unit == 0 && lock.Racks[name].Rack == p.Rack })
		for _, name := range p.Names {
			out[name] = true
		}
	}
	return out
}

// placed gives the floor with the devices of a lock in the racks and units that it has for them.
// What the owner places in the file is placed there. A floor that cannot be so is left as it is.
func placed(c *cluster.Cluster, g *topo.Graph, lock *Lock) *floor.Plan {
	if c.Floor == nil || len(lock.Racks) == 0 {
		return c.Floor
	}
	in := c.Floor.Intent
	in.Places = slices.Clone(in.Places)
	byHand := byOwner(in.Places, lock)
	for i := range c.Floor.Devices {
		name := c.Floor.Devices[i].Name
		if at, known := lock.Racks[name]; known && !byHand[name] {
			in.Places = append(in.Places, floor.Place{Names: []string{name}, Rack: at.Rack, Unit: at.Unit})
		}
	}
	var more []floor.Extra
	for _, s := range c.Services {
		s.Graph.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) { more = append(more, floor.Extra{Name: n.Name, Model: n.Model}) })
	}
	out, problem := floor.Make(g, c.Catalog, in, more)
	if problem != nil {
		return c.Floor
	}
	return out
}

// wired gives the graph of a cluster and its floor, with the cables and devices of a lock where they are.
func wired(c *cluster.Cluster, lock *Lock) (*topo.Graph, *floor.Plan) {
	g, err := keep(c.Graph, lock)
	if err != nil { // the cables of the lock do not fit any more: they move
		g = c.Graph
	}
	at := placed(c, g, lock)
	if at != nil && (at != c.Floor || g != c.Graph) {
		g = at.Apply(g)
	}
	return g, at
}
