package cli

import (
	"fmt"
	"io"
	"math/big"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// boundAnswer is the least time of a collective as verbs print it; its keys are stable.
type boundAnswer struct {
	Op      string     `json:"op"`
	Ranks   int        `json:"ranks"`
	Adds    bool       `json:"switches_add"`
	Rate    unit.Rate  `json:"rate_bytes_per_second"` // bytes of the larger buffer over time
	Bus     unit.Rate  `json:"bus_bytes_per_second"`
	Exact   string     `json:"exact"` // the same as a fraction, in units
	Unit    unit.Rate  `json:"unit_bytes_per_second,omitempty"`
	Reached bool       `json:"reached"` // some schedule reaches it
	Why     string     `json:"why"`
	Bytes   unit.Bytes `json:"bytes,omitempty"`
	Time    unit.Time  `json:"time_ps,omitempty"`
}

func newBoundAnswer(b *synth.Bound) boundAnswer {
	return boundAnswer{Op: b.Op.String(), Ranks: b.Ranks, Adds: b.Adds, Rate: b.Rate, Bus: b.Rate * unit.Rate(b.Op.BusFactor(b.Ranks)),
		Exact: b.Exact.RatString(), Reached: b.Least == nil, Why: b.Why}
}

func (b *boundAnswer) print(w io.Writer) {
	head := "bound"
	if b.Adds {
		head = "bound if switches add"
	}
	fmt.Fprintf(w, "%s\tno schedule beats %s (bus %s): %s\n", head, b.Rate, b.Bus, b.Why)
	if b.Time > 0 {
		fmt.Fprintf(w, "\t%s take at least %s\n", b.Bytes, b.Time)
	}
	if !b.Reached {
		fmt.Fprintf(w, "\ta bound only: whether a schedule reaches it is not known\n")
	}
}

// bounds answers 'explain --bound': the least time with switches that only pass
// on, and with switches that copy and add where there are any that would help.
type bounds struct {
	GPUs   int           `json:"gpus"`
	Bounds []boundAnswer `json:"bounds"`
}

func findBounds(c *cluster.Cluster, set []topo.NodeID, op sched.Collective, root int, size unit.Bytes, o sim.Options) (*bounds, error) {
	o.Catalog = c.Catalog
	n, err := sim.Net(c.Graph, set, o)
	if err != nil {
		return nil, err
	}
	return boundsOf(n, op, root, size)
}

// readLinks reads a network from a file of links.
func readLinks(cmd *cobra.Command, path string) (*synth.Net, error) {
	data, err := readInput(cmd, path)
	if err != nil {
		return nil, err
	}
	n, err := synth.Read(base(path), string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// boundsOf finds the bound with and without switches that add. If they do not help there is one answer.
func boundsOf(n *synth.Net, op sched.Collective, root int, size unit.Bytes) (*bounds, error) {
	all := &bounds{GPUs: n.Ranks}
	var last *big.Rat
	for _, adds := range []bool{false, true} {
		b, err := n.Bounds(op, root, adds)
		if err != nil {
			return nil, err
		}
		if last != nil && b.Exact.Cmp(last) == 0 {
			break
		}
		last = b.Exact
		a := newBoundAnswer(b)
		a.Unit, a.Bytes, a.Time = n.Unit, size, b.Time(size)
		all.Bounds = append(all.Bounds, a)
	}
	return all, nil
}

func (b *bounds) write(cmd *cobra.Command, name string, asJSON bool) error {
	if asJSON {
		return printJSON(cmd.OutOrStdout(), b)
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s on %s of %s\n\n", b.Bounds[0].Op, count(b.GPUs, "GPU"), name)
	t := newTable(w)
	for i := range b.Bounds {
		b.Bounds[i].print(t)
	}
	return t.Flush()
}
