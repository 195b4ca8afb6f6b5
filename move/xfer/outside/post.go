package outside

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/move/xfer"
)

type posted struct {
	*xfer.Request
	began, ended time.Time
}

// prepare makes a list of pieces, of this agent or of a peer, and returns its number.
func (g *Agent) prepare(c call, r *answer) error {
	var peer *xfer.Peer
	if c.Peer != "" {
		if peer = g.peers[c.Peer]; peer == nil {
			return fmt.Errorf("agent %q: %w", c.Peer, xfer.ErrAgent)
		}
	}
	descs := make([]xfer.Desc, len(c.Descs))
	for i, d := range c.Descs {
		if peer == nil {
			x := g.regions[d.Region]
			if x == nil {
				return fmt.Errorf("descriptor %d: region %q: %w", i, d.Region, xfer.ErrRegion)
			}
			descs[i] = x.At(d.Off, d.Len)
			continue
		}
		x, err := peer.Region(d.Region)
		if err != nil {
			return fmt.Errorf("descriptor %d: %w", i, err)
		}
		descs[i] = x.At(d.Off, d.Len)
	}
	l, err := g.a.Prepare(peer, descs)
	if err != nil {
		return err
	}
	g.next++
	g.lists[g.next], r.Number = l, g.next
	return nil
}

// post starts a transfer and returns its number and how it stands. Data may be empty: that is a notice all the same,
// nil is none.
func (g *Agent) post(c call, r *answer) error {
	m := Move{Local: c.Local, Far: c.Far, Index: c.Index, Limit: time.Duration(c.Limit * float64(time.Second))}
	switch c.Op {
	case "READ":
	case "WRITE":
		m.Write = true
	default:
		return fmt.Errorf("operation %q; want READ or WRITE: %w", c.Op, errParameter)
	}
	if c.Data != nil {
		m.Notice = append([]byte{}, *c.Data...)
	}
	s, err := g.Post(m)
	if err != nil {
		return err
	}
	r.Number = s.Number
	s.tell(r)
	return nil
}

// Move is a transfer between two lists. Posting one and looking at it are calls of their own, without text in between: they are
// made for every few bytes that a program moves.
type Move struct {
	Write      bool
	Local, Far int // lists
	Index      int // which of their descriptors; 0 for all
	Limit      time.Duration
	Notice     []byte // nil for none
	Over       int    // a request to release first; 0 for none
}

// State is how a request stands.
type State struct {
	xfer.Status
	Number int
	Took   time.Duration // 0 until it is over
}

// tell puts it into an answer.
func (s State) tell(r *answer) {
	switch {
	case s.Status.State == xfer.Done:
		r.State = "DONE"
	case s.Status.State.Over():
		r.State = "ERR"
		if s.Err != nil {
			r.Error, r.Kind = s.Err.Error(), kind(s.Err)
		}
	default:
		r.State = "PROC"
	}
	r.Path, r.Bytes, r.Took = s.Path, s.Landed, float64(s.Took.Microseconds())
}

// Post posts a transfer.
func (g *Agent) Post(m Move) (State, error) {
	if m.Over != 0 {
		if err := g.release(m.Over); err != nil {
			return State{}, err
		}
	}
	local, far := g.lists[m.Local], g.lists[m.Far]
	if local == nil || far == nil {
		return State{}, fmt.Errorf("lists %d and %d: %w", m.Local, m.Far, xfer.ErrRegion)
	}
	x, ok := g.indices[m.Index]
	if m.Index != 0 && !ok {
		return State{}, fmt.Errorf("index %d: %w", m.Index, xfer.ErrRegion)
	}
	t := xfer.Transfer{Local: local, LocalIndex: x.local, Remote: far, RemoteIndex: x.far, Class: xfer.Latency, Timeout: m.Limit,
		Notice: m.Notice, Now: true}
	if m.Write {
		t.Op = xfer.Write
	}
	began := time.Now()
	q, err := g.a.Post(t)
	if err != nil {
		return State{}, err
	}
	g.next++
	p := &posted{Request: q, began: began}
	g.requests[g.next] = p
	return p.state(g.next), nil
}

// Look says how a request stands, and waits a little for its end.
func (g *Agent) Look(number int) (State, error) {
	x := g.requests[number]
	if x == nil {
		return State{}, fmt.Errorf("request %d: %w", number, xfer.ErrRegion)
	}
	x.moment()
	return x.state(number), nil
}

func (x *posted) state(number int) State {
	s := State{Status: x.Poll(), Number: number}
	if s.Status.State.Over() && x.ended.IsZero() {
		x.ended = time.Now()
	}
	if !x.ended.IsZero() {
		s.Took = x.ended.Sub(x.began)
	}
	return s
}

// release ends a request.
func (g *Agent) release(number int) error {
	x := g.requests[number]
	if x == nil {
		return fmt.Errorf("request %d: %w", number, xfer.ErrRegion)
	}
	delete(g.requests, number)
	if x.Poll().State.Over() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	return x.Cancel(ctx)
}

// moment waits a little for the end: a program that asks again and again leaves the core to those who copy.
func (x *posted) moment() {
	if x.Poll().State.Over() {
		return
	}
	t := time.NewTimer(pollTime)
	defer t.Stop()
	select {
	case <-x.Done():
	case <-t.C:
	}
}
