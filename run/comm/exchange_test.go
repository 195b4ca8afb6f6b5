package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// Sends and receives at once, of all lengths, with partners that do the same and
// with ones that send and receive one after the other, in whichever order.
func TestSendRecv(t *testing.T) {
	ctx := context.Background()
	for _, n := range []int{1, 2, 3, 5} {
		each(t, n, Config{}, func(c *Comm) error {
			me := c.Rank()
			for k, count := range []int{0, 1, 3, 24, 100, 4096, 9000, 300000} {
				for apart := 1; apart <= n; apart++ {
					to, from := (me+apart)%n, (me+n-apart%n)%n
					src, dst := make([]uint8, count), make([]uint8, count)
					for i := range src {
						src[i] = uint8(me*31 + i*7 + k)
					}
					var err error
					switch {
					case n > 1 && apart != n && (me+k)%4 == 1:
						h := RecvAsync(ctx, c, dst, from)
						err = errors.Join(Send(ctx, c, src, to), h.Wait(ctx))
					case (me+k)%4 == 2:
						err = SendRecvAsync(ctx, c, dst, src, from, to).Wait(ctx)
					default:
						err = SendRecv(ctx, c, dst, src, from, to)
					}
					if err != nil {
						return err
					}
					for i := range dst {
						if dst[i] != uint8(from*31+i*7+k) {
							return fmt.Errorf("%d bytes from %d: byte %d is %d", count, from, i, dst[i])
						}
					}
				}
			}
			return nil
		})
	}
}

// A rank that has no room for what it sends receives meanwhile, also if the
// message that makes room comes from a rank that has none either.
func TestSendRecvWithoutRoom(t *testing.T) {
	const n, before, after = 3, 8, 20 // a way has room for 8 messages
	ctx := context.Background()
	each(t, n, Config{}, func(c *Comm) error {
		next, last := (c.Rank()+1)%n, (c.Rank()+n-1)%n
		for k := range before {
			if err := Send(ctx, c, []int32{int32(k)}, next); err != nil {
				return err
			}
		}
		var got []int32
		for k := range after {
			b := make([]int32, 1)
			if err := SendRecv(ctx, c, b, []int32{int32(before + k)}, last, next); err != nil {
				return err
			}
			got = append(got, b[0])
		}
		for range before {
			b := make([]int32, 1)
			if err := Recv(ctx, c, b, last); err != nil {
				return err
			}
			got = append(got, b[0])
		}
		if !slices.IsSorted(got) || got[0] != 0 || got[len(got)-1] != before+after-1 {
			return fmt.Errorf("out of order: %v", got)
		}
		return nil
	})
}

// A receive under way does not keep an exchange behind it from sending what the
// other side needs before it answers.
func TestSendRecvBehindAReceive(t *testing.T) {
	ctx := context.Background()
	each(t, 2, Config{}, func(c *Comm) error {
		a, b, x := make([]int32, 1), make([]int32, 1), make([]int32, 1)
		if c.Rank() == 1 {
			return errors.Join(Recv(ctx, c, x, 0), Send(ctx, c, []int32{1}, 0), Send(ctx, c, []int32{2}, 0))
		}
		h := RecvAsync(ctx, c, a, 1)
		err := errors.Join(SendRecv(ctx, c, b, []int32{7}, 1, 1), h.Wait(ctx))
		if err == nil && (a[0] != 1 || b[0] != 2) {
			err = fmt.Errorf("received %d and %d", a[0], b[0])
		}
		return err
	})
}

func TestSendRecvFails(t *testing.T) {
	comms, err := LocalWith(2, quick)
	if err != nil {
		t.Fatal(err)
	}
	ctx, c := context.Background(), comms[0]
	one := make([]float32, 1)
	for _, r := range []int{-1, 2} {
		if SendRecv(ctx, c, one, []float32{2}, r, 1) == nil || SendRecv(ctx, c, one, []float32{2}, 1, r) == nil {
			t.Errorf("rank %d is taken for one", r)
		}
	}
	large := make([]float32, 1<<16)
	short, cancel := context.WithTimeout(ctx, time.Second) // the call begins before it is over
	defer cancel()
	var f *Failure
	if err := SendRecv(short, c, large, slices.Clone(large), 1, 1); !errors.As(err, &f) || f.Kind != Timeout ||
		!slices.Equal(f.Culprits, []int{1}) {
		t.Errorf("a partner that does not come: %v", err)
	}
	for _, c := range comms {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
