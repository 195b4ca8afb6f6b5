package sim

import "github.com/weft-fabric/weft/model/unit"

// A switch that computes copies a result to many ports at once, so its sends do
// not wait for one another: each of its connections carries its own messages,
// one after the other, while the switch goes on. So do connections of ranks, with messages that are kept (Work.Kept).

// cargo is a message that its sender does not wait for.
type cargo struct {
	bytes    int64
	left     float64
	since    unit.Time
	began    unit.Time
	version  uint32
	critical Critical
}

// forward hands a message to its connection.
func (w *world) forward(id int32, t *thread) {
	c := &w.conns[id]
	c.queue = append(c.queue, cargo{bytes: t.bytes, critical: t.critical})
	if len(c.queue) == 1 {
		w.carry(id)
	}
}

// carry lets the first message of a connection's queue leave.
func (w *world) carry(id int32) {
	c := &w.conns[id]
	q := &c.queue[0]
	q.left, q.since, q.began = float64(q.bytes), w.now, w.now
	q.version = w.versions
	w.share.start(c.light)
}

// recarry works out when a message is through at its new rate.
func (w *world) recarry(id int32, x *stream) {
	q := &w.conns[id].queue[0]
	q.left -= float64(x.was) * float64(w.now-q.since) / 1e12
	q.since, x.was = w.now, x.rate
	w.versions++
	q.version = w.versions
	w.events.push(w.now+max(1, span(q.left, x.rate)), carries, id, q.version)
}

// carriedOn is the last byte of such a message leaving.
func (w *world) carriedOn(id int32) {
	c := &w.conns[id]
	q := c.queue[0]
	c.queue = c.queue[:copy(c.queue, c.queue[1:])]
	limit := w.share.flows[c.light].limit
	w.share.stop(c.light)
	w.carriedBy(c, q.bytes, w.now-q.began, limit, &q.critical)
	w.deliver(id, &q.critical)
	if len(c.queue) > 0 {
		// What waited for this one went on with it, not before.
		c.queue[0].critical = q.critical
		w.carry(id)
	}
}
