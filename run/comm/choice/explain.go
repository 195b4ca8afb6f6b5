package choice

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// largest is the size up to which Explain goes.
const largest = 1 << 30

// Explain writes the table: for every operation and range of sizes the choice,
// its predicted time and bus bandwidth at the range's largest size, the
// runner-up there, and the reason. Sizes are bytes of the larger buffer, and a
// choice's range ends where a size class does. Operations with a root are those
// of root 0.
func (t *Table) Explain(w io.Writer) error { return t.explain(w, false) }

// ExplainCanonical writes the table of calls that ask for sums in the canonical
// order.
func (t *Table) ExplainCanonical(w io.Writer) error { return t.explain(w, true) }

// explain prints what is chosen for every operation and range of sizes, and why. A barrier has no size and gets one
// line.
func (t *Table) explain(w io.Writer, canonical bool) error {
	heading := t.heading()
	if canonical {
		heading += "; sums in the canonical order"
	}
	if _, err := fmt.Fprintln(w, heading); err != nil {
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "operation\tfrom\tto\talgorithm\tpieces\tchannels\ttime\tbus bandwidth\tnext best\twhy")
	for _, op := range sched.Collectives() {
		if op == sched.Barrier {
			p, err := t.Pick(op, 0, 0, canonical)
			if err != nil {
				return err
			}
			t.line(out, op, 0, 0, p)
			continue
		}
		if err := t.lines(out, op, canonical); err != nil {
			return err
		}
	}
	return out.Flush()
}

// lines writes a line for each range of sizes that have one program.
func (t *Table) lines(out io.Writer, op sched.Collective, canonical bool) error {
	var from int64
	var last *Pick
	for class := 1; class <= classOf(largest); class++ {
		p, err := t.Pick(op, 0, smallest(class), canonical)
		if err != nil {
			return err
		}
		if last != nil && (p.Algo != last.Algo || p.Pieces != last.Pieces || p.Channels != last.Channels) {
			t.line(out, op, from, smallest(class-1), last)
			last = nil
		}
		if last == nil {
			from = smallest(class)
		}
		last = p
	}
	t.line(out, op, from, largest, last)
	return nil
}

func (t *Table) heading() string {
	l := &t.links
	s := fmt.Sprintf("choices for %s over %s", count(t.n, "rank"), t.can.Name)
	if t.many > 1 {
		s += fmt.Sprintf(" on %d hosts", t.many)
	}
	where := "a host"
	if l.Hosts > 1 {
		where = fmt.Sprintf("for %d hosts", l.Hosts)
	}
	return s + fmt.Sprintf(", %s %s: %s", count(l.Cores, "core"), where, costs(l, t.visible, t.many))
}

// costs says what links cost.
func costs(l *cost.Links, visible bool, hosts int) string {
	s := us(l.Sync).String() + " to meet"
	if n := len(l.Paces); n > 0 {
		s += fmt.Sprintf(", memory %s a core up to %s of traffic, %s from %s on",
			rate(l.Paces[0].Byte), unit.Bytes(l.Paces[0].Traffic), rate(l.Paces[n-1].Byte), unit.Bytes(l.Paces[n-1].Traffic))
	}
	if !visible {
		s += fmt.Sprintf("; a message %s on the way and %s at each end, bytes %s at each end",
			us(l.Near.Alpha), us(l.Near.Post), rate(l.Near.Beta))
		if hosts > 1 {
			s += fmt.Sprintf("; between hosts %s, %s and %s, the way out %s", us(l.Far.Alpha), us(l.Far.Post), rate(l.Far.Beta), rate(l.Far.Wire))
		}
	}
	return s
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// rate is the rate of x us a byte.
func rate(x float64) string {
	if x <= 0 {
		return "without limit"
	}
	return unit.Rate(1e6 / x).String()
}

func us(x float64) unit.Time { return unit.Time(x * float64(unit.Microsecond)) }

// line prints one range. The bandwidth is that of its largest size, as nccl-tests counts it.
func (t *Table) line(w io.Writer, op sched.Collective, from, to int64, p *Pick) {
	bus := "-"
	if op != sched.Barrier && p.Predicted > 0 {
		bus = (unit.Bytes(to).Per(p.Predicted) * unit.Rate(op.BusFactor(t.n))).String()
	}
	next := "-"
	if p.next != "" {
		next = fmt.Sprintf("%s in %s", p.next, p.then)
	}
	sizes := fmt.Sprintf("%s\t%s", unit.Bytes(from), unit.Bytes(to))
	if op == sched.Barrier {
		sizes = "-\t-"
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", op, sizes, p.Algo, p.Pieces, p.Channels, p.Predicted, bus, next, p.Reason)
}
