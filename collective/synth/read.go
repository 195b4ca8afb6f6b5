package synth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// mostNodes bounds what Read takes.
const mostNodes = 1 << 14

// Read reads a network from a list of links, one a line: both ends and a rate,
// parted by blanks or commas. Ends that begin with r and a number are ranks, r0
// to rN-1; others are switches. A line is one direction; with "-" between the
// ends it is both.
//
//	r0 r1 25GB/s
//	r1 r0 12.5GB/s
//	r0 - leaf 400Gb/s
//
// A number alone is GB/s. An optional "host NAME r0 r1 ..." names ranks that are
// in one box. Lines may end with a comment after #.
func Read(name, text string) (*Net, error) {
	n := &Net{Name: name, Unit: grain}
	at := map[string]int{}
	type raw struct {
		from, to string
		cap      int64
	}
	var links []raw
	boxes := map[string]int{}
	ranks := -1
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		f := strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == ',' || c == '\t' || c == '\r' })
		fail := func(format string, args ...any) error {
			return fmt.Errorf("line %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		switch {
		case len(f) == 0:
			continue
		case f[0] == "host" && len(f) > 2:
			for _, r := range f[2:] {
				if k, ok := rankOf(r); !ok || r != "r"+strconv.Itoa(k) {
					return nil, fail("%q is no rank; ranks are r0, r1, ...", r)
				}
				if boxes[r] > 0 {
					return nil, fail("%s is in two hosts", r)
				}
				boxes[r] = len(boxes) + 1
			}
			for _, r := range f[3:] {
				boxes[r] = boxes[f[2]]
			}
			continue
		case len(f) != 3 && (len(f) != 4 || f[1] != "-"):
			return nil, fail("want FROM TO RATE or A - B RATE, like r0 r1 25GB/s, got %q", strings.TrimSpace(line))
		}
		rate, err := parseRate(f[len(f)-1])
		if err != nil {
			return nil, fail("%v", err)
		}
		a, b := f[0], f[len(f)-2]
		if a == b {
			return nil, fail("%s is linked to itself", a)
		}
		for _, end := range []string{a, b} {
			if r, ok := rankOf(end); ok {
				if label := "r" + strconv.Itoa(r); label != end {
					return nil, fail("%q: write rank %d as %s", end, r, label)
				}
				ranks = max(ranks, r)
			}
			at[end] = 0
		}
		if len(at) > mostNodes || ranks > mostNodes {
			return nil, fail("more than %d nodes", mostNodes)
		}
		links = append(links, raw{a, b, rate})
		if len(f) == 4 {
			links = append(links, raw{b, a, rate})
		}
	}
	n.Ranks = ranks + 1
	if n.Ranks < 2 {
		return nil, fmt.Errorf("ranks found: %d; a schedule needs at least two, named r0, r1 and so on", n.Ranks)
	}
	var switches []string
	for end := range at {
		if _, ok := rankOf(end); !ok {
			switches = append(switches, end)
		}
	}
	slices.Sort(switches)
	for r := range n.Ranks {
		label := "r" + strconv.Itoa(r)
		if _, ok := at[label]; !ok {
			return nil, fmt.Errorf("rank %s has no link; ranks are numbered from r0 without gaps", label)
		}
		at[label] = r
		n.Names, n.Hosts = append(n.Names, label), append(n.Hosts, boxes[label]-1)
	}
	for i, s := range switches {
		at[s] = n.Ranks + i
		n.Names, n.Hosts = append(n.Names, s), append(n.Hosts, -1)
	}
	for _, l := range links {
		n.Edges = append(n.Edges, Edge{From: at[l.from], To: at[l.to], Cap: l.cap, Links: 1})
	}
	n.Edges = gathered(n.Edges)
	n.tidy()
	if left := n.apart(); left != nil {
		return nil, fmt.Errorf("no path joins %s to the other ranks; a schedule needs one network", n.ranks(left))
	}
	return n, nil
}

func rankOf(s string) (int, bool) {
	if len(s) < 2 || s[0] != 'r' {
		return 0, false
	}
	v, err := strconv.Atoi(s[1:])
	return v, err == nil && v >= 0 && s[1] != '+'
}

// parseRate reads a plain number as GB/s, or a rate in bytes or bits. Capacities are whole multiples of the grain, and
// at least one.
func parseRate(s string) (int64, error) {
	rate := unit.Rate(0)
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		rate = unit.Rate(v) * unit.GBps
	} else if rate, err = unit.ParseRate(s); err != nil {
		bits, err2 := unit.ParseBitRate(s)
		if err2 != nil {
			return 0, err
		}
		rate = bits.Bytes()
	}
	if !(rate >= grain/2 && rate < 1e15) {
		return 0, fmt.Errorf("rate %s: want 1 MB/s or more", s)
	}
	return max(int64(float64(rate)/grain+0.5), 1), nil
}

// Graph is the network as a host, for a simulation: it has both directions of a
// link alike, so it reports false where they are not.
func (n *Net) Graph() (*topo.Graph, []topo.NodeID, bool) {
	if !n.even() {
		return nil, nil, false
	}
	b := topo.NewBuilder(n.Name)
	host := b.Host(topo.Host{Name: "n0"})
	var nodes []topo.NodeID
	for v := range n.Nodes() {
		kind := topo.GPU
		if v >= n.Ranks {
			kind = topo.NVSwitch
		}
		nodes = append(nodes, b.Node(topo.Part(kind, host, n.Names[v])))
	}
	for _, e := range n.Edges {
		if e.From < e.To {
			class := b.Class(topo.Class{Kind: topo.NVLink, Gen: "measured", Lanes: 1, Rate: unit.Rate(e.Cap) * n.Unit,
				Latency: unit.Microsecond / 2})
			b.Link(topo.Link{A: nodes[e.From], B: nodes[e.To], Class: class, Count: 1})
		}
	}
	g, err := b.Graph()
	if err != nil {
		return nil, nil, false
	}
	gpus := make([]topo.NodeID, n.Ranks)
	for r := range gpus {
		if gpus[r], err = g.Lookup("n0:" + n.Names[r]); err != nil {
			return nil, nil, false
		}
	}
	return g, gpus, true
}
