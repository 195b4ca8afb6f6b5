package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/weft-fabric/weft/model/unit"
)

// Ratio is how many times as long as ours a family takes at a row.
func (r *Row) Ratio(theirs, ours string) (float64, bool) {
	t, o := r.Cells[theirs], r.Cells[ours]
	if t == nil || o == nil || o.Micros == 0 {
		return 0, false
	}
	return t.Micros / o.Micros, true
}

// Lost names the families that are faster than ours at a row, and on which of
// our buffers.
func (r *Row) Lost() string {
	var list []string
	for _, f := range []string{MPI, Gloo, TorchGloo} {
		var on []string
		for _, ours := range []string{Registered, Plain} {
			if x, ok := r.Ratio(f, ours); ok && x < 1 {
				on = append(on, ours)
			}
		}
		if len(on) > 0 {
			list = append(list, "to "+f+": "+strings.Join(on, ", "))
		}
	}
	return strings.Join(list, "; ")
}

// Markdown writes the table for people and documents: times of one operation in
// microseconds, then how many times as long as ours the others take.
func (t *Table) Markdown(w io.Writer) error {
	if t.Spread {
		return t.spread(w)
	}
	if slices.Contains(t.Families, Canonical) {
		return t.canonical(w)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	ours := []string{}
	for _, f := range []string{Registered, Plain} {
		if slices.Contains(t.Families, f) {
			ours = append(ours, f)
		}
	}
	head := []string{"op", "ranks", "bytes"}
	for _, f := range t.Families {
		head = append(head, f+" us")
	}
	pairs := t.pairs(ours)
	for _, p := range pairs {
		head = append(head, p.theirs+"/"+p.ours)
	}
	head = append(head, "best MPI", "lost")
	line := func(cells []string) { fmt.Fprintf(tw, "| %s |\n", strings.Join(cells, "\t| ")) }
	line(head)
	rule := make([]string, len(head))
	for i := range rule {
		rule[i] = "---"
	}
	line(rule)
	for _, r := range t.Rows {
		cells := []string{r.Op, fmt.Sprint(r.Ranks), unit.Bytes(r.Bytes).String()}
		for _, f := range t.Families {
			cells = append(cells, micros(r.Cells[f]))
		}
		for _, p := range pairs {
			x, ok := r.Ratio(p.theirs, p.ours)
			if !ok {
				cells = append(cells, "-")
				continue
			}
			if p.ours == Limit {
				cells = append(cells, digits(x)) // what is above 1 is not lost
			} else {
				cells = append(cells, ratio(x))
			}
		}
		best, lost := "-", r.Lost()
		if c := r.Cells[MPI]; c != nil {
			best = c.Name
		}
		line(append(cells, best, lost))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, f := range t.Families {
		if f == Registered || f == Plain || f == Limit {
			continue
		}
		for _, o := range ours {
			if f != MPI && o == Plain {
				continue
			}
			if g, n := t.geomean(f, o); n > 0 {
				fmt.Fprintf(w, "# %s over %s, geometric mean of %d rows: %s\n", f, o, n, ratio(g))
			}
		}
	}
	return nil
}

// pair is a ratio of two families' times; above 1 ours is faster, but for that over the limit.
type pair struct{ theirs, ours string }

// pairs are the ratios that the table shows.
func (t *Table) pairs(ours []string) (pairs []pair) {
	for _, f := range t.Families {
		for _, o := range ours {
			switch {
			case f == Registered || f == Plain:
			case f != MPI && o == Plain: // the others are compared with the best of ours
			case f == Limit:
				pairs = append(pairs, pair{o, f}) // ours over the limit
			default:
				pairs = append(pairs, pair{f, o})
			}
		}
	}
	return pairs
}

// dear is from which cost of canonical sums on a row is in bold.
const dear = 1.10

// canonical writes what canonical sums cost.
func (t *Table) canonical(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(tw, "| op\t| ranks\t| bytes\t| default us\t| canonical us\t| canonical/default |")
	fmt.Fprintln(tw, "| ---\t| ---\t| ---\t| ---\t| ---\t| --- |")
	over := 0
	for _, r := range t.Rows {
		cost := fmt.Sprintf("%.2f", r.Cost)
		if r.Cost > dear {
			cost = "**" + cost + "**"
			over++
		}
		fmt.Fprintf(tw, "| %s\t| %d\t| %s\t| %s\t| %s\t| %s |\n", r.Op, r.Ranks, unit.Bytes(r.Bytes), micros(r.Cells[Registered]),
			micros(r.Cells[Canonical]), cost)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "# canonical sums cost more than 10%% in %d of %d rows\n", over, len(t.Rows))
	return err
}

// Giving way is judged by these: the median of an operation beside the best of the others', and its 99th percentile beside
// theirs.
const farOff = 3

// Spreads reports how ours does at a row beside the best of the others: the ratio of medians and that of 99th percentiles, theirs
// over ours.
func (r *Row) Spreads(ours string) (p50, p99 float64, ok bool) {
	o := r.Cells[ours]
	for _, f := range []string{MPI, Gloo, TorchGloo} {
		if t := r.Cells[f]; t != nil && o != nil && o.P50 > 0 {
			if x := t.P50 / o.P50; !ok || x < p50 {
				p50, p99, ok = x, t.P99/o.P99, true
			}
		}
	}
	return p50, p99, ok
}

// spread is Markdown for operations that were timed one by one.
func (t *Table) spread(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	line := func(cells []string) { fmt.Fprintf(tw, "| %s |\n", strings.Join(cells, "\t| ")) }
	head := []string{"op", "ranks", "bytes"}
	var ours []string
	for _, f := range t.Families {
		head = append(head, f+" p50 us", "p99 us")
		if f == Registered || f == Plain {
			ours = append(ours, f)
		}
	}
	for _, o := range ours {
		head = append(head, "best/"+o+" p50", "p99")
	}
	line(head)
	line(slices.Repeat([]string{"---"}, len(head)))
	for _, r := range t.Rows {
		cells := []string{r.Op, fmt.Sprint(r.Ranks), unit.Bytes(r.Bytes).String()}
		for _, f := range t.Families {
			if c := r.Cells[f]; c != nil {
				cells = append(cells, micros(&Cell{Micros: c.P50, Wrong: c.Wrong}), micros(&Cell{Micros: c.P99}))
			} else {
				cells = append(cells, "-", "-")
			}
		}
		for _, o := range ours {
			cells = append(cells, r.spreadCells(o)...)
		}
		line(cells)
	}
	return tw.Flush()
}

// spreadCells compares the best of the others with one of weft's families, in the middle and at the end of the times. Ends
// that are far worse are bold.
func (r *Row) spreadCells(ours string) []string {
	p50, p99, ok := r.Spreads(ours)
	if !ok {
		return []string{"-", "-"}
	}
	tail := digits(p99)
	if p99*farOff < 1 {
		tail = "**" + tail + "**"
	}
	return []string{ratio(p50), tail}
}

// Processor writes the processor time that a GB costs, in seconds of all ranks.
func (t *Table) Processor(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(tw, "| op\t| ranks\t| bytes")
	for _, f := range t.Families {
		fmt.Fprintf(tw, "\t| %s s/GB", f)
	}
	fmt.Fprintf(tw, " |\n|%s\n", strings.Repeat(" ---\t|", len(t.Families)+3))
	for _, r := range t.Rows {
		fmt.Fprintf(tw, "| %s\t| %d\t| %s", r.Op, r.Ranks, unit.Bytes(r.Bytes))
		for _, f := range t.Families {
			if c := r.Cells[f]; c != nil {
				fmt.Fprintf(tw, "\t| %.3g", c.CPUPerG)
			} else {
				fmt.Fprint(tw, "\t| -")
			}
		}
		fmt.Fprint(tw, " |\n")
	}
	return tw.Flush()
}

// Absent writes who did not take part, why, and how to get them.
func (t *Table) Absent(w io.Writer) {
	for _, m := range t.Missing {
		fmt.Fprintf(w, "# without %s: %s; on Debian: apt-get install %s\n", m.Name, m.Why, m.Install)
	}
	for _, m := range t.Failed {
		why, _, _ := strings.Cut(m.Why, "\n")
		fmt.Fprintf(w, "# without %s: %s\n", m.Name, why)
	}
}

// Won counts the rows at which ours, on registered buffers, is not slower than any of the others.
func (t *Table) Won() (won, of int) {
	for _, r := range t.Rows {
		best, any := math.Inf(1), false
		for _, f := range []string{MPI, Gloo, TorchGloo} {
			if x, ok := r.Ratio(f, Registered); ok {
				best, any = min(best, x), true
			}
		}
		if !any {
			continue
		}
		if of++; best >= 1 {
			won++
		}
	}
	return won, of
}

func (t *Table) geomean(theirs, ours string) (float64, int) {
	sum, n := 0.0, 0
	for _, r := range t.Rows {
		if x, ok := r.Ratio(theirs, ours); ok {
			sum += math.Log(x)
			n++
		}
	}
	return math.Exp(sum / float64(n)), n
}

// micros prints a time to about three digits. A result that was wrong must not pass for a fast one.
func micros(c *Cell) string {
	if c == nil {
		return "-"
	}
	s := fmt.Sprintf("%.1f", c.Micros)
	if c.Micros >= 100 {
		s = fmt.Sprintf("%.0f", c.Micros)
	} else if c.Micros < 10 {
		s = fmt.Sprintf("%.2f", c.Micros)
	}
	if c.Wrong > 0 {
		s += fmt.Sprintf(" (%d wrong)", c.Wrong)
	}
	return s
}

// ratio prints what is below 1 in bold: there the other is faster.
func ratio(x float64) string {
	if x < 1 {
		return "**" + digits(x) + "**"
	}
	return digits(x)
}

func digits(x float64) string {
	if x >= 10 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.2f", x)
}
