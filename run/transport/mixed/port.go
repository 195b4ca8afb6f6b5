package mixed

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
)

// port is a communicator's: one port in shared memory for its ranks of this host, one
// over tcp for the others.
type port struct {
	e         *Endpoint
	me        int // in the communicator
	members   []int
	index     []int // by member: its number in the port of this host, or -1
	locals    []int // the members of this host, by that number
	near, far transport.Port
	copies    int         // bytes up to which a message over tcp is sent from a copy
	long      atomic.Bool // the call has a longer one, whose sender waits until it is taken
}

// Port makes the port of a communicator.
func (e *Endpoint) Port(g transport.Group) (transport.Port, error) {
	p := &port{e: e, me: slices.Index(g.Members, e.rank), members: slices.Clone(g.Members), index: make([]int, len(g.Members))}
	var mates []int
	for i, m := range g.Members {
		p.index[i] = -1
		if m >= 0 && m < e.size && e.local[m] >= 0 {
			p.index[i] = len(mates)
			mates = append(mates, e.local[m])
			p.locals = append(p.locals, i)
		}
	}
	var err error
	if p.far, err = e.far.Port(g); err != nil { // it checks the members
		return nil, err
	}
	inner := g
	inner.Members = mates
	if p.near, err = e.near.Port(inner); err != nil {
		_ = p.far.Close()
		return nil, err
	}
	p.copies = e.far.Can().Copies
	p.near.(transport.Idler).Meanwhile(p.serve)
	return p, nil
}

// side is the port that reaches a member, and its number there.
func (p *port) side(member int) (transport.Port, int, error) {
	if member < 0 || member >= len(p.members) {
		return nil, 0, fmt.Errorf("rank %d of a communicator of %d", member, len(p.members))
	}
	if i := p.index[member]; i >= 0 {
		return p.near, i, nil
	}
	return p.far, member, nil
}

// serve lets in what other hosts send while this rank waits in shared memory. A rank of another host that sends a long message
// waits for this one, and others wait for that one in turn.
func (p *port) serve() bool { return p.long.Load() && p.far.(transport.Server).Serve() }

// way is side for a message of n bytes.
func (p *port) way(member, n int) (transport.Port, int, error) {
	side, i, err := p.side(member)
	if n > p.copies && side == p.far && !p.long.Load() {
		p.long.Store(true)
	}
	return side, i, err
}

// Begin starts a call on both. Whoever waits on one hears of a message of another call
// on the other.
func (p *port) Begin(c transport.Call, stop transport.Stop) {
	other := func(x transport.Port) transport.Stop {
		d := x.(transport.Disagreer)
		return func() error {
			if stop != nil {
				if err := stop(); err != nil {
					return &ready{err}
				}
			}
			if err := d.Disagrees(); err != nil {
				return &ready{p.told(x, err)}
			}
			return nil
		}
	}
	p.long.Store(false)
	p.near.Begin(c, other(p.far))
	p.far.Begin(c, other(p.near))
}

// ready is an error that is in the words of the whole, on its way through a side.
type ready struct{ error }

func (r *ready) Unwrap() error { return r.error }

// told is an error of a side in the words of the whole: the ranks of this host have other numbers there.
func (p *port) told(side transport.Port, err error) error {
	if r, ok := errors.AsType[*ready](err); ok {
		return r.error
	}
	if err == nil || side != p.near {
		return err
	}
	if m, ok := errors.AsType[*transport.Mismatch](err); ok && m.Peer < len(p.locals) {
		x := *m
		x.Rank, x.Peer = p.me, p.locals[m.Peer]
		return &x
	}
	return p.e.named(err)
}

// named gives a rank of this host that is gone its number among all.
func (e *Endpoint) named(err error) error {
	if g, ok := errors.AsType[*transport.Gone](err); ok && g.Rank < len(e.mates) {
		x := *g
		x.Rank = e.mates[g.Rank]
		return &x
	}
	return err
}

func (p *port) Send(to, channel int, b []byte) error {
	side, i, err := p.way(to, len(b))
	if err != nil {
		return err
	}
	return p.told(side, side.Send(i, channel, b))
}

func (p *port) Expect(from, channel int, dst []byte) {
	if side, i, err := p.way(from, len(dst)); err == nil { // else Recv says so
		side.Expect(i, channel, dst)
	}
}

func (p *port) Recv(from, channel int, dst []byte) error {
	side, i, err := p.way(from, len(dst))
	if err != nil {
		return err
	}
	return p.told(side, side.Recv(i, channel, dst))
}

func (p *port) Take(from, channel, n int, f func(piece []byte)) error {
	side, i, err := p.way(from, n)
	if err != nil {
		return err
	}
	return p.told(side, side.Take(i, channel, n, f))
}

// Exchange is that of the side which reaches both ranks. Else it sends, then receives: a
// send in shared memory waits for its receiver no longer than it takes to move the message
// away, and one over tcp for a rank that reads, whatever it is doing.
func (p *port) Exchange(out transport.Outgoing, in transport.Incoming, waits func(sending bool)) error {
	a, to, err := p.way(out.To, len(out.Bytes))
	if err != nil {
		return err
	}
	b, from, err := p.way(in.From, in.N)
	if err != nil {
		return err
	}
	if a == b {
		out.To, in.From = to, from
		return p.told(a, a.Exchange(out, in, waits))
	}
	if in.Take == nil {
		b.Expect(from, in.Channel, in.Dst)
	}
	if err := p.told(a, a.Send(to, out.Channel, out.Bytes)); err != nil {
		return err
	}
	if in.Take != nil {
		return p.told(b, b.Take(from, in.Channel, in.N, in.Take))
	}
	return p.told(b, b.Recv(from, in.Channel, in.Dst))
}

// Overlaps: in shared memory a message waits where it lies; over tcp, what comes while this rank sends must have been asked for, or it is
// copied once more.
func (p *port) Overlaps(to, from int) bool { return p.index[to] < 0 && p.index[from] < 0 }

// Holder is nil: in shared memory a message is read where it lies.
func (p *port) Holder() transport.Holder { return nil }

func (p *port) Last(rank int) (transport.Call, bool) {
	side, i, err := p.side(rank)
	if err != nil {
		return transport.Call{}, false
	}
	return side.Last(i)
}

func (p *port) Close() error { return errors.Join(p.near.Close(), p.far.Close()) }

// Bound is that of tcp.
func (p *port) Bound() int { return p.far.(transport.Bounded).Bound() }

// Unbound lifts it.
func (p *port) Unbound() { p.far.(transport.Bounded).Unbound() }

// Channels is for tcp: in shared memory channels have memory of their own.
func (p *port) Channels(n int) { p.far.(transport.Parallel).Channels(n) }

var (
	_ transport.Bounded  = (*port)(nil)
	_ transport.Chooser  = (*port)(nil)
	_ transport.Parallel = (*port)(nil)
)
