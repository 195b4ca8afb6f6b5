//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

// limited is a Stop that ends a wait which should have ended long before.
func limited() transport.Stop {
	end := time.Now().Add(30 * time.Second)
	return func() error {
		if time.Now().After(end) {
			return errors.New("nothing happened for 30 s")
		}
		return nil
	}
}

func opened(c *conform.Child, transports string) (*Endpoint, transport.Port, error) {
	e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather, Transports: strings.Split(transports, ",")})
	if err != nil {
		return nil, nil, err
	}
	all := make([]int, c.Size)
	for r := range all {
		all[r] = r
	}
	p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: all})
	if err != nil {
		return nil, nil, err
	}
	p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, limited())
	return e, p, nil
}

func init() {
	// killed: rank 1 is killed while rank 0 waits for it, in the way that the arguments say. Ranks 0 and 2 go on.
	bodies["killed"] = func(c *conform.Child) error {
		e, p, err := opened(c, c.Args[0])
		if err != nil {
			return err
		}
		if c.Rank == 1 {
			if err := c.Say([]byte("ready")); err != nil {
				return err
			}
			time.Sleep(time.Hour) // until it is killed
		}
		if c.Rank == 0 {
			switch b := make([]byte, 8<<20); c.Args[1] {
			case "receive":
				err = p.Recv(1, 0, b)
			case "send":
				for err == nil { // until it is full
					err = p.Send(1, 0, b)
				}
			case "exchange":
				err = p.Exchange(transport.Outgoing{To: 1, Bytes: b}, transport.Incoming{From: 1, N: len(b), Dst: make([]byte, len(b))}, nil)
			case "notify":
				var done []transport.Completion
				for stop := limited(); err == nil; {
					if _, err = e.Verbs().Notify(1, 7); err == nil {
						err = stop()
					}
					for _, d := range e.Verbs().Poll(done[:0]) {
						if d.Err != nil {
							err = d.Err
						}
					}
				}
			}
			var g *transport.Gone
			if !errors.As(err, &g) || g.Rank != 1 || g.Left || g.Why == "" {
				return fmt.Errorf("got %v, want that rank 1 is gone, and why", err)
			}
		}
		// The others go on.
		peer := 2 - c.Rank
		b := make([]byte, 1<<20)
		if err := p.Exchange(transport.Outgoing{To: peer, Channel: 1, Bytes: make([]byte, 1<<20)},
			transport.Incoming{From: peer, Channel: 1, N: len(b), Dst: b}, nil); err != nil {
			return fmt.Errorf("with rank %d, which is alive: %w", peer, err)
		}
		return e.Close()
	}

	// register: rank 0 writes to memory that rank 1 registered, and reads it back.
	bodies["register"] = func(c *conform.Child) error {
		e, p, err := opened(c, "posix,cma")
		if err != nil {
			return err
		}
		const n = 100000
		var x [8]byte
		if c.Rank == 1 {
			m := mapped(n)
			defer m.free()
			k, err := e.Register(m.at(), n, HostMemory)
			if err != nil {
				return err
			}
			binary.LittleEndian.PutUint64(x[:], uint64(k))
			if err := p.Send(0, 0, x[:]); err != nil {
				return err
			}
			if err := p.Recv(0, 0, nil); err != nil {
				return err
			}
			if m.b[5] != 7 || m.b[n-1] != 7 {
				return fmt.Errorf("what was written is not there")
			}
			if _, err := e.Register(0, n, CUDAMemory); err == nil {
				return fmt.Errorf("memory at 0 was registered")
			}
			if err := e.Unregister(m.at()); err != nil {
				return err
			}
			return e.Close()
		}
		if err := p.Recv(1, 0, x[:]); err != nil {
			return err
		}
		k := transport.Key(binary.LittleEndian.Uint64(x[:]))
		b := bytes.Repeat([]byte{7}, n)
		complete := func(t transport.Ticket, err error) error {
			for stop := limited(); err == nil; err = stop() {
				for _, d := range e.Verbs().Poll(nil) {
					if d.Ticket == t {
						return d.Err
					}
				}
			}
			return err
		}
		if err := complete(e.Verbs().Write(1, k, b)); err != nil {
			return err
		}
		if err := complete(e.Verbs().Notify(1, 1)); err != nil { // after what was written
			return err
		}
		clear(b)
		if err := complete(e.Verbs().Read(1, b, k)); err != nil {
			return err
		}
		if b[0] != 7 || b[n-1] != 7 {
			return fmt.Errorf("what was written is not read")
		}
		if err := p.Send(1, 0, nil); err != nil {
			return err
		}
		return e.Close()
	}

	// asleep: rank 0 waits for rank 1, which sends after a while, and says how much processor time that took.
	bodies["asleep"] = func(c *conform.Child) error {
		_, p, err := opened(c, c.Args[0])
		if err != nil {
			return err
		}
		if c.Rank == 1 {
			time.Sleep(400 * time.Millisecond) // what it is: a peer that is busy elsewhere
			return p.Send(0, 0, []byte("here"))
		}
		before, began := used(), time.Now()
		b := make([]byte, 4)
		if err := p.Recv(1, 0, b); err != nil {
			return err
		}
		if took, waited := used()-before, time.Since(began); took > max(200*time.Millisecond, waited/2) {
			return fmt.Errorf("a wait of %s used %s of a processor", waited, took)
		}
		return nil
	}
}

// Memory of a program that it registers itself is written and read by a peer.
func TestRegister(t *testing.T) {
	need(t)
	c := conform.Spawn(t, 2, "register")
	for range 2 {
		if err := c.Gather(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
}

// used is the processor time of this process.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A process that is killed is noticed by those that wait for it, whatever they do, and the others go on.
func TestKilled(t *testing.T) {
	need(t)
	for _, how := range ways {
		for _, what := range []string{"receive", "send", "exchange", "notify"} {
			if how != "posix,cma" && what != "receive" && os.Getenv("WEFT_TEST_LONG") == "" {
				continue
			}
			t.Run(how+"/"+what, func(t *testing.T) {
				c := conform.Spawn(t, 3, "killed", how, what)
				for range 2 {
					if err := c.Gather(); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := c.Hear(1); err != nil {
					t.Fatal(err)
				}
				c.Kill(1)
				if err := c.Wait(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// A rank that waits for long sleeps: more ranks than cores may wait.
func TestWaitsAsleep(t *testing.T) {
	need(t)
	for _, how := range []string{"posix", "tcp"} {
		t.Run(how, func(t *testing.T) {
			c := conform.Spawn(t, 2, "asleep", how)
			for range 2 {
				if err := c.Gather(); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Wait(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
