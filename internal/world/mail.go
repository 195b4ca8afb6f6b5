package world

import (
	"cmp"
	"time"
)

// lineKey names packets that keep their order: the messages of a channel between
// two ranks, or the verbs from one to the other.
type lineKey struct {
	from, to  int
	id, epoch uint32
	channel   int // -1 for verbs, -2 for their answers, -3 for word of another call
}

func (k lineKey) compare(o lineKey) int {
	return cmp.Or(cmp.Compare(k.from, o.from), cmp.Compare(k.to, o.to), cmp.Compare(k.id, o.id), cmp.Compare(k.epoch, o.epoch),
		cmp.Compare(k.channel, o.channel))
}

func (k lineKey) hash() uint64 {
	x := uint64(k.from)
	for _, v := range []uint64{uint64(k.to), uint64(k.id), uint64(k.epoch), uint64(k.channel)} {
		x = (x^v)*0xff51afd7ed558ccd + 0x9e3779b97f4a7c15
		x ^= x >> 29
	}
	return x
}

// packet is something on its way.
type packet struct {
	line    lineKey
	no      uint64
	due     int64
	deliver func(w *World) // under mu
	torn    func(w *World) // if it is lost; nil if that does nothing
}

// Before orders packets by when they are due.
func (p *packet) Before(q *packet) bool {
	return cmp.Or(cmp.Compare(p.due, q.due), p.line.compare(q.line), cmp.Compare(p.no, q.no)) < 0
}

// post sends a packet; the caller holds mu.
func (w *World) post(line lineKey, deliver, torn func(w *World)) {
	if w.dead[line.from] || w.gone[[2]int{line.to, line.from}] != nil {
		return // nobody is there, or the other has given up
	}
	w.sent[line]++
	p := &packet{line: line, no: w.sent[line], deliver: deliver, torn: torn}
	most := w.cfg.Delay
	if w.cfg.Tail > 0 && w.draw(time.Duration(w.cfg.Tail-1), 4, line.hash(), p.no) == 0 {
		most *= 50
	}
	p.due = max(w.now()+1+w.draw(most, 5, line.hash(), p.no), w.last[line]+1, w.cut(line.from, line.to))
	w.last[line] = p.due
	w.mail.Push(p)
	w.tell()
}
