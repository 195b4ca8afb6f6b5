//go:build linux

package tcp

import (
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// swapLooks is how often Exchange looks in vain, and yields in between, before it
// waits as Send and Recv do.
const swapLooks = 64

// Exchange sends a message and receives another at once: a frame out, what has come in,
// and so on, so that neither socket fills up. Where the sockets have room for it frames
// are long, as two ranks that each send and then receive are in each other's way less
// often: of two on a host that exchange 1 MiB, one takes 0.27 ms so and 0.30 with frames of
// frame.PieceSize, 4 MiB 0.99 and 1.07, all-reduces of 2 and 4 MiB 0.61 and 1.05 ms, and 0.64 and
// 1.13 (medians of 30 turns in one run, 2026-11-16); from 16 MiB on it is the same.
func (p *port) Exchange(out transport.Outgoing, in transport.Incoming, waits func(sending bool)) error {
	dst, src, err := p.partners(out, in)
	if err != nil {
		return p.fail(err)
	}
	self := p.e.Rank()
	if dst.Rank == self || src.Rank == self || dst.Alive() != nil || src.Alive() != nil {
		return p.oneByOne(out, in, waits)
	}
	p.mu.Lock()
	full := p.Full(dst.Rank)
	if len(out.Bytes) <= wire.QuickSize && in.N <= wire.QuickSize && !full && dst.Quick() && src.Quick() {
		return p.exchangeShort(dst, src, out, in, waits)
	}
	if p.e.wire.Secure() || dst.Numbered || src.Numbered || full {
		p.mu.Unlock()
		return p.oneByOne(out, in, waits)
	}
	w := p.way(in.From, in.Channel)
	s := p.at(w, src.Rank, in.Channel, w.base)
	announced := s.asked
	if in.After && (s.came || s.busy > 0) || announced && (s.take != nil || in.Dst == nil || s.total != in.N) {
		p.mu.Unlock()
		return p.oneByOne(out, in, waits)
	}
	sends := p.way(out.To, out.Channel)
	o := p.outgoing(sends, dst, out.Channel, out.Bytes)
	if in.After {
		s.after = &o.Gone
	}
	if !announced {
		p.askNext(w, s, in)
	}
	p.mu.Unlock()
	there := p.alternate(dst, src, o, s, in.After)
	if !o.Done.Load() {
		if err := p.awaitSent(dst, there, sends, o, waits); err != nil {
			return err
		}
	}
	if in.After {
		p.handMore(s)
	}
	return p.awaitMessage(src, in.From, w, s, announced, in.Dst, in.Take)
}

// partners are the links with the ranks of an exchange, once they have met.
func (p *port) partners(out transport.Outgoing, in transport.Incoming) (dst, src *wire.Link, err error) {
	if err := p.Member(out.To, out.Channel); err != nil {
		return nil, nil, err
	}
	if err := p.Member(in.From, in.Channel); err != nil {
		return nil, nil, err
	}
	if f := p.err.Load(); f != nil {
		return nil, nil, f.err
	}
	dst, src = p.link(out.To), p.link(in.From)
	for _, pr := range [2]*wire.Link{dst, src} {
		if err := pr.Meet(p.stop); err != nil {
			return nil, nil, err
		}
	}
	return dst, src, nil
}

// askNext says where the next message of a way is wanted, which nobody announced; the caller holds mu.
func (p *port) askNext(w *way, s *slot, in transport.Incoming) {
	if w.next == w.base {
		w.next++
	}
	p.ask(s, in.From, in.Dst, in.Take, transport.FormOf(in.Channel, in.N))
}

// alternate writes a frame of o and reads what has come of s, and so on, until both are through or nothing has moved for a while. It
// returns the stream that o goes over.
func (p *port) alternate(dst, src *wire.Link, o *wire.Outbound, s *slot, after bool) (there *wire.Stream) {
	dst.Messages.Add(1)
	there, back := dst.Streams()[0], src.Streams()[0]
	if there.Roomy() {
		o.Most = frame.LongSize
	}
	there.Post(o)
	for idle := 0; idle < swapLooks; {
		moved := !o.Done.Load() && there.WriteFrame()
		if !s.done.Load() && back.TryRead() {
			moved = back.Read(frame.PieceSize, true, &s.done) || moved
			back.EndRead()
		}
		if moved && after {
			p.handMore(s)
		}
		if o.Done.Load() && s.done.Load() || p.err.Load() != nil || dst.Alive() != nil || src.Alive() != nil {
			break
		}
		if moved {
			idle = 0
		} else if idle++; idle >= wire.Tries {
			p.e.wire.Home.Yield()
		}
	}
	return there
}

// handMore hands out what came before as much of the other message was sent: pieces
// with checksums, which are looked at as a whole first.
func (p *port) handMore(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(s.parts) > 0 && !s.dead {
		p.hand(s)
		p.settle(s)
	}
}

// exchangeShort is Exchange of short messages by the caller that holds mu, which it gives
// up: the socket takes all of what is sent.
func (p *port) exchangeShort(dst, src *wire.Link, out transport.Outgoing, in transport.Incoming, waits func(sending bool)) error {
	w := p.way(in.From, in.Channel)
	fresh := p.fresh(w)
	if err := p.sendShort(dst, p.way(out.To, out.Channel), out.Channel, out.Bytes, waits); err != nil {
		return err
	}
	if fresh && p.recvQuick(src, in.From, in.Channel, w, in.N, in.Dst, in.Take) {
		return nil
	}
	p.mu.Lock()
	return p.receiveAny(src, in.From, in.Channel, w, in.N, in.Dst, in.Take)
}

// oneByOne is Exchange by a rank that sends, then receives.
func (p *port) oneByOne(out transport.Outgoing, in transport.Incoming, waits func(sending bool)) error {
	from, fromChannel := in.From, in.Channel
	if !in.After {
		p.mu.Lock()
		w := p.way(from, fromChannel)
		s := p.at(w, p.Members[from], fromChannel, w.base)
		if !s.asked && p.err.Load() == nil {
			p.askNext(w, s, in)
		}
		p.mu.Unlock()
	}
	if waits != nil {
		waits(true)
	}
	if err := p.Send(out.To, out.Channel, out.Bytes); err != nil {
		return err
	}
	if waits != nil {
		waits(false)
	}
	if in.Dst != nil {
		return p.Recv(from, fromChannel, in.Dst)
	}
	return p.Take(from, fromChannel, in.N, in.Take)
}
