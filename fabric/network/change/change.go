// Package change plans how a network that runs becomes another: which cables to unplug and to
// plug in, which devices take new files, in which order, and what stays up meanwhile.
//
//	Site (now)  ─┐
//	             ├─► Make ─► Steps ─► Prove   every state on the way, from the files that are in force in it
//	Site (next) ─┘
//
// The order is: hosts that go; switches that come; switches that only gain cables; hosts that
// move; uplinks, one switch at a time; switches that move or go; whatever files are left; hosts
// that come. Hosts whose own cables are touched are drained. Nothing else may be cut off, and
// Prove says whether that is so: it reads the files of every state back as weft net prove does.
package change

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/topo"
)

// Site is a network at one moment.
type Site struct {
	Hosts, Switches []string
	Cables          []network.Cable
	Racks           map[string]string // where devices stand, as far as that is known
	Files           map[string][]byte // hosts/NAME/..., switches/NAME/...; nil if nobody has them
}

// Step is what to do at a time.
type Step struct {
	Title     string          `json:"title"`
	Drain     []string        `json:"drain,omitempty"` // hosts that jobs must leave before it
	Unplug    []network.Cable `json:"unplug,omitempty"`
	Remove    []string        `json:"remove,omitempty"` // devices to switch off and take out
	Move      []string        `json:"move,omitempty"`   // devices to another rack, in words
	Add       []string        `json:"add,omitempty"`    // devices to put up
	Plug      []network.Cable `json:"plug,omitempty"`
	Configure []string        `json:"configure,omitempty"` // devices that take their new files
}

func (s *Step) empty() bool {
	return len(s.Unplug)+len(s.Remove)+len(s.Move)+len(s.Add)+len(s.Plug)+len(s.Configure) == 0
}

// Make lists the steps from one network to another.
func Make(now, next Site) []Step {
	p := newPlanner(now, next)
	p.hostsGo()
	p.switchesCome()
	p.gainers()
	p.hostsMove()
	p.uplinks()
	p.switchesMove()
	p.switchesGo()
	p.rest()
	p.hostsCome()
	p.hostFiles()
	return p.steps
}

// planner lists steps while it keeps the state that they lead to.
type planner struct {
	now, next  Site
	was, is    map[string]bool // devices
	host       map[string]bool
	out, in    map[network.Cable]bool
	byDevice   map[string][]network.Cable // out and in, and for devices that move all
	busy       map[network.Socket]bool    // plugged in now
	configured map[string]bool
	nowFiles   map[string]files
	nextFiles  map[string]files
	steps      []Step
}

// newPlanner finds out which cables go and which come. A cable that is in both sites does neither.
func newPlanner(now, next Site) *planner {
	p := &planner{now: now, next: next, was: map[string]bool{}, is: map[string]bool{}, host: map[string]bool{}, out: map[network.Cable]bool{},
		in:       map[network.Cable]bool{},
		byDevice: map[string][]network.Cable{}, busy: map[network.Socket]bool{}, configured: map[string]bool{},
		nowFiles: byDevice(now.Files), nextFiles: byDevice(next.Files)}
	mark(p.was, now.Hosts, now.Switches)
	mark(p.is, next.Hosts, next.Switches)
	mark(p.host, now.Hosts, next.Hosts)
	for _, c := range now.Cables {
		p.out[c] = true
		p.busy[c[0]], p.busy[c[1]] = true, true
	}
	for _, c := range next.Cables {
		if p.out[c] {
			delete(p.out, c)
		} else {
			p.in[c] = true
		}
	}
	for _, c := range slices.Concat(now.Cables, next.Cables) {
		if (p.out[c] || p.in[c]) && !slices.Contains(p.byDevice[c[0].Device], c) {
			p.byDevice[c[0].Device] = append(p.byDevice[c[0].Device], c)
			p.byDevice[c[1].Device] = append(p.byDevice[c[1].Device], c)
		}
	}
	return p
}

func mark(set map[string]bool, lists ...[]string) {
	for _, name := range slices.Concat(lists...) {
		set[name] = true
	}
}

// add ends a step.
func (p *planner) add(s Step) {
	s.Configure = slices.DeleteFunc(s.Configure, func(name string) bool { return p.configured[name] || !p.differ(name) })
	if s.empty() {
		return
	}
	for _, name := range s.Configure {
		p.configured[name] = true
	}
	p.steps = append(p.steps, s)
}

