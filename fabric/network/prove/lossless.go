package prove

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// qos is what a SONiC switch says of packet classes, until its ports are known.
type qos struct {
	ports             map[string]map[string]string // rows of PORT_QOS_MAP
	dscp, group       map[string]map[string]string // maps by name: DSCP to traffic class, traffic class to priority group
	hashType, hashing string                       // what decides how flows are spread
}

// strings gives the text fields of a row.
func fields(row map[string]any) map[string]string {
	out := map[string]string{}
	for k, v := range row {
		out[k] = fmt.Sprint(v)
	}
	return out
}

// row takes a row that concerns packet classes or hashing.
func (q *qos) row(table, key string, row map[string]any) {
	switch table {
	case "PORT_QOS_MAP":
		q.ports[key] = fields(row)
	case "DSCP_TO_TC_MAP":
		q.dscp[key] = fields(row)
	case "TC_TO_PRIORITY_GROUP_MAP":
		q.group[key] = fields(row)
	case "DEVICE_METADATA":
		q.hashType = fields(row)["type"]
	case "SWITCH_HASH":
		q.hashing = fields(row)["ecmp_hash"]
	}
}

// apply gives ports the packet classes for which they pause their peers, and the switch its hash.
func (q *qos) apply(d *Device) error {
	d.hash = q.hash()
	for name, row := range q.ports {
		p := d.port(name)
		p.Lossless = map[int]int{}
		paused := strings.Split(row["pfc_enable"], ",")
		for dscp, class := range q.dscp[row["dscp_to_tc_map"]] {
			group := q.group[row["tc_to_pg_map"]][class]
			if group == "" || !slices.Contains(paused, group) {
				continue
			}
			value, err := strconv.Atoi(dscp)
			if err != nil {
				return err
			}
			if p.Lossless[value], err = strconv.Atoi(group); err != nil {
				return err
			}
		}
	}
	return nil
}

// hash names how a SONiC switch spreads flows. It takes seed and offset from its type. Two seeds of one CRC
// differ by a constant and choose alike, so only offset and fields tell hashes apart.
func (q *qos) hash() string {
	offset := 0
	if q.hashType == "LeafRouter" {
		offset = 10
	}
	return fmt.Sprintf("offset %d of %s", offset, q.hashing)
}

// roce reads how a host's NICs treat packet classes: trust in DSCP, the priority of each, and those that pause.
func (n *Net) roce(name string, data []byte) error {
	d := n.device(name, false)
	prio := map[string]map[int]int{} // of each port, by DSCP
	for line := range strings.Lines(string(data)) {
		w := strings.Fields(line)
		if len(w) < 5 || w[0] != "mlnx_qos" || w[1] != "-i" {
			continue
		}
		port := strings.Clone(w[2])
		if prio[port] == nil {
			prio[port] = map[int]int{}
		}
		switch w[3] {
		case "--dscp2prio":
			var dscp, to int
			if _, err := fmt.Sscanf(w[4], "set,%d,%d", &dscp, &to); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			prio[port][dscp] = to
		case "--pfc":
			d.port(port).Lossless = pausing(prio[port], strings.Split(w[4], ","))
		}
	}
	return nil
}

// pausing gives the packets whose priority is one of those that pause, which are marked 1.
func pausing(prio map[int]int, marks []string) map[int]int {
	out := map[int]int{}
	for dscp, to := range prio {
		if to < len(marks) && marks[to] == "1" {
			out[dscp] = to
		}
	}
	return out
}

// paused looks for cables whose two ends do not pause one another for the same packets: the one drops what
// the other counts on.
func (n *Net) paused() Verdict {
	v := Verdict{Property: "both ends of a cable are lossless alike", Of: "cables"}
	for i := range n.cables {
		c := &n.cables[i]
		if c.a.Lossless == nil || c.b.Lossless == nil {
			continue // no file says
		}
		v.Cases++
		if !maps.Equal(c.a.Lossless, c.b.Lossless) {
			v.refute(1,
				Counterexample{Why: fmt.Sprintf("%s pauses %s, %s:%s pauses %s", c.a.on.Name+":"+c.a.Name, classes(c.a.Lossless), c.b.on.Name, c.b.Name,
					classes(c.b.Lossless))})
		}
	}
	return v
}

func classes(m map[int]int) string {
	if len(m) == 0 {
		return "nothing"
	}
	var out []string
	for _, dscp := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("DSCP %d as priority %d", dscp, m[dscp]))
	}
	return strings.Join(out, ", ")
}

// lossless reports whether a cable between switches pauses instead of dropping, for some packets.
func (c *cable) lossless() bool {
	for dscp := range c.a.Lossless {
		if _, both := c.b.Lossless[dscp]; both {
			return true
		}
	}
	return false
}

// buffers looks for deadlocks: switches that pause one another in a circle. A buffer waits for the next one on
// a packet's way, so a deadlock needs a circle of such dependencies. Paths that go up and then down, as seen from
// hosts, have none: buffers upwards only wait for those further up or downwards, and these for those further down.
// That is decided for every class by itself. Where a path goes down and up again, all classes' dependencies in that
// state are put together, and a circle is looked for.
type buffers struct {
	level    []int32 // of each router: hops from the next one with hosts
	lossless []bool  // of each cable
	any      bool
	circles  map[string][]string // found in the states that were looked at
	seen     [2][]int32          // epochs at which routers were reached by packets on their way up, and down
	epoch    int32
}

// maxCircles is in how many states a circle is looked for.
const maxCircles = 64

