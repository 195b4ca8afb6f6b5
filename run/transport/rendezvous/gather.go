package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/transport"
)

// Gather hands every rank what each of them gives. All ranks must call it
// equally often. An error ends the rendezvous for gathering on all ranks.
func (r *Meeting) Gather(ctx context.Context, mine []byte) ([][]byte, error) {
	if len(mine) > maxBlob {
		return nil, fmt.Errorf("rank %d gives %d bytes to gather, at most %d are allowed", r.cfg.Rank, len(mine), maxBlob)
	}
	r.gather.Lock()
	defer r.gather.Unlock()
	start := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		if r.cfg.Rank == 0 {
			r.fail(err) // those that gather already wait for rank 0's word
		}
		return nil, err
	}
	r.round++
	if r.cfg.Rank == 0 {
		return r.collect(ctx, mine, start)
	}
	r.result = nil
	l, round := r.links[0], r.round
	r.mu.Unlock()
	err := l.send(frame{kind: kindBlob, rank: uint32(r.cfg.Rank), round: round, body: mine}, deadline(ctx))
	r.mu.Lock()
	if err == nil {
		err = r.until(ctx, func() bool { return r.result != nil || r.broken != nil })
	}
	if r.result != nil {
		return r.result, nil // also if rank 0 left right after
	}
	if r.broken != nil {
		return nil, r.broken
	}
	if err != nil {
		err = fmt.Errorf("rank %d gathered over %s for %s: %w", r.cfg.Rank, r.addr, since(start), err)
		r.fail(err)
	}
	return nil, err
}

// usable is nil or why the rendezvous can no longer gather; the caller holds mu.
func (r *Meeting) usable() error {
	if r.closed {
		return errors.New("the rendezvous is closed")
	}
	if r.broken != nil {
		return r.broken
	}
	for rank, why := range r.left {
		if why != nil {
			return fmt.Errorf("rank %d left the rendezvous: %w", rank, why)
		}
	}
	return nil
}

// collect is rank 0's part of a round; the caller holds mu.
func (r *Meeting) collect(ctx context.Context, mine []byte, start time.Time) ([][]byte, error) {
	if r.blobs == nil {
		r.blobs = make([][]byte, r.cfg.Size)
	}
	// What others keep of it must not change with the caller's memory.
	r.blobs[0] = append([]byte{}, mine...)
	var late []int
	err := r.until(ctx, func() bool {
		late = late[:0]
		for i, b := range r.blobs {
			if b == nil {
				late = append(late, i)
			}
		}
		return len(late) == 0 || r.usable() != nil
	})
	if len(late) > 0 {
		if err == nil {
			err = r.usable()
		} else {
			err = fmt.Errorf("%s of %d gave nothing to gather at %s for %s: %w", plural("rank", late), r.cfg.Size, r.addr, since(start), err)
		}
		r.fail(err)
		return nil, err
	}
	blobs, links, round := r.blobs, slices.Clone(r.links), r.round
	r.blobs = nil
	body := putBlobs(blobs)
	if len(body) > maxBlobs {
		err := fmt.Errorf("%d bytes gathered, at most %d are allowed", len(body), maxBlobs)
		r.fail(err)
		return nil, err
	}
	r.mu.Unlock()
	err = r.spread(ctx, links, frame{kind: kindBlobs, round: round, body: body})
	r.mu.Lock()
	if err != nil {
		r.fail(err)
		return nil, err
	}
	return blobs, nil
}

// deadline is until when a frame must be written. One that is begun has a second, whatever ctx says: a link is of no use
// after half a frame, and the others are told over it why this rank gave up.
func deadline(ctx context.Context) time.Time {
	t, ok := ctx.Deadline()
	if !ok {
		return time.Now().Add(writeTime)
	}
	if least := time.Now().Add(time.Second); t.Before(least) {
		return least
	}
	return t
}

