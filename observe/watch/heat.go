package watch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/observe/internal/health"
)

// heatRows is how many rows a map of hosts has; the worst are shown.
const heatRows = 128

// heat is the table of how full ports are: by leaf and rail where the cables are known, else by host, and then only the
// worst of many hosts.
func (m *Machine) heat(now float64) Heat {
	suspect := map[string]bool{}
	for _, i := range m.open {
		if strings.HasPrefix(i.Kind, "port-") {
			for _, d := range i.Subject.Devices {
				suspect[d] = true
			}
		}
	}
	byLeaf := false
	for _, h := range m.hosts {
		for _, p := range h.ports {
			byLeaf = byLeaf || p.place.Leaf != ""
		}
		if byLeaf {
			break
		}
	}
	names := slices.Sorted(maps.Keys(m.hosts))
	if !byLeaf && len(names) > heatRows {
		names = m.worstHosts(names, suspect)
	}
	cells := map[heatPlace]*Cell{}
	room := map[heatPlace]float64{} // bytes a second of the ports that are up
	for _, name := range names {
		h := m.hosts[name]
		for _, p := range h.ports {
			k := heatPlace{p.Device, name}
			if p.place.Rail >= 0 {
				k.col = fmt.Sprintf("rail %d", p.place.Rail)
			}
			if byLeaf {
				k.name = cmp.Or(p.place.Leaf, name)
			}
			c := cells[k]
			if c == nil {
				c = &Cell{Name: k.name}
				cells[k] = c
			}
			c.count(p, now, h.worst(p.Device, suspect[name+":"+p.Device]))
			if p.Active {
				room[k] += p.Gbps / 8 * 1e9
			}
		}
	}
	for k, c := range cells {
		if room[k] > 0 {
			c.Load = c.Tx / room[k]
		}
	}
	if byLeaf {
		names = nil
	}
	return arrange(cells, names)
}

// heatPlace is a column of the heat map and what stands in it: a switch of the rail, or a host.
type heatPlace struct{ col, name string }

// worstHosts are as many as have room, those with the most that is not good.
func (m *Machine) worstHosts(names []string, suspect map[string]bool) []string {
	worst := map[string]int{}
	for _, name := range names {
		for _, x := range m.hosts[name].states {
			worst[name] += int(x.State)
		}
		for _, p := range m.hosts[name].ports {
			if !p.Active || suspect[name+":"+p.Device] {
				worst[name] += 3
			}
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(worst[b], worst[a]) })
	names = names[:heatRows]
	return names
}

// worst is the state of a device: bad where an incident names its port, else that of the worst check.
func (h *host) worst(device string, suspect bool) health.State {
	worst := health.Good
	if suspect {
		worst = health.Bad
	}
	for _, s := range h.states {
		if s.Device == device {
			worst = max(worst, s.State)
		}
	}
	return worst
}

// count adds a port to its cell.
func (c *Cell) count(p *port, now float64, state health.State) {
	c.Ports++
	if !p.Active {
		c.Down++
	}
	if now-p.at < 60 {
		c.Tx += p.txRate
	}
	switch state {
	case health.Bad:
		c.Bad++
	case health.Warn:
		c.Warn++
	}
}

// arrange gives cells their rows and columns. Rows are hosts, or, without hosts, the switches of each rail in order.
func arrange(cells map[heatPlace]*Cell, hosts []string) Heat {
	out := Heat{Columns: []string{}, Rows: []string{}, Cells: []Cell{}}
	cols := map[string]int{}
	keys := slices.SortedFunc(maps.Keys(cells), func(a, b heatPlace) int { return cmp.Or(natural(a.col, b.col), natural(a.name, b.name)) })
	for _, k := range keys {
		if _, known := cols[k.col]; !known {
			cols[k.col] = len(out.Columns)
			out.Columns = append(out.Columns, k.col)
		}
	}
	rows := map[string]int{}
	slices.SortFunc(hosts, natural)
	for i, n := range hosts {
		rows[n] = i
		out.Rows = append(out.Rows, n)
	}
	at := map[string]int{}
	for _, k := range keys {
		c := cells[k]
		c.Column = cols[k.col]
		if hosts == nil {
			c.Row = at[k.col]
			at[k.col]++
			if c.Row >= len(out.Rows) {
				out.Rows = append(out.Rows, fmt.Sprintf("switch %d of the rail", c.Row))
			}
		} else {
			c.Row = rows[k.name]
		}
		out.Cells = append(out.Cells, *c)
	}
	return out
}
