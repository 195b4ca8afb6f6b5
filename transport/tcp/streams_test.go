package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/transport"
)

func total(e *Endpoint, name string) uint64 {
	for _, c := range e.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

func patience() transport.Stop {
	end := time.Now().Add(20 * time.Second)
	return func() error {
		if time.Now().After(end) {
			return errors.New("nothing happened for 20 s")
		}
		return nil
	}
}

func fillRandom(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// TestStreamsBreak breaks streams in mid-transfer, one after another, while two
// ranks exchange messages of many sizes in every way: all arrive, whole and in
// order, and streams come back.
func TestStreamsBreak(t *testing.T) {
	es := endpoints(t, 2, func(c *Config) { c.Streams = 3 })
	const rounds = 60
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for rank, e := range es {
		wg.Go(func() {
			errs[rank] = func() error {
				p, err := e.Port(1, 1, []int{0, 1})
				if err != nil {
					return err
				}
				defer p.Close()
				peer := 1 - rank
				sizes := []int{8, 1000, 60_000, 70_000, pieceSize, 3*pieceSize + 17, 5 << 20}
				for k := range rounds {
					p.Begin(&transport.Call{Epoch: 1, Comm: 1, Seq: uint64(k + 1), Root: -1}, patience())
					n := sizes[k%len(sizes)]
					out, in, want := make([]byte, n), make([]byte, n), make([]byte, n)
					fillRandom(out, uint64(2*k+rank))
					fillRandom(want, uint64(2*k+peer))
					if k%3 == 0 {
						p.Expect(peer, 0, in)
					}
					if k%5 == 2 && rank == 0 {
						// In the middle of what this round sends.
						ss := e.peers[1].all()
						if len(ss) > 1 {
							_ = unix.Shutdown(ss[k%len(ss)].fd, unix.SHUT_RDWR)
						}
					}
					if k%3 == 1 {
						at := 0
						err = p.(*port).Swap(peer, 0, out, peer, transport.Incoming{N: n, Take: func(b []byte) { at += copy(in[at:], b) }})
					} else if err = p.Send(peer, 0, out); err == nil {
						err = p.Recv(peer, 0, in)
					}
					if err != nil {
						return fmt.Errorf("round %d: %w", k, err)
					}
					if !bytes.Equal(in, want) {
						return fmt.Errorf("round %d: %d bytes differ", k, n)
					}
				}
				return nil
			}()
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := total(es[0], "paths.lost"); n < 5 {
		t.Errorf("%d paths were lost, want those that were broken", n)
	}
	for i := 0; total(es[0], "paths.dialed")+total(es[1], "paths.dialed") == 0; i++ {
		if i == 1000 {
			t.Fatal("no stream came back")
		}
		time.Sleep(5 * time.Millisecond) // between looks at a counter
	}
	for _, e := range es {
		if err := e.Alive(1 - e.Rank()); err != nil {
			t.Error(err)
		}
	}
}
