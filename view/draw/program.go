package draw

import (
	"fmt"
	"io"
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// Limits of a picture of a program: more columns or rows than these nobody can read.
const (
	maxColumns   = 64
	maxRows      = 512
	labelColumns = 16 // up to this many ranks messages carry labels; beyond, on hover
)

// arrow is a message on its way: it leaves at a row and arrives at the next.
type arrow struct {
	from, to sched.Rank
	row      int
	chunks   step.Chunks
	channel  int32
	sends    string // the sender's step
	takes    string // the receiver's
	adds     bool   // the receiver adds it to something
}

// mail is what a message carries while the rows are found out.
type mail struct {
	arrow  int
	arrive int
	holds  step.Chunks
}

// ledger knows which chunks of the larger buffer scratch holds, to name messages
// by them.
type ledger struct {
	p   *sched.Program
	per int64
	tmp []map[int64]int64 // by rank: scratch chunk to chunk
}

// name gives the chunks of the larger buffer that chunks of a rank stand for, or
// scratch itself where that is no run of neighbours.
func (l *ledger) name(r sched.Rank, c step.Chunks) step.Chunks {
	switch {
	case c.Buf != sched.Tmp:
		if int64(l.p.NumChunks(c.Buf)) == l.per && l.p.Op.Blocks() {
			c.Index += int64(r) * l.per
		}
		c.Buf = sched.Out
		return c
	case c.Count == 0:
		return c
	}
	first, ok := l.tmp[r][c.Index]
	for i := range c.Count {
		at, known := l.tmp[r][c.Index+i]
		ok = ok && known && at == first+i
	}
	if !ok {
		return c
	}
	return step.Chunks{Buf: sched.Out, Index: first, Count: c.Count}
}

// store notes what scratch holds.
func (l *ledger) store(r sched.Rank, dst, holds step.Chunks) {
	if dst.Buf != sched.Tmp {
		return
	}
	for i := range dst.Count {
		delete(l.tmp[r], dst.Index+i)
		if holds.Buf == sched.Out {
			l.tmp[r][dst.Index+i] = holds.Index + i
		}
	}
}

// arrows lays a program out in rows: every channel of a rank sends one message a
// row, as soon as it can, and a message takes one row.
func arrows(p *sched.Program) ([]arrow, int, error) {
	world := p.Ranks + p.Switches
	now := make([][]int, world)    // by rank and channel: the row from which it can act
	past := make([][][]int, world) // the same after each action
	book := &ledger{p: p, tmp: make([]map[int64]int64, world)}
	book.per = int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out)) / p.Ranks)
	for r := range now {
		now[r], past[r], book.tmp[r] = make([]int, p.Channels()), make([][]int, p.Channels()), map[int64]int64{}
	}
	full := make([][]mail, world) // what a switch sends and until when
	for r := range full {
		full[r] = make([]mail, p.Channels())
	}
	var list []arrow
	rows := 0
	err := step.Run(p, func(r sched.Rank, a *step.Action, m mail) (mail, error) {
		at := &now[r][a.Channel]
		if a.Op.Receives() {
			*at = max(*at, m.arrive)
			list[m.arrow].takes, list[m.arrow].adds = a.String(), a.Op.Reduces()
		}
		if a.Op == sched.Wait && a.Done > 0 {
			*at = max(*at, past[r][a.On][a.Done-1])
		}
		holds := m.holds
		if !a.Op.Receives() {
			holds = book.name(r, a.Src)
		}
		if a.Op.Stores() {
			book.store(r, a.Dst, holds)
		}
		if a.Op.Sends() {
			if busy := &full[r][a.Channel]; int(r) >= p.Ranks { // a switch sends one thing a row, to many at once
				if busy.arrive > *at && busy.holds != holds {
					*at = busy.arrive
				}
				*busy = mail{0, *at + 1, holds}
			}
			list = append(list, arrow{from: r, to: a.To, row: *at, chunks: holds, channel: a.Channel, sends: a.String()})
			m = mail{len(list) - 1, *at + 1, holds}
			if rows = max(rows, m.arrive); rows > maxRows {
				return m, fmt.Errorf("%s takes more than %d rows; a picture ends there", p.Name, maxRows)
			}
			if int(r) < p.Ranks {
				*at++
			}
		}
		past[r][a.Channel] = append(past[r][a.Channel], *at)
		return m, nil
	})
	return list, rows, err
}

// Program draws who sends what when: a column for each rank, time downwards,
// an arrow for each message. A solid arrow is added to something where it
// arrives, a dashed one is stored. Colours follow the first chunk of a message.
func Program(w io.Writer, p *sched.Program) error {
	c, width, height, err := program(p)
	if err != nil {
		return err
	}
	return c.WriteTo(w, width, height, "weft-draw", fmt.Sprintf("%s, %s, %d ranks: who sends what when", p.Name, p.Op, p.Ranks), style)
}