// spread sends a frame over several links at once.
func (r *Meeting) spread(ctx context.Context, links []*link, f frame) error {
	errs := make([]error, len(links))
	var wg sync.WaitGroup
	for i, l := range links {
		if l == nil || l.conn == nil {
			continue
		}
		wg.Go(func() {
			if err := l.send(f, deadline(ctx)); err != nil && !r.replaced(i, l) {
				errs[i] = fmt.Errorf("rank %d cannot be told anything: %w", i, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// replaced reports whether a rank has dialed again since: what it missed it is told over its new link.
func (r *Meeting) replaced(rank int, l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.links[rank] != nil && r.links[rank] != l
}

// fail ends the rendezvous for gathering here and on all others; the caller holds mu.
func (r *Meeting) fail(err error) {
	if r.broken != nil || r.closed {
		return
	}
	r.broken = err
	r.changed()
	links := slices.Clone(r.links)
	r.later(links, failed(r.cfg.Rank, err))
}

// later spreads a frame without waiting for it; the caller holds mu.
func (r *Meeting) later(links []*link, f frame) {
	if r.closed {
		return
	}
	r.words.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.spread(ctx, links, f)
	})
}

// read takes what comes over a link until it ends.
func (r *Meeting) read(l *link, rank int) {
	defer r.wg.Done()
	for {
		f, err := l.receive()
		if err == nil {
			err = r.take(l, rank, f)
		}
		if err != nil {
			if err == io.EOF {
				err = errors.New("its process closed the connection or died")
			}
			r.lost(rank, l, err)
			return
		}
	}
}

// take carries out what a frame says.
func (r *Meeting) take(l *link, rank int, f frame) error {
	var after func() // runs without the lock, as it may call the rendezvous
	defer func() {
		if after != nil {
			after()
		}
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch f.kind {
	case kindBye:
		l.bye, l.why = true, string(f.body)
	case kindFail:
		if r.cfg.Rank == 0 {
			r.fail(told(f)) // tells the others
		} else if r.broken == nil {
			r.broken = told(f)
			r.changed()
		}
	case kindBlob:
		if r.cfg.Rank != 0 || f.round != r.round+boolInt(r.blobs == nil || r.blobs[0] == nil) {
			return fmt.Errorf("rank %d is in round %d of gathering, rank %d in %d", rank, f.round, r.cfg.Rank, r.round)
		}
		if r.blobs == nil {
			r.blobs = make([][]byte, r.cfg.Size)
		}
		r.blobs[rank] = append([]byte{}, f.body...)
		r.changed()
	case kindBlobs:
		blobs, err := getBlobs(f.body, r.cfg.Size)
		if err != nil {
			return err
		}
		if f.round != r.round {
			return fmt.Errorf("result of round %d of gathering in round %d", f.round, r.round)
		}
		r.result = blobs
		r.changed()
	case kindGone:
		if rank == 0 && f.rank < uint32(r.cfg.Size) && r.left[f.rank] == nil {
			why := &failure{why: string(f.body)}
			r.left[f.rank] = why
			r.changed()
			if r.cfg.Lost != nil && !r.closed {
				after = func() { r.cfg.Lost(int(f.rank), why) }
			}
		}
	case kindTell:
		from := int(f.rank)
		if r.cfg.Rank == 0 {
			from = rank
			r.relay(from, f.body)
		}
		if r.cfg.Heard != nil && !r.closed && from >= 0 && from < r.cfg.Size {
			after = func() { r.cfg.Heard(from, f.body) }
		}
	default:
		return fmt.Errorf("rank %d sent a frame of kind %d, which has no place here", rank, f.kind)
	}
	return nil
}

func boolInt(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// relay sends a word to all but its author; the caller holds mu.
func (r *Meeting) relay(from int, b []byte) {
	links := slices.Clone(r.links)
	links[from] = nil
	body := slices.Clone(b)
	r.later(links, frame{kind: kindTell, rank: uint32(from), body: body})
}

// Tell spreads a short word, of at most 64 KiB, to all other ranks: their Heard
// is told. It does not wait for them, and promises nothing when ranks die.
func (r *Meeting) Tell(b []byte) error {
	if len(b) > maxWord {
		return fmt.Errorf("a word of %d bytes, at most %d are allowed", len(b), maxWord)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("the rendezvous is closed")
	}
	r.relay(r.cfg.Rank, b)
	return nil
}

// lost is the end of a rank's link.
func (r *Meeting) lost(rank int, l *link, why error) {
	tell := false
	defer func() {
		if tell {
			r.cfg.Lost(rank, why)
		}
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	l.conn.Close()
	if r.cfg.Rank == 0 && r.links[rank] != l {
		return // it has dialed again since
	}
	if r.cfg.Rank == 0 && !r.begun {
		r.links[rank] = nil // it may come again
		r.changed()
		return
	}
	bye := l.bye
	if bye {
		why = errors.New("it took its leave")
		if l.why != "" {
			why = errors.New("it gave up: " + l.why)
		}
	}
	if r.left[rank] != nil {
		return
	}
	r.left[rank] = why
	r.links[rank] = nil
	r.changed()
	if r.cfg.Rank == 0 && !bye {
		r.later(slices.Clone(r.links), frame{kind: kindGone, rank: uint32(rank), body: []byte(why.Error())})
	}
	if r.cfg.Rank != 0 && r.broken == nil {
		r.broken = fmt.Errorf("rank 0 left the rendezvous at %s: %w", r.addr, why)
	}
	tell = r.cfg.Lost != nil && !bye
}

// Alive is nil, or why a rank is no longer in the rendezvous.
func (r *Meeting) Alive(rank int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rank < 0 || rank >= r.cfg.Size {
		return fmt.Errorf("rank %d of %d", rank, r.cfg.Size)
	}
	return r.left[rank]
}

// Counters are how many connections rank 0 turned away, by kind.
func (r *Meeting) Counters() []transport.Counter {
	if r.gate == nil {
		return nil
	}
	return r.gate.Counters()
}

// Close leaves the rendezvous. Others that go on gathering fail.
func (r *Meeting) Close() error { return r.Leave(nil) }

// Leave is Close, and tells those that go on gathering why.
func (r *Meeting) Leave(why error) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.changed()
	links := slices.Clone(r.links)
	r.mu.Unlock()
	if r.ln != nil {
		r.ln.Close()
	}
	r.words.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	bye := frame{kind: kindBye}
	if why != nil {
		bye.body = []byte(why.Error())
		bye.body = bye.body[:min(len(bye.body), maxWord)]
	}
	_ = r.spread(ctx, links, bye)
	for _, l := range links {
		if l != nil && l.conn != nil {
			l.conn.Close()
		}
	}
	if r.gate != nil {
		r.gate.Close()
	}
	r.wg.Wait()
	return nil
}
