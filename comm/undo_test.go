package comm

import (
	"os"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/comm/internal/script"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/transport"
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