// program draws a program as arrows between columns of ranks, a row per step. Too many ranks cannot be read and are
// refused.
func program(p *sched.Program) (c *svg.Canvas, width, height float64, err error) {
	world := p.Ranks + p.Switches
	if world > maxColumns {
		return nil, 0, 0, fmt.Errorf("%s has %d ranks; a picture can be read up to %d", p.Name, world, maxColumns)
	}
	list, rows, err := arrows(p)
	if err != nil {
		return nil, 0, 0, err
	}
	labels := world <= labelColumns
	column, row := 100.0, 40.0
	switch {
	case !labels:
		column, row = 30, 26
	case world > 9:
		column = 76
	}
	// Messages that leave a rank in one row the same way carry their labels one further on.
	type corner struct {
		rank sched.Rank
		row  int
		left bool
	}
	stack := map[corner]int{}
	level := make([]int, len(list))
	tall := make([]int, rows)
	near := make([]sched.Rank, rows) // the shortest way of a row, in columns
	for i, a := range list {
		if d := max(a.to-a.from, a.from-a.to); near[a.row] == 0 || d < near[a.row] {
			near[a.row] = d
		}
		if int(a.from) >= p.Ranks {
			continue
		}
		c := corner{a.from, a.row, a.to < a.from}
		level[i] = stack[c]
		stack[c]++
		tall[a.row] = max(tall[a.row], stack[c])
	}
	const top = 86.0
	y := []float64{top + 10}
	for i := range rows {
		y = append(y, y[i]+row+6*float64(max(tall[i]-1, 0))+3*float64(max(near[i]-3, 0)))
	}
	x := func(r sched.Rank) float64 { return 64 + column*(float64(r)+0.5) }
	width, height = max(x(sched.Rank(world-1))+column/2+24, 680), y[rows]+40
	c = new(svg.Canvas)
	c.Text(24, 16, svg.Start, svg.Font{Size: 17, Bold: true}, fmt.Sprintf("%s: %s, %d ranks", p.Name, p.Op, p.Ranks))
	c.Text(24, 40, svg.Start, svg.Font{Size: 11},
		fmt.Sprintf("%d messages in %d rows; solid: added where it arrives, dashed: stored; labels: chunks, s for scratch", len(list), rows),
		svg.Class("dim"))
	for r := range world {
		name := fmt.Sprint(r)
		if r >= p.Ranks {
			name = fmt.Sprintf("sw%d", r-p.Ranks)
		}
		rank := sched.Rank(r)
		c.Line(x(rank), top, x(rank), y[rows]+10, "", svg.Class("rule"))
		size := 12.0
		if !labels {
			size = 10
		}
		c.Text(x(rank), top-20, svg.Middle, svg.Font{Size: size, Bold: true}, name)
	}
	for i := range rows {
		if labels || i%5 == 0 {
			c.Text(48, y[i]-6, svg.End, svg.Font{Size: 10}, fmt.Sprint(i), svg.Class("dim"))
		}
	}
	for _, a := range list {
		drawArrow(c, a, x(a.from), y[a.row], x(a.to), y[a.row+1])
	}
	if labels {
		font := svg.Font{Size: 10}
		for i, a := range list {
			x1, y1, x2, y2 := x(a.from), y[a.row], x(a.to), y[a.row+1]
			// Near its start, below where other arrows arrive.
			along := min(0.8, (20+17*float64(level[i]))/math.Hypot(x2-x1, y2-y1))
			if int(a.from) >= p.Ranks { // what a switch sends to many at once, near their ends
				along = 1 - 30/math.Hypot(x2-x1, y2-y1)
			}
			c.Text(x1+(x2-x1)*along, y1+(y2-y1)*along-font.Height()/2, svg.Middle, font, chunkLabel(a.chunks), svg.Class("halo"))
		}
	}
	return c, width, height, nil
}

// drawArrow draws a message from where it leaves to where it arrives.
func drawArrow(c *svg.Canvas, a arrow, x1, y1, x2, y2 float64) {
	i := a.chunks.Index
	colour := railClass(int16((i + i/8 + i/64) % 8)) // so that chunks 8 apart differ
	title := fmt.Sprintf("rank %d channel %d: %s\nrank %d: %s", a.from, a.channel, a.sends, a.to, a.takes)
	attrs := []svg.Attr{svg.Class("line " + colour), svg.Stroke(1.6)}
	if !a.adds {
		attrs = append(attrs, svg.Attr{Name: "stroke-dasharray", Value: "5 3"})
	}
	long := math.Hypot(x2-x1, y2-y1)
	ux, uy := (x2-x1)/long, (y2-y1)/long
	const head, half = 7.0, 3.0
	bx, by := x2-ux*head, y2-uy*head
	c.Line(x1, y1, bx, by, title, attrs...)
	c.Path(new(svg.Pen).Move(x2, y2).To(bx-uy*half, by+ux*half).To(bx+uy*half, by-ux*half).Close(), title, svg.Class("fill "+colour))
}

// chunkLabel names chunks in a few letters.
func chunkLabel(c step.Chunks) string {
	sign := ""
	if c.Buf == sched.Tmp {
		sign = "s"
	}
	if c.Count == 1 {
		return fmt.Sprintf("%s%d", sign, c.Index)
	}
	return fmt.Sprintf("%s%d-%d", sign, c.Index, c.Index+c.Count-1)
}
