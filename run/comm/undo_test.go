package comm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/script"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// doomed is a port of a rank that signals itself after a number of moves: before and
// after each message, and after each piece of a sum.
type doomed struct {
	transport.Port
	left   int
	signal syscall.Signal
}

// doom makes the port of a communicator one.
func (c *Comm) doom(moves int, signal syscall.Signal) (err error) {
	port, err := newPort(c)
	if err == nil {
		c.scripts = script.NewRunner(c.group, &doomed{port, moves, signal}, true)
	}
	return err
}

// newPort is a port for the scripts of a communicator that has none in use.
func newPort(c *Comm) (transport.Port, error) {
	if c.scripts != nil {
		if err := c.scripts.Close(); err != nil {
			return nil, err
		}
	}
	return c.world.ep.Port(transport.Group{ID: c.id, Epoch: c.epoch, Members: c.group.Members, Words: calls.Words{}})
}

func (d *doomed) move(err error) error {
	if d.left--; d.left == 0 {
		_ = syscall.Kill(os.Getpid(), d.signal)
		select {}
	}
	return err
}

func (d *doomed) Send(to, channel int, b []byte) error {
	_ = d.move(nil)
	return d.move(d.Port.Send(to, channel, b))
}

func (d *doomed) Holder() transport.Holder { return d }

func (d *doomed) Exchange(out transport.Outgoing, in transport.Incoming, waits func(bool)) error {
	_ = d.move(nil)
	if take := in.Take; take != nil {
		in.Take = func(piece []byte) {
			take(piece)
			_ = d.move(nil)
		}
	}
	return d.move(d.Port.Exchange(out, in, waits))
}

func (d *doomed) Holds(peer, n int) bool { return d.Port.Holder().Holds(peer, n) }

func (d *doomed) SendWhole(to, channel int, b []byte) error {
	_ = d.move(nil)
	return d.move(d.Port.Holder().SendWhole(to, channel, b))
}

func (d *doomed) RecvWhole(from, channel int, dst []byte) error {
	_ = d.move(nil)
	return d.move(d.Port.Holder().RecvWhole(from, channel, dst))
}

// One of two ranks over tcp is killed after a number of moves of an all-reduce in place,
// from the first to the last: the other has its input as it was, or the whole result,
// and the error names the dead rank.
func TestKilledAtEveryMove(t *testing.T) {
	var y tally
	whole := 0
	counts := []int{60_000, 1<<19 + 77, 9 << 17} // one run of messages that are short or long, and five runs
	const moves = 24                             // the first two have no more
	stride := 4                                  // every count, and every fourth move
	if bounded.Long() {
		stride = 1
	}
	tried := 0
	for k := 0; k < len(counts)*moves; k += stride {
		tried++
		f := &faultCase{fault: "kill -9 at a move", transport: "tcp", op: "all-reduce", count: counts[k%len(counts)], inPlace: true, k: k}
		list := startProcs(t, 2, "tcp", "serve")
		list.all(order{Do: "dup"})
		victim := k % 2
		for r, p := range list {
			o := f.order()
			o.Limit = longTime
			if r == victim {
				o.Moves, o.Signal = 1+k/len(counts)*[]int{1, 1, 3}[k%len(counts)], syscall.SIGKILL
				o.InPlace = k%5 > 0 // it need not do as the other
			}
			p.order(o)
		}
		rest := list.without(victim)
		events := rest.await("op")
		if events[0].Err == "" {
			whole++
		}
		y.judge(f, "the operation", events, victim, longTime, Dead)
		list[victim].wait()
		y.after(f, rest, victim, longTime, Dead)
		rest.finish()
	}
	for _, p := range y.problems {
		t.Error(p)
	}
	if cut := tried - whole; cut == 0 || whole == 0 {
		t.Errorf("%d operations were cut short and %d not", cut, whole)
	}
	t.Logf("%d whole results of %d", whole, tried)
}

// cut is a port that fails after a number of messages, on whichever channel.
type cut struct {
	transport.Port
	left atomic.Int32
}

var errCut = errors.New("cut")

func (c *cut) message(err error) error {
	if c.left.Add(-1) < 0 {
		return errCut
	}
	return err
}

func (c *cut) Send(to, channel int, b []byte) error {
	return c.message(c.Port.Send(to, channel, b))
}

func (c *cut) Recv(from, channel int, dst []byte) error {
	return c.message(c.Port.Recv(from, channel, dst))
}

func (c *cut) Take(from, channel, n int, f func([]byte)) error {
	return c.message(c.Port.Take(from, channel, n, f))
}

func (c *cut) Exchange(out transport.Outgoing, in transport.Incoming, waits func(bool)) error {
	return c.message(c.Port.Exchange(out, in, waits))
}

// An all-reduce in place on two channels fails after any number of messages: what both channels overwrote of the input is as it was.
func TestChannelsRestoreInput(t *testing.T) {
	ctx := context.Background()
	p, err := programOf("ring", 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	for messages := range int32(8) { // of a rank, on both channels
		comms, err := LocalWith(3, Config{})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, c := range comms {
			messagesOnly(c)
			port, err := newPort(c)
			if err != nil {
				t.Fatal(err)
			}
			x := &cut{Port: port}
			x.left.Store(messages)
			c.scripts = script.NewRunner(c.group, x, true)
			wg.Go(func() {
				want := noise(uint64(messages), c.Rank(), 100_000)
				buf := slices.Clone(want)
				// A rank may hear of another's failure before its own messages end.
				if err := AllReduce(ctx, c, buf, Sum, Using(p)); !errors.Is(err, errCut) &&
					(err == nil || !strings.Contains(err.Error(), "reports: "+errCut.Error())) {
					t.Errorf("rank %d, %d messages: %v", c.Rank(), messages, err)
				} else if !bytes.Equal(reduce.Bytes(buf), reduce.Bytes(want)) { // there are NaNs
					t.Errorf("rank %d, %d messages: the input is changed", c.Rank(), messages)
				}
			})
		}
		wg.Wait()
		for _, c := range comms {
			_ = c.Close()
		}
	}
}