// differ reports whether a device needs other files than it has. Where nobody has files, those do whose cables change.
func (p *planner) differ(name string) bool {
	if !p.is[name] {
		return false
	}
	if p.now.Files == nil || p.next.Files == nil || !p.was[name] {
		return len(p.byDevice[name]) > 0
	}
	return !p.nowFiles[name].same(p.nextFiles[name])
}

// unplug takes cables out of a set that are to go, and frees their ports.
func (p *planner) unplug(list []network.Cable) (done []network.Cable) {
	for _, c := range list {
		if p.out[c] {
			delete(p.out, c)
			delete(p.busy, c[0])
			delete(p.busy, c[1])
			done = append(done, c)
		}
	}
	return done
}

// plug puts in cables of a set whose ports are free, if may allows it.
func (p *planner) plug(list []network.Cable, may func(network.Cable) bool) (done []network.Cable) {
	for _, c := range list {
		if p.in[c] && !p.busy[c[0]] && !p.busy[c[1]] && may(c) {
			delete(p.in, c)
			p.busy[c[0]], p.busy[c[1]] = true, true
			done = append(done, c)
		}
	}
	return done
}

func anyCable(network.Cable) bool { return true }

// trunk reports whether a cable joins switches that are or will be there.
func (p *planner) trunk(c network.Cable) bool { return !p.host[c[1].Device] && !p.host[c[0].Device] }

func (p *planner) hostsGo() {
	s := Step{}
	for _, h := range p.now.Hosts {
		if !p.is[h] {
			s.Drain, s.Remove = append(s.Drain, h), append(s.Remove, h)
			s.Unplug = append(s.Unplug, p.unplug(p.byDevice[h])...)
		}
	}
	s.Title = "take out " + list(s.Remove)
	p.add(s)
}

// switchesCome puts up all new switches in one step: nothing uses them yet, so nothing is drained.
func (p *planner) switchesCome() {
	s := Step{}
	for _, name := range p.next.Switches {
		if !p.was[name] {
			s.Add = append(s.Add, name)
		}
	}
	for _, name := range s.Add {
		// An uplink of a switch that stays is plugged in when that switch has its turn.
		s.Plug = append(s.Plug, p.plug(p.byDevice[name], func(c network.Cable) bool { return p.trunk(c) && !p.was[c[0].Device] })...)
	}
	s.Configure = slices.Clone(s.Add)
	s.Title = "put up " + list(s.Add)
	p.add(s)
}

// loses reports whether a switch has cables that are still to go.
func (p *planner) loses(name string) bool {
	return slices.ContainsFunc(p.byDevice[name], func(c network.Cable) bool { return p.out[c] })
}

// gainers configures the switches that lose nothing: their new files hold all that the old ones do.
func (p *planner) gainers() {
	for _, name := range p.next.Switches {
		if p.was[name] && !p.loses(name) {
			p.add(Step{Title: "configure " + name, Configure: []string{name},
				Plug: p.plug(p.byDevice[name], func(c network.Cable) bool { return p.trunk(c) && c[0].Device == name })})
		}
	}
}

// moving tells whether a device that stays is to stand elsewhere, and puts it in words.
func (p *planner) moving(name string) (string, bool) {
	a, b := p.now.Racks[name], p.next.Racks[name]
	if !p.was[name] || !p.is[name] || a == "" || b == "" || a == b {
		return "", false
	}
	return fmt.Sprintf("%s from %s to %s", name, a, b), true
}

// hostsMove moves hosts that stay to other ports or racks. Hosts that share a switch move together: its
// new files have no place for those that are still at their old ports.
func (p *planner) hostsMove() {
	var movers []string
	g := groups{}
	for _, h := range p.next.Hosts {
		_, racked := p.moving(h)
		if !p.was[h] || len(p.byDevice[h]) == 0 && !racked {
			continue
		}
		movers = append(movers, h)
		for _, c := range p.byDevice[h] {
			g.join(c[0].Device, h)
		}
	}
	byGroup := map[string][]string{}
	for _, h := range movers {
		byGroup[g.of(h)] = append(byGroup[g.of(h)], h)
	}
	for _, h := range movers {
		if together := byGroup[g.of(h)]; together[0] == h {
			p.moveHosts(together)
		}
	}
}

// groups joins names that belong together: each has another one of its group, or nothing if it stands for the group.
type groups map[string]string

