package web

import (
	"math"
	"slices"
	"time"
)

// curve is a value by step. Once it has more points than it keeps, every two
// neighbours become one and a point stands for twice as many steps; a point is
// the mean of what was reported of its steps.
type curve struct {
	stride   int
	points   []point // ascending
	resetSeq uint64  // when points went or changed their meaning
}

type point struct {
	step int // the first of stride
	sum  float64
	n    int
	seq  uint64

	norm, rate float64 // of gradients, and of learning: sums
}

func newCurve() curve { return curve{stride: 1} }

// add counts a value to its point. A step may come late or again: points are found by step. If there are too many,
// neighbours are merged.
func (c *curve) add(step int, value, norm, rate float64, seq uint64) {
	step = max(0, step)
	first := step - step%c.stride
	i, found := slices.BinarySearchFunc(c.points, first, func(p point, s int) int { return p.step - s })
	if !found {
		c.points = slices.Insert(c.points, i, point{step: first})
	}
	p := &c.points[i]
	p.sum, p.n, p.seq = p.sum+value, p.n+1, seq
	p.norm, p.rate = p.norm+norm, p.rate+rate
	for len(c.points) > lossPoints {
		c.halve(seq)
	}
}

// halve merges neighbouring points. All are new to readers then, which resetSeq tells them.
func (c *curve) halve(seq uint64) {
	c.stride *= 2
	c.resetSeq = seq
	kept := c.points[:0]
	for _, p := range c.points {
		p.step -= p.step % c.stride
		if n := len(kept); n > 0 && kept[n-1].step == p.step {
			kept[n-1].sum += p.sum
			kept[n-1].norm += p.norm
			kept[n-1].rate += p.rate
			kept[n-1].n += p.n
			kept[n-1].seq = seq
			continue
		}
		kept = append(kept, p)
	}
	c.points = kept
}

// cut takes away the points from a step on. One that stands for steps before it
// as well stays.
func (c *curve) cut(step int, seq uint64) {
	i, _ := slices.BinarySearchFunc(c.points, step, func(p point, s int) int { return p.step - s })
	if i < len(c.points) {
		c.points = c.points[:i]
		c.resetSeq = seq
	}
}

// meter is an amount by time: tokens in pieces of equal width. A step's tokens
// are spread evenly over the time it took, so that steps longer than a piece
// do not look like bursts, and time between steps shows as a gap. Twice as
// wide pieces replace them when there are too many.
type meter struct {
	width    time.Duration
	start    time.Time
	parts    []part
	resetSeq uint64
}

type part struct {
	amount float64
	seq    uint64
}

func newMeter() meter { return meter{width: time.Second} }

// within moves a span of time behind the beginning, which the first span gives. One without a beginning is a moment.
func (m *meter) within(from, to time.Time) (time.Time, time.Time) {
	if from.IsZero() || from.After(to) {
		from = to
	}
	if m.start.IsZero() {
		m.start = from
	}
	if from.Before(m.start) {
		from = m.start
	}
	if to.Before(from) {
		to = from
	}
	return from, to
}

// add spreads an amount evenly over the time that it took.
func (m *meter) add(from, to time.Time, amount int, seq uint64) {
	from, to = m.within(from, to)
	for to.Sub(m.start) >= m.width*ratePoints {
		m.halve(seq)
		if m.width > math.MaxInt64/(4*ratePoints) { // a clock jumped by centuries
			return
		}
	}
	a, z := from.Sub(m.start), to.Sub(m.start)
	first, last := int(a/m.width), int(z/m.width)
	for len(m.parts) <= last {
		m.parts = append(m.parts, part{seq: seq})
	}
	if a == z {
		m.parts[last].amount += float64(amount)
		m.parts[last].seq = seq
		return
	}
	for i := first; i <= last; i++ {
		lo, hi := max(a, time.Duration(i)*m.width), min(z, time.Duration(i+1)*m.width)
		m.parts[i].amount += float64(amount) * float64(hi-lo) / float64(z-a)
		m.parts[i].seq = seq
	}
}

func (m *meter) halve(seq uint64) {
	m.width *= 2
	m.resetSeq = seq
	for i := 0; i < len(m.parts); i += 2 {
		p := m.parts[i]
		if i+1 < len(m.parts) {
			p.amount += m.parts[i+1].amount
		}
		p.seq = seq
		m.parts[i/2] = p
	}
	m.parts = m.parts[:(len(m.parts)+1)/2]
}
