//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

// gathers are the Gathers of n ranks of this process, for one use. between sees
// all blobs before anybody gets them.
func gathers(n int, between func(all [][]byte)) []transport.Gather {
	all := make([][]byte, n)
	var mu sync.Mutex
	left, ready := n, make(chan struct{})
	gs := make([]transport.Gather, n)
	for r := range gs {
		gs[r] = func(ctx context.Context, mine []byte) ([][]byte, error) {
			mu.Lock()
			all[r] = mine
			if left--; left == 0 {
				if between != nil {
					between(all)
				}
				close(ready)
			}
			mu.Unlock()
			select {
			case <-ready:
				return all, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return gs
}

// here opens all ranks in this process.
func here(t *testing.T, n int, between func(all [][]byte)) []*Endpoint {
	t.Helper()
	es := make([]*Endpoint, n)
	gs := gathers(n, between)
	err := conform.Together(n, func(r int) (err error) {
		es[r], err = Open(context.Background(), Config{Rank: r, Size: n, Gather: gs[r], Arena: 1 << 30})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return es
}

// descriptors counts the open files of this process.
func descriptors(t *testing.T) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// Ranks of one process can meet in shared memory as well, and leave no goroutine
// and no descriptor behind.
func TestConformInOneProcess(t *testing.T) {
	defer goleak.VerifyNone(t)
	before := descriptors(t)
	conform.Test(t, func(t *testing.T, n int) []transport.Endpoint {
		var es []transport.Endpoint
		for _, e := range here(t, n, nil) {
			es = append(es, e)
		}
		return es
	})
	if now := descriptors(t); now > before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

// Ports give back all they took, once both ends are closed.
func TestPortsDoNotGrow(t *testing.T) {
	es := here(t, 2, nil)
	ports, err := conform.Find("ports made and closed")
	if err != nil {
		t.Fatal(err)
	}
	if err := conform.Together(2, func(r int) error { return ports.Run(es[r]) }); err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if most := uint64(1 << 20); e.arena.peak > most {
			t.Errorf("rank %d had %d bytes in use for one port at a time, want at most %d", e.rank, e.arena.peak, most)
		}
		p, err := e.Port(transport.Group{ID: 5000, Epoch: 1, Members: []int{e.rank}}) // looks through what is left over
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if e.arena.allocated != 0 {
			t.Errorf("rank %d has %d bytes in use without a port", e.rank, e.arena.allocated)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Strangers at the socket are turned away and counted, and the ranks meet.
func TestStrangers(t *testing.T) {
	defer goleak.VerifyNone(t)
	memfd, err := unix.MemfdCreate("stranger", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memfd)
	var conns []*net.UnixConn
	es := here(t, 2, func(all [][]byte) {
		c, err := parseCard(all[0])
		if err != nil {
			t.Error(err)
			return
		}
		dial := func() *net.UnixConn {
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: "@" + c.name, Net: "unix"})
			if err != nil {
				t.Error(err)
			}
			conns = append(conns, conn)
			return conn
		}
		write := func(b []byte, fds ...int) {
			if _, _, err := dial().WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
				t.Error(err)
			}
		}
		knows := hello{secret: c.secret, rank: 1, size: 2, arena: 1 << 30}
		guess := knows
		guess.secret[3]++
		write([]byte("GET / HTTP/1.1\r\n\r\n"))
		write(guess.put(), memfd)
		write(knows.put())               // no arena
		write(knows.put(), memfd)        // not sealed, not of that size
		write(knows.put(), memfd, memfd) // too many
		write(knows.put()[:20], memfd)   // cut short
		dial().Close()                   // says nothing and goes
		dial()                           // says nothing and stays
	})
	if got := es[0].refused.Load(); got != 8 {
		t.Errorf("%d strangers were turned away, want 8", got)
	}
	for _, c := range conns {
		c.Close()
	}
	p, err := es[0].Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	q, err := es[1].Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Send(1, 0, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := q.Recv(0, 0, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		e.Close()
	}
}

func init() {
	// Says the hello of rank 1 to rank 0, whose card it is given, and ends.
	bodies["hello and end"] = func(c *conform.Child) error {
		b, err := c.Hear()
		if err != nil {
			return err
		}
		to, err := parseCard(b)
		if err != nil {
			return err
		}
		a, err := newArena(1<<30, headerSize(2))
		if err != nil {
			return err
		}
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: "@" + to.name, Net: "unix"})
		if err != nil {
			return err
		}
		h := hello{secret: to.secret, rank: 1, size: 2, arena: 1 << 30}
		_, _, err = conn.WriteMsgUnix(h.put(), unix.UnixRights(int(a.file.Fd())), nil)
		return err
	}
}

// A rank whose process ended after it had said its hello is named by the error;
// it is not waited for.
func TestRankEndsAtTheMeeting(t *testing.T) {
	defer goleak.VerifyNone(t)
	before := descriptors(t)
	child := conform.Spawn(t, 1, "hello and end")
	_, err := Open(context.Background(), Config{Rank: 0, Size: 2, Arena: 1 << 30,
		Gather: func(_ context.Context, mine []byte) ([][]byte, error) {
			if err := child.Say(0, mine); err != nil {
				return nil, err
			}
			if err := child.Wait(); err != nil {
				return nil, err
			}
			c, l, err := newCard(1, 2)
			if err != nil {
				return nil, err
			}
			l.Close()
			return [][]byte{mine, c.put()}, nil
		}})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rank 0 meets rank 1: process %d: no such process", child.Pid(0))) {
		t.Errorf("got %v, want that the process of rank 1 has ended", err)
	}
	if now := descriptors(t); now > before+2 { // the child's hub and leash stay until the test ends
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

// A rank that does not come is named by the error, and nothing is left open.
func TestRankDoesNotCome(t *testing.T) {
	defer goleak.VerifyNone(t)
	before := descriptors(t)
	for missing := range 3 {
		gs := gathers(3, nil)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for r := range 3 {
			wg.Go(func() {
				if r == missing {
					c, l, err := newCard(r, 3)
					if err != nil {
						t.Error(err)
						return
					}
					defer l.Close()
					if _, err := gs[r](ctx, c.put()); err != nil {
						t.Error(err)
					}
					for range map[int]int{0: 2}[r] { // the others dial the first rank
						conn, err := l.Accept()
						if err != nil {
							t.Error(err)
							return
						}
						defer conn.Close()
					}
					cancel()
					return
				}
				e, err := Open(ctx, Config{Rank: r, Size: 3, Gather: gs[r], Arena: 1 << 30})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("rank %d opened with %v, %v", r, e, err)
				}
			})
		}
		wg.Wait()
		cancel()
	}
	if now := descriptors(t); now > before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

func TestWrongConfig(t *testing.T) {
	good := gathers(1, nil)[0]
	other := func(change func(c *card)) transport.Gather {
		return func(_ context.Context, mine []byte) ([][]byte, error) {
			c, err := parseCard(mine)
			if err != nil {
				return nil, err
			}
			change(&c)
			return [][]byte{c.put()}, nil
		}
	}
	for _, c := range []struct {
		name string
		Config
		want string
	}{
		{"rank too high", Config{Rank: 1, Size: 1, Gather: good}, "ranks are 0 to size-1"},
		{"no gather", Config{Size: 1}, "no Gather"},
		{"other host", Config{Size: 1, Gather: other(func(c *card) { c.host = "moon" })}, "moon"},
		{"other size", Config{Size: 1, Gather: other(func(c *card) { c.size = 7 })}, "rank 0 of 7"},
		{"too few cards", Config{Size: 1, Gather: func(context.Context, []byte) ([][]byte, error) { return nil, nil }}, "0 cards"},
		{"garbage", Config{Size: 1, Gather: func(context.Context, []byte) ([][]byte, error) { return [][]byte{{9}}, nil }}, "card of rank 0"},
	} {
		if e, err := Open(context.Background(), c.Config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", c.name, e, err)
		}
	}
}

func FuzzCard(f *testing.F) {
	good := card{rank: 3, size: 4, host: "host", name: "weft-x"}
	f.Add(good.put())
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0})
	f.Add(append(good.put(), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCard(b)
		if err != nil {
			return
		}
		if got := string(c.put()); got != string(b) {
			t.Errorf("%q became %q", b, got)
		}
	})
}

func FuzzHello(f *testing.F) {
	good := hello{rank: 3, size: 4, arena: 1 << 30, word: 5, value: 6}
	f.Add(good.put())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			return
		}
		if got := string(h.put()); got != string(b) {
			t.Errorf("%q became %q", b, got)
		}
	})
}
