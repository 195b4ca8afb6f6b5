package device

import (
	"context"
	"errors"
	"math/bits"
	"sync"

	"github.com/weft-fabric/weft/run/gpu"
)

// Stage lends memory of the host that stands for memory of a GPU, so that what is done on the host alone, messages between two
// ranks among it, can be done with it. It is one rank's own affair: the others may have no GPU. Several goroutines may use it.
type Stage struct {
	dev      gpu.Device
	mu       sync.Mutex
	from, to gpu.Queue
	spare    [64][][]byte // pinned, by the power of two of their length
	closed   bool
}

// NewStage makes a stage of a GPU, which it closes.
func NewStage(dev gpu.Device) (*Stage, error) {
	s := &Stage{dev: dev}
	var err error
	if s.from, err = dev.Queue(); err == nil {
		s.to, err = dev.Queue()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// After notes how far a stream of the user's is. What it gives waits until the stream has come there.
func (s *Stage) After(stream gpu.Stream) (func(context.Context) error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note, err := s.from.Note(stream)
	if err != nil {
		return nil, err
	}
	if err := s.from.After(note); err != nil {
		return nil, err
	}
	mark, err := s.from.Mark()
	return func(ctx context.Context) error {
		return until(ctx, func() (bool, error) { return s.from.Reached(mark) })
	}, err
}

// Out lets use have what m holds.
func (s *Stage) Out(ctx context.Context, m Memory, use func(host []byte) error) error {
	return s.lend(m, func(host []byte) error {
		if err := s.copy(ctx, s.from, func() error { return s.from.Out(host, m.At) }, len(host)); err != nil {
			return err
		}
		return use(host)
	})
}

// In leaves in m what fill writes to memory of the host, of which it says how many bytes count.
func (s *Stage) In(ctx context.Context, m Memory, fill func(host []byte) (int, error)) error {
	return s.lend(m, func(host []byte) error {
		n, err := fill(host)
		if err != nil {
			return err
		}
		return s.copy(ctx, s.to, func() error { return s.to.In(m.At, host[:n]) }, n)
	})
}

// Receive is In whose beginning and end are apart: start begins to fill memory of the host at once, and gives what waits for that. What
// Receive gives waits for it, then for after, and leaves in m what came.
func (s *Stage) Receive(m Memory, after func(context.Context) error,
	start func(host []byte) func() (int, error)) (func(context.Context) error, error) {
	host, err := s.lent(m)
	if err != nil {
		return nil, err
	}
	filled := start(host)
	return func(ctx context.Context) error {
		defer s.put(host)
		n, err := filled()
		if err == nil {
			err = after(ctx)
		}
		if err != nil {
			return err
		}
		return s.copy(ctx, s.to, func() error { return s.to.In(m.At, host[:n]) }, n)
	}, nil
}

// lend has memory of the host used.
func (s *Stage) lend(m Memory, do func(host []byte) error) error {
	host, err := s.lent(m)
	if err != nil {
		return err
	}
	defer s.put(host)
	return do(host)
}

// lent checks memory and finds as much on the host; nil where there is nothing.
func (s *Stage) lent(m Memory) ([]byte, error) {
	if m.Count == 0 {
		return nil, nil
	}
	if _, err := s.dev.Segment(m.At, m.Bytes()); err != nil {
		return nil, err
	}
	host, err := s.room(m.Bytes())
	if err != nil {
		return nil, err
	}
	return host[:m.Bytes()], nil
}

// copy queues a copy and waits for it.
func (s *Stage) copy(ctx context.Context, q gpu.Queue, queue func() error, bytes int) error {
	if bytes == 0 {
		return nil
	}
	s.mu.Lock()
	err := queue()
	var mark uint64
	if err == nil {
		mark, err = q.Mark()
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return until(ctx, func() (bool, error) { return q.Reached(mark) })
}

// room finds pinned memory of at least n bytes, and less than twice that.
func (s *Stage) room(n int) ([]byte, error) {
	k := max(12, bits.Len(uint(n-1)))
	s.mu.Lock()
	if list := s.spare[k]; len(list) > 0 {
		b := list[len(list)-1]
		s.spare[k] = list[:len(list)-1]
		s.mu.Unlock()
		return b, nil
	}
	s.mu.Unlock()
	b := make([]byte, 1<<k)
	return b, s.dev.Register(b)
}

func (s *Stage) put(b []byte) {
	if b == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b = b[:cap(b)]
	k := bits.Len(uint(len(b) - 1))
	s.spare[k] = append(s.spare[k], b)
}

// Close gives everything back. Nothing may be under way.
func (s *Stage) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	for _, q := range []gpu.Queue{s.from, s.to} {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	for _, list := range s.spare {
		for _, b := range list {
			errs = append(errs, s.dev.Unregister(b))
		}
	}
	return errors.Join(append(errs, s.dev.Close())...)
}
