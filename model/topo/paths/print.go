package paths

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Print writes ranked paths for a person: a table, and below it for each path
// its hops, what its latency is made of, what limits it and why it stands where
// it does.
func Print(w io.Writer, g *topo.Graph, paths []Path, size unit.Bytes) error {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "#\tmechanism\t\twire\texpected\tunder load\tlatency\t%s\tpaths\n", size)
	for i := range paths {
		p := &paths[i]
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i+1, p.Mechanism, p.Detail, p.Rate, p.Expected, p.Loaded, p.Latency,
			p.Time(size), ways(p.Count))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range paths {
		p := &paths[i]
		fmt.Fprintf(&b, "\n%d  %s\n", i+1, p.name())
		fmt.Fprintf(&b, "   %s\n", p.Route(g))
		var terms []string
		for _, t := range p.Terms {
			terms = append(terms, fmt.Sprintf("%s %s", t.What, t.Time))
		}
		fmt.Fprintf(&b, "   latency: %s\n", strings.Join(terms, ", "))
		fmt.Fprintf(&b, "   limit: %s\n", p.Limit)
		if p.Crowd != "" {
			fmt.Fprintf(&b, "   under load: %s\n", p.Crowd)
		}
		fmt.Fprintf(&b, "   rank: %s\n", p.Reason)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func ways(n uint64) string {
	if n == math.MaxUint64 {
		return "countless"
	}
	return fmt.Sprint(n)
}

// Route writes the hops as names: "n0:gpu0 → n0:pex0 → n0:nic0 → leaf0:p1 → …",
// switches with the port that bytes come in by. Where bytes part, the first way
// is written with the number of ways.
func (p *Path) Route(g *topo.Graph) string {
	var b strings.Builder
	b.WriteString(g.NodeName(p.From))
	at := p.From
	for _, u := range p.Hops {
		link := &g.Links[u.Link]
		from, to := link.Ends(u.Forward)
		if from != at {
			continue
		}
		at = to
		b.WriteString(" → ")
		b.WriteString(g.NodeName(to))
		port := link.BPort
		if to == link.A {
			port = link.APort
		}
		if port != 0 && g.Nodes[to].Kind == topo.Switch {
			fmt.Fprintf(&b, ":p%d", port)
		}
		if u.Share < 0.999 {
			if others := p.others(g, from, to); others > 0 {
				fmt.Fprintf(&b, " (and %d more)", others)
			}
		}
	}
	return b.String()
}

// others counts the hops from a node to anywhere but one of its peers.
func (p *Path) others(g *topo.Graph, from, to topo.NodeID) (n int) {
	for _, h := range p.Hops {
		if x, y := g.Links[h.Link].Ends(h.Forward); x == from && y != to {
			n++
		}
	}
	return n
}
