package comm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/script"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// swapping is a port that exchanges messages, up to a number of them.
type swapping struct {
	transport.Port
	left *int
}

var errSpent = errors.New("no exchange is left")

// sameBits compares numbers of which some are none.
func sameBits(a, b []float32) bool { return bytes.Equal(reduce.Bytes(a), reduce.Bytes(b)) }

func (s swapping) Exchange(out transport.Outgoing, in transport.Incoming, _ func(bool)) error {
	if *s.left--; *s.left < 0 {
		return errSpent
	}
	if err := s.Send(out.To, out.Channel, out.Bytes); err != nil {
		return err
	}
	if in.Dst != nil {
		return s.Recv(in.From, in.Channel, in.Dst)
	}
	return s.Take(in.From, in.Channel, in.N, in.Take)
}

// Sends that are exchanged with receives and sends before them give the same bits and leave the
// same steps with the flight recorder.
func TestExchangesLikeSends(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		each(t, n, quick, func(c *Comm) error {
			messagesOnly(c)
			p, err := programOf("recursive-doubling", n, 1)
			if err != nil {
				return err
			}
			port, err := newPort(c)
			if err != nil {
				return err
			}
			for _, count := range []int{1, 2, 13, 1024, 1025} {
				for _, op := range []reduce.Op{Sum, Avg, Max} {
					for _, inPlace := range []bool{false, true} {
						var sums [2][]float32
						var steps [2][]deed
						for way := range 2 {
							src := noise(uint64(count), c.Rank(), count)
							dst := make([]float32, count)
							if inPlace {
								dst = src
							}
							left := n
							c.scripts = script.NewRunner(c.group, swapping{port, &left}, way == 1)
							if err := AllReduceTo(context.Background(), c, dst, src, op, Using(p)); err != nil {
								return err
							}
							if !inPlace && !sameBits(src, noise(uint64(count), c.Rank(), count)) {
								return errors.New("the input has changed")
							}
							sums[way] = dst
							list := c.Flight().Records()
							r := list[len(list)-1]
							for _, s := range r.Steps {
								steps[way] = append(steps[way], deed{s.Op, sched.Rank(s.From), sched.Rank(s.To)})
							}
							if last := r.Steps[len(r.Steps)-1].Ended; r.Began > last || last > r.Ended {
								return fmt.Errorf("from %d to %d, the last step ended at %d", r.Began, r.Ended, last)
							}
						}
						if !sameBits(sums[0], sums[1]) {
							return fmt.Errorf("%d elements, in place %v: %v and %v", count, inPlace, sums[0], sums[1])
						}
						if !slices.Equal(steps[0], steps[1]) {
							return fmt.Errorf("%d elements, in place %v: steps %v and %v", count, inPlace, steps[0], steps[1])
						}
					}
				}
			}
			return nil
		})
	}
}

// An exchange that fails leaves the input as it was.
func TestExchangeFails(t *testing.T) {
	const n, count = 4, 100
	for left := range 2 {
		var first sync.WaitGroup
		first.Add(n)
		each(t, n, quick, func(c *Comm) error {
			messagesOnly(c)
			p, err := programOf("recursive-doubling", n, 1)
			if err != nil {
				return err
			}
			buf := noise(1, c.Rank(), count)
			err = AllReduce(context.Background(), c, buf, Sum, Using(p)) // makes the port
			first.Done()
			if first.Wait(); err != nil {
				return err
			}
			have := left
			port, err := newPort(c)
			if err != nil {
				return err
			}
			c.scripts = script.NewRunner(c.group, swapping{port, &have}, true)
			buf = noise(2, c.Rank(), count)
			if err := AllReduce(context.Background(), c, buf, Sum, Using(p)); err == nil {
				return fmt.Errorf("after %d exchanges: it went well", left)
			}
			if !sameBits(buf, noise(2, c.Rank(), count)) {
				return fmt.Errorf("after %d exchanges: the input has changed", left)
			}
			return nil
		})
	}
}
