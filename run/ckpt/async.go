package ckpt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/reduce"
)

// ErrEarlier marks the error of a background write that an earlier Async started.
var ErrEarlier = errors.New("an earlier checkpoint in the background failed")

// Async is Save with the writing in the background: it copies the tensors, which is
// all the caller waits for, and returns. The copy goes to memory that later calls
// use again; where all Options.Buffers are still being written, Async waits for
// one, so that a disk too slow for the pace of checkpoints slows training down
// instead of filling the memory.
//
// Errors of the background surface once, at the next Async, Wait or Close, under
// ErrEarlier; the call itself does its work nonetheless. The context is for waiting
// and copying; what is under way is written to its end.
func (s *Store) Async(ctx context.Context, m Meta, tensors []Tensor) error {
	sh, err := newShard(m.clone(), false, time.Now(), tensors)
	if err != nil {
		return fmt.Errorf("save step %d: %w", m.Step, err)
	}
	buf, err := s.buffer(ctx)
	if err != nil {
		return fmt.Errorf("save step %d: waiting for the write before: %w", m.Step, err)
	}
	sh.snapshot(buf)
	s.mu.Lock()
	before, done := s.last, make(chan struct{})
	s.last = done
	s.mu.Unlock()
	go func() {
		defer close(done)
		<-before // a rank's checkpoints are written in order
		err := s.write(context.WithoutCancel(ctx), sh)
		sh.data = nil
		s.free <- buf
		if err != nil {
			s.mu.Lock()
			s.failed = append(s.failed, err)
			s.mu.Unlock()
		}
	}()
	return s.earlier()
}

// Wait returns when all that Async started is written, with the errors of it.
func (s *Store) Wait(ctx context.Context) error {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	select {
	case <-last:
		return s.earlier()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close waits for what Async started and gives memory and connections back.
func (s *Store) Close() error {
	err := s.Wait(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s.made > 0; s.made-- {
		<-s.free
	}
	s.place.Close()
	return err
}

// earlier takes the errors of the background that nobody has seen.
func (s *Store) earlier() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := s.failed
	s.failed = nil
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrEarlier, errors.Join(errs...))
}

// buffer takes a snapshot buffer, a new one if there may be more.
func (s *Store) buffer(ctx context.Context) (*[]byte, error) {
	select {
	case b := <-s.free:
		return b, nil
	default:
	}
	s.mu.Lock()
	if s.made < s.o.Buffers {
		s.made++
		s.mu.Unlock()
		return new([]byte), nil
	}
	s.mu.Unlock()
	select {
	case b := <-s.free:
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// clone keeps what the background reads from the caller's changes.
func (m Meta) clone() Meta {
	m.Layout, m.Extra, m.Random = maps.Clone(m.Layout), maps.Clone(m.Extra), maps.Clone(m.Random)
	for k, v := range m.Random {
		m.Random[k] = bytes.Clone(v)
	}
	return m
}

// snapshot copies a shard's data into one buffer, which grows to its size.
func (sh *shard) snapshot(buf *[]byte) {
	n := 0
	for _, p := range sh.data {
		n += len(p)
	}
	if cap(*buf) < n {
		*buf = make([]byte, n)
	}
	*buf = (*buf)[:n]
	gather(*buf, sh.data)
	sh.data = [][]byte{*buf}
}

// copyShare is what a thread must have to copy to be worth starting.
const copyShare = 16 << 20

// gather copies the concatenation of src to dst, with a few threads if it is large:
// one does not fill the memory's bandwidth.
func gather(dst []byte, src [][]byte) {
	threads := max(1, min(runtime.GOMAXPROCS(0), 4, len(dst)/copyShare))
	var wg sync.WaitGroup
	for i := range threads {
		from, to := split(len(dst), i, threads)
		part := func() {
			at := 0
			for _, p := range src {
				a, b := max(at, from), min(at+len(p), to)
				if a < b {
					reduce.Copy(dst[a:b], p[a-at:b-at])
				}
				at += len(p)
			}
		}
		if i == threads-1 {
			part()
		} else {
			wg.Go(part)
		}
	}
	wg.Wait()
}
