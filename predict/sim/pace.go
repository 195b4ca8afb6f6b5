package sim

import "github.com/weft-fabric/weft/model/unit"

// pace ends a simulation that can no longer meet its deadline. bound follows a few ranks before anything is simulated, and
// finds how many bytes must pass the busiest link of each. While time passes, what such a link has not carried yet takes at
// least as long as the link needs for it at its full rate:
//
//	now + (bytes that bound found - bytes carried or under way) / capacity  >  deadline      ⇒  give up
//
// A link that stands idle early, as while a pipeline fills, shows at once that an algorithm is too slow.
type pace struct {
	links []paced
	next  unit.Time // when to look again
}

// paced is the busiest link of a rank.
type paced struct {
	bytes    float64 // that must pass it, times whole
	capacity float64 // bytes per second, times whole
	conns    []pacedConn
}

type pacedConn struct {
	conn  int32
	share float64
}

// paceLooks is how often a simulation compares its pace with the deadline.
const paceLooks = 64

// keepPace prepares for the comparison, from what bound found. Ranks that are not simulated are left out.
func (w *world) keepPace(bounds []*rankBound) {
	if len(w.runs) != 1 || w.o.Deadline == 0 || !w.known {
		return
	}
	for _, b := range bounds {
		if x, most := b.busiest(); int32(b.rank) < w.runs[0].period && most > 0 {
			if p, ok := w.paced(b, x); ok {
				w.pace.links = append(w.pace.links, p)
			}
		}
	}
}

// busiest is the link that a rank's bytes take longest on, and how long, in seconds.
func (b *rankBound) busiest() (x wire, most float64) {
	x = -1
	for y, bytes := range b.load {
		if t := bytes / whole / float64(b.n.capacity(y)); t > most || t == most && y < x {
			x, most = y, t
		}
	}
	return x, most
}

// paced finds the connections of a rank that cross a link; false if one of them was never made.
func (w *world) paced(b *rankBound, x wire) (paced, bool) {
	r := w.runs[0]
	p := paced{bytes: b.load[x], capacity: float64(w.net.capacity(x)) * whole}
	for key, way := range b.ways {
		share := 0.0
		for _, u := range way.uses {
			if u.wire == x {
				share += float64(u.share)
			}
		}
		if share == 0 {
			continue
		}
		from := r.first + int32(key.from)%r.period*r.channels + key.channel
		id, ok := w.keys[connKey{from, apart(int32(key.from), int32(key.to), r.world, r.swaps)}]
		if !ok {
			return p, false
		}
		if w.copies != nil {
			id = w.copies.conn[id]
		}
		p.conns = append(p.conns, pacedConn{id, share})
	}
	return p, true
}

// hopeless reports that a link has more to carry than the time to the deadline allows.
func (w *world) hopeless() bool {
	if len(w.pace.links) == 0 || w.now < w.pace.next {
		return false
	}
	w.pace.next = w.now + w.o.Deadline/paceLooks
	for i := range w.pace.links {
		p := &w.pace.links[i]
		left := p.bytes
		for _, x := range p.conns {
			c := &w.conns[x.conn]
			left -= (float64(c.bytes) + float64(w.underWay(c))) * x.share
		}
		if float64(w.now)+left/p.capacity*1e12*(1-1e-6) > float64(w.o.Deadline) {
			return true
		}
	}
	return false
}

// underWay is what a connection's present message may have carried already: all of it.
func (w *world) underWay(c *conn) int64 {
	bytes := int64(0)
	if len(c.queue) > 0 {
		bytes = c.queue[0].bytes
	}
	if t := &w.threads[c.from]; t.phase != idle && t.phase != waits && t.out >= 0 && c == &w.conns[t.out] {
		bytes += t.bytes
	}
	return bytes
}
