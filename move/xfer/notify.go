package xfer

import (
	"context"
	"fmt"
)

// Notify sends a notice that belongs to no data; it is delivered exactly once when Notify returns without an
// error. Notices of several calls have no order.
func (a *Agent) Notify(ctx context.Context, p *Peer, data []byte) error {
	if len(data) > maxNotice {
		return fmt.Errorf("notify %s: %w: %d bytes, at most %d", p.id.Name, ErrLimit, len(data), maxNotice)
	}
	if err := p.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	if t := p.inProcess(); t != nil {
		if t.inbox.full() {
			return fmt.Errorf("notify %s: %w", p.id.Name, t.errFull())
		}
		t.inbox.add(Notice{From: a.id, Data: append([]byte(nil), data...)})
		return nil
	}
	a.mu.Lock()
	num := a.calls.Add(1)
	a.active[num] = nil // its number counts as under way
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.active, num)
		a.mu.Unlock()
	}()
	var w writer
	w.num(1)
	w.bytes(data)
	l := p.link(p.network())
	for {
		s, err := l.get(ctx)
		if err != nil {
			return err
		}
		if told, err := s.tell(ctx, num, w); told {
			return err
		}
	}
}

// tell sends a notice and waits for the answer. It is false if the session was lost before one came.
func (s *session) tell(ctx context.Context, num uint64, payload []byte) (told bool, err error) {
	ch := s.expect(num)
	defer s.forget(num)
	if err := s.control.sendWhile(ctx, fTell, num, 0, payload); err != nil {
		s.lose(err)
	}
	select {
	case f := <-ch:
		if f.Kind == fFail {
			_, err = parseFail(f.payload)
		}
		return true, err
	case <-s.lost:
		return false, nil
	case <-ctx.Done():
		return true, fmt.Errorf("notify %s: %w: %w", s.peer.id.Name, ErrDeadline, ctx.Err())
	}
}
