package bench

import (
	"fmt"
	"io"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// What passes between hosts is counted for every competitor, by the ports of the switches that join them: one that shares memory
// across hosts, as it takes them for one, shows times that no network allows.

// leastCrossing is how many bytes must pass between hosts for an operation, of all hosts together: each of the others has to hear
// of what a host holds, or holds the sum of, once.
func leastCrossing(op Op, hosts, ranks int, bytes int64) int64 {
	least := int64(hosts-1) * bytes
	switch op.Collective {
	case sched.AllToAll:
		return least * int64(ranks/hosts)
	case sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce:
		return least
	}
	return 0 // not known
}

// elsewhere reports whether a competitor sent less than half of what must pass between the hosts: it took another way.
func (c *Cell) elsewhere(least int64) bool { return least > 0 && c.Wire < float64(least)/2 }

// crossing runs one turn and counts what passed between hosts meanwhile.
func (c *Comparison) crossing(t *turn, do func() error) error {
	if c.Hosts == nil {
		return do()
	}
	before, err := c.Hosts.crossed()
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := c.Hosts.crossed()
	t.wire += after - before
	return err
}

// overLeast lists, in rising order, what a family sent between hosts over the least that must pass. Small messages are
// left out, of which most is headers.
func (t *Table) overLeast(family string) (ratios []float64) {
	for _, r := range t.Rows {
		if c := r.Cells[family]; c != nil && r.Least > 0 && c.Wire > 0 && r.Bytes >= 32<<10 {
			ratios = append(ratios, c.Wire/float64(r.Least))
		}
	}
	slices.Sort(ratios)
	return ratios
}

// Crossed writes what each family sent between hosts, over the least that must pass, and who took another way.
func (t *Table) Crossed(w io.Writer) {
	for _, f := range t.Families {
		if ratios := t.overLeast(f); len(ratios) > 0 {
			fmt.Fprintf(w, "# bytes between hosts over the least that must pass, from 32 KiB on: %s %.2f to %.2f, median %.2f\n",
				f, ratios[0], ratios[len(ratios)-1], median(ratios))
		}
	}
	rows, last, order := map[string]int{}, map[string]string{}, []string{}
	for _, r := range t.Rows {
		for _, c := range r.All {
			if !c.elsewhere(r.Least) {
				continue
			}
			if rows[c.Name]++; rows[c.Name] == 1 {
				order = append(order, c.Name)
			}
			last[c.Name] = fmt.Sprintf("%s of %s that must, %s of %s", unit.Bytes(int64(c.Wire)), unit.Bytes(r.Least), r.Op, unit.Bytes(r.Bytes))
		}
	}
	for _, name := range order {
		fmt.Fprintf(w, "# %s bypassed the network in %d of %d rows, which do not count; in the last of them %s passed\n",
			name, rows[name], len(t.Rows), last[name])
	}
}
