package tcp

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// trio is three ranks with a port each, in their first call. The pump of rank 0 is out of work: what its callers do not read stays in
// the sockets.
func trio(t *testing.T) (es []*Endpoint, ports []*port) {
	t.Helper()
	es = endpoints(t, 3, nil)
	for _, e := range es {
		p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1, 2}})
		if err != nil {
			t.Fatal(err)
		}
		p.(*port).begin(1)
		ports = append(ports, p.(*port))
	}
	es[0].wire.Unpumped()
	return es, ports
}

// has says whether a message of rank 2 is in; the caller holds the lock.
func (p *port) has() bool {
	ws := p.ways[2]
	return len(ws) > 0 && ws[0] != nil && len(ws[0].slots) > ws[0].head && ws[0].slots[ws[0].head].came
}

// A sender whose receiver does not go on takes what others send to it, though it announced nothing: the receiver may wait for that.
func TestSenderTakesWhatOthersSend(t *testing.T) {
	es, ports := trio(t)
	if err := ports[2].Send(0, 0, []byte("unannounced")); err != nil {
		t.Fatal(err)
	}
	from := es[0].wire.Link(2).Streams()
	fds := []unix.PollFd{{Fd: int32(from[0].FD()), Events: unix.POLLIN}}
	for stop := patience(); fds[0].Revents == 0; {
		if _, err := unix.Poll(fds, 10); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	for _, wide := range []bool{false, true} {
		es[0].wire.Link(1).Look(ports[0], wide)
		ports[0].mu.Lock()
		if got := ports[0].has(); got != wide {
			t.Errorf("a sender that looks at all peers, %v, has taken it: %v", wide, got)
		}
		ports[0].mu.Unlock()
	}
}

// The whole wait comes to that: nobody else reads for the sender.
func TestSenderThatWaitsLooksAtAll(t *testing.T) {
	es, ports := trio(t)
	var done atomic.Bool
	ended := make(chan error, 1)
	go func() {
		ended <- es[0].wire.Link(1).Await(ports[0], wire.AnyStream, &done, true, func(*wire.Waiter) {})
	}()
	if err := ports[2].Send(0, 0, []byte("unannounced")); err != nil {
		t.Fatal(err)
	}
	ports[0].look(t, "the sender takes what rank 2 sent", ports[0].has)
	done.Store(true)
	es[0].wire.WakeAll()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
