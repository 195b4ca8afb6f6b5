package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/soft"
	"github.com/weft-fabric/weft/run/reduce"
)

// Messages between memory of GPUs, of any kind, many at a time and longer than what was lent before; a message waits for the
// stream that writes it; an address that is none is refused by the rank that gave it alone, without a message.
func TestStage(t *testing.T) {
	cs, err := comm.Local(2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() {
			d := soft.New(gpu.Mapped)
			s, err := NewStage(d)
			if err != nil {
				t.Error(err)
				return
			}
			if err := messages(ctx, c, d, s); err != nil {
				t.Errorf("rank %d: %v", c.Rank(), err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func messages(ctx context.Context, c *comm.Comm, d *soft.Device, s *Stage) error {
	stream := d.UserQueue()
	defer stream.Close()
	peer := 1 - c.Rank()
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() { errs[i] = swap(ctx, c, d, s, stream, i, peer) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	none := Memory{12345, reduce.Uint8, 10}
	if err := s.Out(ctx, none, func([]byte) error { return errors.New("it was used") }); !errors.Is(err, gpu.ErrMemory) {
		return fmt.Errorf("an address that is none: %v", err)
	}
	return nil
}

// swap sends what a stream has just written, and compares what comes.
func swap(ctx context.Context, c *comm.Comm, d *soft.Device, s *Stage, stream *soft.Queue, i, peer int) error {
	n := 100 * (i + 1) * (i + 1)
	mine, theirs := data(uint64(i), c.Rank(), n), data(uint64(i), peer, n)
	src, err := d.AllocUser(n)
	if err != nil {
		return err
	}
	dst, err := d.AllocUser(n)
	if err != nil {
		return err
	}
	if err := stream.In(src, mine); err != nil {
		return err
	}
	written, err := s.After(stream.Stream())
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var sent error
	wg.Go(func() {
		if sent = written(ctx); sent == nil {
			sent = s.Out(ctx, Memory{src, reduce.Uint8, n}, func(b []byte) error { return comm.SendTag(ctx, c, b, peer, i) })
		}
	})
	err = s.In(ctx, Memory{dst, reduce.Uint8, n}, func(b []byte) (int, error) {
		st, err := comm.RecvTag(ctx, c, b, peer, i)
		return st.Count, err
	})
	wg.Wait()
	if err := errors.Join(sent, err); err != nil {
		return err
	}
	got, err := d.Bytes(dst, n)
	if err == nil && !bytes.Equal(got, theirs) {
		return fmt.Errorf("message %d is wrong", i)
	}
	return err
}