func newBuffers(n *Net) *buffers {
	b := &buffers{level: make([]int32, len(n.routers)), lossless: make([]bool, len(n.cables)), circles: map[string][]string{}}
	b.seen = [2][]int32{make([]int32, len(n.routers)), make([]int32, len(n.routers))}
	var queue []int32
	for _, d := range n.routers {
		b.level[d.id] = -1
		if d.hasHosts() {
			b.level[d.id] = 0
			queue = append(queue, d.id)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, e := range n.trunks[queue[0]] {
			if b.level[e.to] < 0 {
				b.level[e.to] = b.level[queue[0]] + 1
				queue = append(queue, e.to)
			}
		}
	}
	for i := range n.cables {
		if c := &n.cables[i]; c.trunk() && c.lossless() {
			b.lossless[i], b.any = true, true
		}
	}
	return b
}

func (d *Device) hasHosts() bool {
	return slices.ContainsFunc(d.ports, func(p *Port) bool { return p.Peer != nil && !p.Peer.Device.Router })
}

// turns looks at the paths of a class from some routers, and whether buffers may wait in a circle.
func (p *prover) turns(r *rib, f *failed, from ...int32) {
	b := p.buffers
	if !b.any {
		return
	}
	b.epoch++
	var at int32 = -1
	var walk func(u int32, down int)
	walk = func(u int32, down int) {
		if at >= 0 || b.seen[down][u] == b.epoch {
			return
		}
		b.seen[down][u] = b.epoch
		p.w.hops(r, u, f, func(e edge) {
			if next, turns := b.step(u, e, down); turns {
				at = u
			} else {
				walk(e.to, next)
			}
		})
	}
	for _, u := range from {
		walk(u, 0)
	}
	if at >= 0 {
		p.suspect(at, f)
	}
}

// step tells whether a packet is on its way down behind a hop, 1 if so, and whether it turned: down, and then up or across.
func (b *buffers) step(u int32, e edge, down int) (next int, turns bool) {
	rises := b.level[e.to] - b.level[u]
	switch {
	case !b.lossless[e.cable]: // a buffer that drops waits for nobody
		return 0, false
	case rises > 0:
		return 0, down == 1
	}
	return 1, down == 1 && rises == 0
}

// suspect refutes a state in which packets go down and up at a router, if buffers wait in a circle.
func (p *prover) suspect(at int32, f *failed) {
	key := ""
	if f != nil {
		key = p.n.named(f)
	}
	circle, known := p.buffers.circles[key]
	if !known && len(p.buffers.circles) >= maxCircles {
		p.cyclic.refute(1, Counterexample{Failure: key, Path: []string{p.n.routers[at].Name},
			Why: "packets go down and up again here; whether buffers wait in a circle was not decided, there are too many such states"})
		return
	}
	if !known {
		circle = p.circle(f)
		p.buffers.circles[key] = circle
	}
	if circle != nil {
		p.cyclic.refute(1, Counterexample{Failure: key, Path: circle,
			Why: "buffers wait for one another in a circle: each pauses the one before it, and none can drain"})
	}
}

// circle puts the dependencies of all classes together and looks for a circle; nil if there is none.
func (p *prover) circle(f *failed) []string {
	waits := map[[2]int32]map[[2]int32]bool{} // buffers by cable and the router behind it
	r := &rib{dist: make([]int32, len(p.n.routers)), path: make([]int32, len(p.n.routers))}
	for _, c := range p.classes {
		if len(c.chain) > 1 {
			continue
		}
		p.w.rib(c.chain[0].origins, c.chain[0].shut, f, r)
		seen := map[[2]int32]bool{}
		var walk func(in [2]int32)
		walk = func(in [2]int32) { // by cable, at router
			if seen[in] {
				return
			}
			seen[in] = true
			p.w.hops(r, in[1], f, func(e edge) {
				out := [2]int32{e.cable, e.to}
				if in[0] >= 0 && p.buffers.lossless[in[0]] && p.buffers.lossless[e.cable] {
					if waits[in] == nil {
						waits[in] = map[[2]int32]bool{}
					}
					waits[in][out] = true
				}
				walk(out)
			})
		}
		for _, u := range p.sourcesOf(c) {
			walk([2]int32{-1, u})
		}
	}
	return p.cycle(waits)
}

// cycle finds a circle in a graph of buffers, and names its routers.
func (p *prover) cycle(waits map[[2]int32]map[[2]int32]bool) (found []string) {
	order := func(a, b [2]int32) int { return slices.Compare(a[:], b[:]) }
	state := map[[2]int32]int{} // 1 on the way, 2 done
	var way [][2]int32
	var visit func(b [2]int32)
	visit = func(b [2]int32) {
		state[b] = 1
		way = append(way, b)
		for _, next := range slices.SortedFunc(maps.Keys(waits[b]), order) {
			if found == nil && state[next] == 0 {
				visit(next)
			} else if found == nil && state[next] == 1 {
				for _, x := range way[slices.Index(way, next):] {
					found = append(found, p.n.routers[x[1]].Name)
				}
				found = append(found, found[0])
			}
		}
		way = way[:len(way)-1]
		state[b] = 2
	}
	for _, b := range slices.SortedFunc(maps.Keys(waits), order) {
		if found == nil && state[b] == 0 {
			visit(b)
		}
	}
	return found
}

// sourcesOf lists the routers at which packets to a class enter.
func (p *prover) sourcesOf(c *class) (out []int32) {
	for _, l := range p.legs {
		if c.count[l.to] == 0 {
			continue
		}
		for _, s := range l.sources {
			out = append(out, s.router)
		}
	}
	return out
}