func (g groups) of(x string) string {
	for g[x] != "" {
		x = g[x]
	}
	return x
}

func (g groups) join(a, b string) {
	if a, b = g.of(a), g.of(b); a != b {
		g[a] = b
	}
}

// moveHosts drains hosts, moves their cables, and configures them and the switches that the cables go to. A host that
// changes racks has its lasting cables unplugged for the move as well.
func (p *planner) moveHosts(hosts []string) {
	s := Step{Title: "move " + list(hosts), Drain: hosts}
	for _, h := range hosts {
		s.Unplug = append(s.Unplug, p.unplug(p.byDevice[h])...)
		if words, racked := p.moving(h); racked {
			s.Move = append(s.Move, words)
			s.Unplug = append(s.Unplug, p.lasting(h)...)
			s.Plug = append(s.Plug, p.lasting(h)...)
		}
	}
	for _, h := range hosts {
		s.Plug = append(s.Plug, p.plug(p.byDevice[h], anyCable)...)
		for _, c := range p.byDevice[h] {
			s.Configure = append(s.Configure, c[0].Device)
		}
	}
	s.Configure = slices.Compact(slices.Sorted(slices.Values(append(s.Configure, hosts...))))
	p.add(s)
}

// lasting lists the cables of a device that keep their ends.
func (p *planner) lasting(name string) (out []network.Cable) {
	has := map[network.Cable]bool{}
	for _, c := range p.next.Cables {
		has[c] = true
	}
	for _, c := range p.now.Cables {
		if (c[0].Device == name || c[1].Device == name) && has[c] {
			out = append(out, c)
		}
	}
	return out
}

// uplinks moves the cables between switches, one lower switch at a time.
func (p *planner) uplinks() {
	for _, name := range p.next.Switches {
		if !p.was[name] {
			continue
		}
		mine := slices.DeleteFunc(slices.Clone(p.byDevice[name]), func(c network.Cable) bool { return c[0].Device != name || !p.trunk(c) })
		s := Step{Title: "move uplinks of " + name, Unplug: p.unplug(mine)}
		s.Plug = p.plug(mine, anyCable)
		if len(s.Unplug)+len(s.Plug) > 0 {
			s.Configure = []string{name}
		}
		p.add(s)
	}
}

// switchesMove moves switches that stay to other racks. Hosts at them are drained.
func (p *planner) switchesMove() {
	for _, name := range p.next.Switches {
		words, racked := p.moving(name)
		if !racked {
			continue
		}
		s := Step{Title: "move " + name, Move: []string{words}, Unplug: p.lasting(name), Plug: p.lasting(name)}
		for _, c := range s.Unplug {
			if h := c[1].Device; p.host[h] && !slices.Contains(s.Drain, h) {
				s.Drain = append(s.Drain, h)
			}
		}
		p.add(s)
	}
}

func (p *planner) switchesGo() {
	for _, name := range p.now.Switches {
		if !p.is[name] {
			p.add(Step{Title: "take out " + name, Unplug: p.unplug(p.byDevice[name]), Remove: []string{name}})
		}
	}
}

// rest plugs in what had to wait for a port, and gives the remaining switches their files, one at a time.
func (p *planner) rest() {
	for _, name := range p.next.Switches {
		p.add(Step{Title: "finish " + name, Configure: []string{name},
			Plug: p.plug(p.byDevice[name], func(c network.Cable) bool { return p.trunk(c) && c[0].Device == name })})
	}
}

func (p *planner) hostsCome() {
	s := Step{}
	for _, h := range p.next.Hosts {
		if !p.was[h] {
			s.Add = append(s.Add, h)
			s.Plug = append(s.Plug, p.plug(p.byDevice[h], anyCable)...)
		}
	}
	s.Configure = slices.Clone(s.Add)
	s.Title = "put up " + list(s.Add)
	p.add(s)
}

func (p *planner) hostFiles() {
	s := Step{Title: "new files on hosts that stay"}
	for _, h := range p.next.Hosts {
		if p.was[h] {
			s.Configure = append(s.Configure, h)
		}
	}
	p.add(s)
}

// list names a few things.
func list(names []string) string {
	names = slices.Clone(names)
	slices.SortFunc(names, topo.Natural)
	if len(names) > 4 {
		return fmt.Sprintf("%s, %s and %d more", names[0], names[1], len(names)-2)
	}
	return strings.Join(names, ", ")
}
