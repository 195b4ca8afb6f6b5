package cluster

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo/floor"
)

// readFloor reads the section floor over its defaults; nil where there is none.
func (p *parse) readFloor(n *node) *floor.Intent {
	if n == nil {
		return nil
	}
	out := floor.Default()
	f := p.fields("floor", n)
	if r := f.get("rack"); r != nil {
		q := p.fields("floor.rack", r)
		q.set("units", &out.Units, 4, 100)
		q.set("reserve", &out.Reserve, 0, 40)
		q.set("hosts", &out.Hosts, 1, 100)
		q.measure("power", &out.Power, 100, 1e6, "40kW", watts)
		q.measure("width", &out.Width, 0.3, 3, "600mm", metres)
		q.measure("depth", &out.Depth, 0.3, 5, "1.2m", metres)
		if out.Reserve >= out.Units {
			q.fail("reserve", "%d of %d units; leave some for hosts", out.Reserve, out.Units)
		}
		q.done()
	}
	f.set("row", &out.Row, 1, 200)
	f.measure("aisle", &out.Aisle, 0, 20, "1.2m", metres)
	f.measure("tray", &out.Tray, 0, 10, "40cm", metres)
	f.measure("slack", &out.Slack, 0, 20, "0.5m", metres)
	if l := f.get("lengths"); l != nil {
		out.Lengths = p.lengths(f, l)
	}
	if f.has("cables") {
		out.Cables = f.oneOf("cables", "cheapest", "fibre")
	}
	out.Places = p.readPlaces(f.get("place"))
	f.done()
	return &out
}

// floorLines finds the line of a field of the section floor, such as rack.power.
func floorLines(n *node) func(field string) int {
	return func(field string) int {
		at := n
		line := 0
		for part := range strings.SplitSeq(field, ".") {
			if at == nil {
				break
			}
			found := false
			for i := range at.keys {
				if at.keys[i].key == part {
					line, at, found = at.keys[i].line, at.keys[i].value, true
					break
				}
			}
			if !found {
				break
			}
		}
		return line
	}
}

// lengths reads the lengths in which cables are sold, shortest first.
func (p *parse) lengths(f *fields, n *node) []float64 {
	if n.kind != list || len(n.list) == 0 {
		p.fail(n.line, f.at("lengths"), "%s; it must be a list of lengths in which cables are sold, such as [1, 2, 3, 5, 10, 30]", n.show())
		return nil
	}
	var out []float64
	for _, item := range n.list {
		v, ok := metres(item.text)
		if item.kind != scalar || !ok || v <= 0 || v > 10000 {
			p.fail(item.line, f.at("lengths"), "%s; it must be a length such as 3m", item.show())
			continue
		}
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}

// readPlaces reads where devices stand by hand: "spine[0-7]": C05, or C05:U20.
func (p *parse) readPlaces(n *node) []floor.Place {
	if n == nil {
		return nil
	}
	var out []floor.Place
	f := p.fields("floor.place", n)
	for _, e := range f.n.keys {
		rack, unit, has := strings.Cut(e.value.text, ":U")
		at := 0
		if has {
			v, err := strconv.Atoi(unit)
			if err != nil || v < 1 || v > 100 {
				p.fail(e.line, f.at(clip(e.key)), "%s; it must be a rack, or a rack and its lowest unit, such as C05:U20", e.value.show())
				continue
			}
			at = v
		}
		if e.value.kind != scalar || rack == "" {
			p.fail(e.line, f.at(clip(e.key)), "%s; it must be a rack, such as C05, or C05:U20", e.value.show())
			continue
		}
		out = append(out, floor.Place{Names: p.expand(f.at(clip(e.key)), e.line, e.key), Rack: rack, Unit: at, Line: e.line})
	}
	return out
}

// measure reads a quantity between lo and hi over what is there.
func (f *fields) measure(name string, into *float64, lo, hi float64, example string, read func(string) (float64, bool)) {
	n := f.get(name)
	if n == nil {
		return
	}
	v, ok := read(n.text)
	switch {
	case n.kind != scalar || !ok:
		f.fail(name, "%s; it must be such as %s", n.show(), example)
	case v < lo || v > hi:
		f.fail(name, "%s; it must be between %v and %v, such as %s", n.show(), lo, hi, example)
	default:
		*into = v
	}
}

// scaled reads a number with one of some units behind it.
func scaled(text string, units []string, factors []float64) (float64, bool) {
	text = strings.TrimSpace(text)
	scale := 1.0
	for i, u := range units {
		if cut, ok := strings.CutSuffix(text, u); ok {
			text, scale = strings.TrimSpace(cut), factors[i]
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	return v * scale, err == nil && v >= 0 && v < 1e12
}

// metres reads 600mm, 40cm, 1.2m, or a number of metres.
func metres(text string) (float64, bool) {
	return scaled(text, []string{"mm", "cm", "m"}, []float64{1e-3, 1e-2, 1})
}

// watts reads 40kW, 40000W, or a number of watts.
func watts(text string) (float64, bool) {
	return scaled(text, []string{"MW", "kW", "W"}, []float64{1e6, 1e3, 1})
}
