package rings

import (
	"fmt"
	"io"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// Print writes the result for a person: the figures of the best plan, its rings
// and trees (equal ones once, with their number), what limits it, and the other plans.
func (r *Result) Print(w io.Writer, g *topo.Graph) error {
	one := oneHost(g, r.GPUs)
	var b strings.Builder
	fmt.Fprintf(&b, "%d GPUs over %s: %s\n", len(r.GPUs), r.Medium, r.Plan.headline())
	r.Plan.print(&b, g, r.GPUs, one)
	for i := range r.Others {
		p := &r.Others[i]
		fmt.Fprintf(&b, "over %s: %s\n", p.Medium, p.headline())
		p.print(&b, g, r.GPUs, one)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// headline says what to expect, rings first: they are what NCCL runs inside a
// host. Trees over all links may be faster, but NCCL does not build them.
func (p *Plan) headline() string {
	switch {
	case len(p.Rings) == 0 && len(p.Trees) > 0:
		return fmt.Sprintf("no ring; %s possible by trees, which NCCL does not build", p.TreeExpected)
	case p.TreeExpected > p.RingExpected:
		return fmt.Sprintf("%s expected, by ring; %s possible by trees, which NCCL does not build", p.RingExpected, p.TreeExpected)
	}
	return fmt.Sprintf("%s expected, by %s", p.Bus(), p.Best())
}

// print writes the rings and trees, and whether more rings are possible. Expected is what has been measured on such
// links, which is less than they carry.
func (p *Plan) print(b *strings.Builder, g *topo.Graph, gpus []topo.NodeID, one bool) {
	proof := ""
	switch {
	case len(p.Rings) == 0:
	case p.Exact:
		proof = ", no more possible"
	default:
		proof = ", not proven to be the most"
	}
	fmt.Fprintf(b, "  %d %s%s: bus %s on the wire, %s expected\n", len(p.Rings), plural(len(p.Rings), "ring"), proof, p.RingBus,
		p.RingExpected)
	if p.Why != "" {
		fmt.Fprintf(b, "    limit: %s\n", p.Why)
	}
	if p.Unmeasured != "" {
		fmt.Fprintf(b, "    nobody has measured what a ring reaches of %s: as expected is as on the wire\n", p.Unmeasured)
	}
	var lines []string
	for _, r := range p.Rings {
		var names []string
		for _, n := range r.Order {
			names = append(names, shortName(g, n, one))
		}
		lines = append(lines, fmt.Sprintf("%s  %s", r.Rate, strings.Join(names, " ")))
	}
	fold(b, lines)
	fmt.Fprintf(b, "  %d %s: bus %s on the wire, %s expected\n", len(p.Trees), plural(len(p.Trees), "tree"), p.TreeBus, p.TreeExpected)
	fold(b, p.treeLines(g, gpus, one))
}

// treeLines describes the trees, a line each; of more than five the first four.
func (p *Plan) treeLines(g *topo.Graph, gpus []topo.NodeID, one bool) (lines []string) {
	for i, t := range p.Trees {
		if i == 4 && len(p.Trees) > 5 {
			return append(lines, fmt.Sprintf("and %d more", len(p.Trees)-i))
		}
		var edges []string
		for j, parent := range t.Parent {
			if parent != topo.None {
				edges = append(edges, shortName(g, gpus[j], one)+"→"+shortName(g, parent, one))
			}
		}
		lines = append(lines, fmt.Sprintf("%s  root %s, depth %d: %s", t.Rate, shortName(g, t.Root, one), t.Depth, strings.Join(edges, " ")))
	}
	return lines
}

// fold writes lines, runs of equal ones once.
func fold(b *strings.Builder, lines []string) {
	for i := 0; i < len(lines); {
		j := i
		for j < len(lines) && lines[j] == lines[i] {
			j++
		}
		if j-i > 1 {
			fmt.Fprintf(b, "    %d x %s\n", j-i, lines[i])
		} else {
			fmt.Fprintf(b, "    %s\n", lines[i])
		}
		i = j
	}
}
