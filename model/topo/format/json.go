package format

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// The JSON form. Keys are stable; fields that do not apply are left out. Nodes
// are named as Graph.Lookup takes them, classes by their index in "classes".
type (
	jsonGraph struct {
		Format  string       `json:"format"`
		Name    string       `json:"name"`
		Hosts   []jsonHost   `json:"hosts,omitempty"`
		Fabrics []jsonFabric `json:"fabrics,omitempty"`
		Classes []jsonClass  `json:"classes,omitempty"`
		Nodes   []jsonNode   `json:"nodes"`
		Links   []jsonLink   `json:"links"`
	}
	jsonHost struct {
		Name  string `json:"name"`
		Model string `json:"model,omitempty"`
		Pod   *int32 `json:"pod,omitempty"`
		Rack  *int32 `json:"rack,omitempty"`
	}
	jsonFabric struct {
		Name    string `json:"name"`
		Family  string `json:"family"`
		Dims    []int  `json:"dims,omitempty"`
		Service bool   `json:"service,omitempty"`
	}
	jsonClass struct {
		Kind    string  `json:"kind"`
		Gen     string  `json:"gen"`
		Lanes   uint16  `json:"lanes"`
		Rate    float64 `json:"bytes_per_s"`
		Latency int64   `json:"latency_ps"`
	}
	jsonNode struct {
		Name   string     `json:"name"`
		Kind   string     `json:"kind"`
		Host   *int32     `json:"host,omitempty"` // index in "hosts"
		Tier   uint8      `json:"tier,omitempty"`
		Fabric *int8      `json:"fabric,omitempty"` // index in "fabrics"
		Plane  *int8      `json:"plane,omitempty"`
		Rail   *int16     `json:"rail,omitempty"`
		Ports  uint16     `json:"ports,omitempty"`
		Pod    *int32     `json:"pod,omitempty"`
		Rack   *int32     `json:"rack,omitempty"`
		Pos    *int32     `json:"position,omitempty"`
		Model  string     `json:"model,omitempty"`
		Attrs  topo.Attrs `json:"attrs,omitempty"`
	}
	jsonLink struct {
		A     int32      `json:"a"` // index in "nodes"
		B     int32      `json:"b"`
		APort uint16     `json:"a_port,omitempty"`
		BPort uint16     `json:"b_port,omitempty"`
		Class uint16     `json:"class"` // index in "classes"
		Count uint16     `json:"count,omitempty"`
		Attrs topo.Attrs `json:"attrs,omitempty"`
	}
)

// maxParts bounds the parts of one host, whose every GPU looks at every NIC; the
// largest host in the catalogue has fewer than 100.
const maxParts = 1 << 12

// jsonFormat names the form and its version.
const jsonFormat = "weft-topology-1"

func detectJSON(head []byte) bool {
	head = bytes.TrimSpace(head)
	return len(head) > 0 && head[0] == '{' && bytes.Contains(head[:min(len(head), 256)], []byte(`"`+jsonFormat+`"`))
}

// opt leaves None out and gives every other value to be written.
func opt[T int8 | int16 | int32](v T) *T {
	if v == topo.None {
		return nil
	}
	return &v
}

func orNone[T int8 | int16 | int32](p *T) T {
	if p == nil {
		return topo.None
	}
	return *p
}

// encodeJSON writes the whole graph, one element a line, so that two files can be compared.
func encodeJSON(out io.Writer, g *topo.Graph) error {
	w := bufio.NewWriter(out)
	name, err := json.Marshal(g.Name)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "{\"format\":%q,\"name\":%s", jsonFormat, name)
	list := func(key string, n int, element func(i int) any) {
		fmt.Fprintf(w, ",\n%q:[", key)
		for i := range n {
			line, e := json.Marshal(element(i))
			err = errors.Join(err, e)
			if i > 0 {
				w.WriteByte(',')
			}
			w.WriteByte('\n')
			w.Write(line)
		}
		w.WriteByte(']')
	}
	list("hosts", len(g.Hosts), func(i int) any {
		h := &g.Hosts[i]
		return jsonHost{h.Name, h.Model, opt(h.Pod), opt(h.Rack)}
	})
	list("fabrics", len(g.Fabrics), func(i int) any {
		f := &g.Fabrics[i]
		return jsonFabric{f.Name, f.Family.String(), f.Dims, f.Service}
	})
	list("classes", len(g.Classes), func(i int) any {
		c := &g.Classes[i]
		return jsonClass{c.Kind.String(), c.Gen, c.Lanes, float64(c.Rate), int64(c.Latency)}
	})
	list("nodes", len(g.Nodes), func(i int) any {
		n := &g.Nodes[i]
		v := jsonNode{Name: n.Name, Kind: n.Kind.String(), Host: opt(int32(n.Host)), Tier: n.Tier, Fabric: opt(n.Fabric), Plane: opt(n.Plane),
			Rail:  opt(n.Rail),
			Ports: n.Ports, Pos: opt(n.Pos), Model: n.Model, Attrs: g.Attrs[topo.NodeID(i)]}
		if n.Host == topo.None { // a part of a host stands where the host stands
			v.Pod, v.Rack = opt(n.Pod), opt(n.Rack)
		}
		return v
	})
	list("links", len(g.Links), func(i int) any {
		l := &g.Links[i]
		count := l.Count
		if count == 1 {
			count = 0
		}
		return jsonLink{int32(l.A), int32(l.B), l.APort, l.BPort, uint16(l.Class), count, g.Wires[topo.LinkID(i)]}
	})
	w.WriteString("}\n")
	return errors.Join(err, w.Flush())
}

