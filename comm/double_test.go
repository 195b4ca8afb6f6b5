package comm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/transport"
)

// Which scripts are recursive doubling is read off what they do, not off their name.
func TestDoubles(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		err := programs(n, func(a *algo.Algorithm, p *sched.Program) error {
			s, err := newScript(p, n-1)
			if err != nil {
				return err
			}
			if want := a.Name == "recursive-doubling" && p.Op == sched.AllReduce && p.Channels() == 1; s.double != want {
				return fmt.Errorf("taken for recursive doubling: %v, want %v", s.double, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	text := `weft 1
name mine
op all-reduce
ranks 2
chunks 1
slots 1
channels 1:
  copy in[0] -> out[0]
  send out[0] to 1-r
  recv-reduce out[0] -> out[0] from 1-r
`
	for _, x := range []struct {
		from, to string
		want     bool
	}{
		{"", "", true},
		{"send out[0]", "send in[0]", false}, // in place the output is stored to meanwhile
		{"  copy in[0] -> out[0]\n", "", false},
		{"chunks 1", "chunks 2", false},
		{"recv-reduce out[0]", "recv-reduce in[0]", false},
	} {
		changed := strings.Replace(text, x.from, x.to, 1)
		p, err := sched.Parse(changed)
		if err != nil {
			t.Fatal(err)
		}
		s, err := newScript(p, 0)
		if err != nil {
			t.Fatal(err)
		}
		if s.double != x.want {
			t.Errorf("with %q instead of %q: taken for recursive doubling: %v, want %v", x.to, x.from, s.double, x.want)
		}
	}
}

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

// Recursive doubling by itself and as any script give the same bits and leave the same
// steps with the flight recorder.
func TestDoubleLikeAnyScript(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		each(t, n, quick, func(c *Comm) error {
			messagesOnly(c)
			p, err := programOf("recursive-doubling", n, 1)
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
							if way == 0 {
								c.swapper = nil
							} else {
								left := n
								c.swapper = swapping{c.port, &left}
							}
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
func TestDoubleFails(t *testing.T) {
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
			c.swapper = swapping{c.port, &have}
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