// decodeJSON reads what encodeJSON writes, strictly: an unknown key, an index
// out of range or a second value is an error.
func decodeJSON(name string, data []byte) (*topo.Graph, error) {
	v, err := strictJSON(data)
	if err != nil {
		return nil, err
	}
	b := topo.NewBuilder(cmp.Or(v.Name, name))
	for _, h := range v.Hosts {
		b.Host(topo.Host{Name: h.Name, Model: h.Model, Pod: orNone(h.Pod), Rack: orNone(h.Rack)})
	}
	for i, f := range v.Fabrics {
		family, err := topo.ParseFamily(f.Family)
		if err != nil {
			return nil, badItem("fabrics", i, "%v", err)
		}
		b.Fabric(topo.Fabric{Name: f.Name, Family: family, Dims: f.Dims, Service: f.Service})
	}
	classes := make([]topo.ClassID, len(v.Classes))
	for i, c := range v.Classes {
		kind, err := topo.ParseLinkKind(c.Kind)
		if err != nil {
			return nil, badItem("classes", i, "%v", err)
		}
		classes[i] = b.Class(topo.Class{Kind: kind, Gen: c.Gen, Lanes: c.Lanes, Rate: unit.Rate(c.Rate), Latency: unit.Time(c.Latency)})
	}
	if err := v.nodes(b); err != nil {
		return nil, err
	}
	if err := v.links(b, classes); err != nil {
		return nil, err
	}
	return finish("json", b)
}

// strictJSON decodes the file and nothing behind it.
func strictJSON(data []byte) (*jsonGraph, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	v := &jsonGraph{}
	fail := func(offset int64, format string, args ...any) error {
		return errorAt("json", 1+bytes.Count(data[:min(int(offset), len(data))], []byte{'\n'}), format, args...)
	}
	if err := d.Decode(v); err != nil {
		offset := d.InputOffset()
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			offset = syntax.Offset
		case errors.As(err, &kind):
			return nil, fail(kind.Offset, "%s holds a %s; expected %s", clip(kind.Field), kind.Value, kind.Type)
		}
		return nil, fail(offset, "%s; expected a topology as weft writes it", clip(err.Error()))
	}
	if v.Format != jsonFormat {
		return nil, fail(0, "format is %q; expected %q", clip(v.Format), jsonFormat)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fail(d.InputOffset(), "more follows after the end of the topology")
	}
	return v, nil
}

// badItem is an error in one element of a list.
func badItem(list string, i int, format string, args ...any) error {
	return fmt.Errorf("json: %s[%d]: %s", list, i, fmt.Sprintf(format, args...))
}

// nodes adds the nodes. Hosts are limited in their number of parts.
func (v *jsonGraph) nodes(b *topo.Builder) error {
	parts := make([]int, len(v.Hosts))
	for i, n := range v.Nodes {
		kind, err := topo.ParseKind(n.Kind)
		if err != nil {
			return badItem("nodes", i, "%v", err)
		}
		host := orNone(n.Host)
		if host != topo.None && (host < 0 || int(host) >= len(v.Hosts)) {
			return badItem("nodes", i, "host is %d; there are %d hosts", host, len(v.Hosts))
		}
		if host != topo.None {
			if parts[host]++; parts[host] > maxParts {
				return badItem("nodes", i, "host %q has more than %d parts", clip(v.Hosts[host].Name), maxParts)
			}
		}
		id := b.Node(topo.Node{Kind: kind, Name: n.Name, Host: topo.HostID(host), Tier: n.Tier, Fabric: orNone(n.Fabric), Plane: orNone(n.Plane),
			Rail:  orNone(n.Rail),
			Ports: n.Ports, Pod: orNone(n.Pod), Rack: orNone(n.Rack), Pos: orNone(n.Pos), Model: n.Model})
		b.Attr(id, n.Attrs)
	}
	return nil
}

func (v *jsonGraph) links(b *topo.Builder, classes []topo.ClassID) error {
	for i, l := range v.Links {
		if l.A < 0 || l.B < 0 || int(l.A) >= len(v.Nodes) || int(l.B) >= len(v.Nodes) {
			return badItem("links", i, "joins nodes %d and %d of %d", l.A, l.B, len(v.Nodes))
		}
		if int(l.Class) >= len(classes) {
			return badItem("links", i, "class is %d; there are %d classes", l.Class, len(classes))
		}
		id := b.Link(topo.Link{A: topo.NodeID(l.A), B: topo.NodeID(l.B), APort: l.APort, BPort: l.BPort, Class: classes[l.Class], Count: l.Count})
		b.Wire(id, l.Attrs)
	}
	return nil
}
