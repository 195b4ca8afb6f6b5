//go:build linux

package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/match"
	"github.com/weft-fabric/weft/run/transport/wait"
	"github.com/weft-fabric/weft/run/transport/wire"
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
	end := time.Now().Add(time.Minute)
	return func() error {
		if time.Now().After(end) {
			return errors.New("nothing happened for a minute")
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
				p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
				if err != nil {
					return err
				}
				defer p.Close()
				peer := 1 - rank
				sizes := []int{8, 1000, 60_000, 70_000, frame.PieceSize, 3*frame.PieceSize + 17, 5 << 20}
				for k := range rounds {
					p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: uint64(k + 1)}, patience())
					n := sizes[k%len(sizes)]
					out, in, want := make([]byte, n), make([]byte, n), make([]byte, n)
					fillRandom(out, uint64(2*k+rank))
					fillRandom(want, uint64(2*k+peer))
					if k%3 == 0 {
						p.Expect(peer, 0, in)
					}
					if k%5 == 2 && rank == 0 {
						// In the middle of what this round sends.
						ss := e.wire.Link(1).Streams()
						if len(ss) > 1 {
							_ = unix.Shutdown(ss[k%len(ss)].FD(), unix.SHUT_RDWR)
						}
					}
					if k%3 == 1 {
						at := 0
						err = p.Exchange(transport.Outgoing{To: peer, Bytes: out},
							transport.Incoming{From: peer, N: n, Take: func(b []byte) { at += copy(in[at:], b) }}, nil)
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
	bounded.Until(t, time.Minute, "a stream that comes back", func() bool {
		return total(es[0], "paths.dialed")+total(es[1], "paths.dialed") > 0
	})
	for _, e := range es {
		if err := e.Alive(1 - e.Rank()); err != nil {
			t.Error(err)
		}
	}
}

// pair is two ranks with two streams and a port each.
func pair(t *testing.T) (es []*Endpoint, ports [2]*port) {
	t.Helper()
	es = endpoints(t, 2, func(c *Config) { c.Streams = 2 })
	for i, e := range es {
		p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = p.(*port)
	}
	return es, ports
}

// begin begins an operation by its number.
func (p *port) begin(seq uint64) {
	p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: seq}, patience())
}

// look waits until a port is as it should be.
func (p *port) look(t *testing.T, what string, is func() bool) {
	t.Helper()
	for stop := patience(); ; wait.Yield() {
		p.mu.Lock()
		ok := is()
		p.mu.Unlock()
		if ok {
			return
		}
		if err := stop(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// awaits receives a message from rank 0, and returns once it is waited for or the
// call has failed.
func (p *port) awaits(t *testing.T, in []byte) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.Recv(0, 0, in) }()
	p.look(t, "a message is waited for", func() bool {
		ws := p.ways[0]
		return p.err.Load() != nil || len(ws) > 0 && len(ws[0].slots) > ws[0].head && ws[0].slots[ws[0].head].waited
	})
	return done
}

// TestOvertaken begins an operation when a part of the next one's message has come
// over another stream than the first one's message, which is still under way: the
// rank that sent both is not taken for one that left the first out.
func TestOvertaken(t *testing.T) {
	es, ports := pair(t)
	first, second := make([]byte, 8), make([]byte, 60_000)
	fillRandom(first, 1)
	fillRandom(second, 2)
	ss, let := es[0].wire.Link(1).Streams(), [2]func(){}
	for i, b := range [][]byte{first, second} {
		let[i] = ss[i].HoldWrites()
		defer let[i]()
		es[0].wire.Link(1).Prefer(ss[i])
		ports[0].begin(uint64(i + 1))
		if err := ports[0].Send(1, 0, b); err != nil {
			t.Fatal(err)
		}
		if n := ss[i].Queued(); n != 1 {
			t.Fatalf("%d messages in stream %d, want 1", n, i)
		}
	}
	// The header of the second, and half of it.
	if err := ss[1].Halve(); err != nil {
		t.Fatal(err)
	}
	p := ports[1]
	p.look(t, "the second message", func() bool { return len(p.ahead) == 1 && len(p.ahead[0].slots) == 1 && p.ahead[0].slots[0].busy > 0 })
	p.begin(1)
	in := make([]byte, len(first))
	done := p.awaits(t, in)
	let[0]()
	if err := <-done; err != nil || !bytes.Equal(in, first) {
		t.Fatalf("first message: %v, %x", err, in)
	}
	let[1]()
	p.begin(2)
	in = make([]byte, len(second))
	if err := p.Recv(0, 0, in); err != nil || !bytes.Equal(in, second) {
		t.Fatalf("second message: %v", err)
	}
}

// TestComesAgain finds the place of a piece when its operation is over, as it came
// over another stream meanwhile: the rank that sent it is not taken for one that is
// still there, but a rank that sends what never came is.
func TestComesAgain(t *testing.T) {
	es, ports := pair(t)
	out, in := make([]byte, 8), make([]byte, 8)
	send := func(seq uint64) {
		t.Helper()
		fillRandom(out, seq)
		ports[0].begin(seq)
		if err := ports[0].Send(1, 0, out); err != nil {
			t.Fatal(err)
		}
	}
	p := ports[1]
	send(1)
	p.begin(1)
	if err := p.Recv(0, 0, in); err != nil {
		t.Fatal(err)
	}
	call := p.Enc
	p.begin(2)
	done := p.awaits(t, in)
	came := es[1].wire.Link(0).Came()
	find := func(piece uint64) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if x, _ := p.find(0, &call, &frame.Header{Kind: frame.Data, Length: 8, Total: 8, Piece: piece}); x != nil {
			t.Errorf("piece %d of operation 1 has a place in operation 2", piece)
		}
		if f := p.err.Load(); f != nil {
			return f.err
		}
		return nil
	}
	if err := find(came); err != nil {
		t.Errorf("a piece that comes again: %v", err)
	}
	send(2)
	if err := <-done; err != nil || !bytes.Equal(in, out) {
		t.Errorf("operation 2: %v, %x", err, in)
	}
	p.begin(3)
	done = p.awaits(t, in)
	if m, ok := errors.AsType[*transport.Mismatch](find(came + 2)); !ok || m.Peer != 0 || m.Theirs.Seq != 1 {
		t.Errorf("a piece that never came: %v", m)
	}
	if err := <-done; err == nil {
		t.Error("operation 3 goes on")
	}
}

// The memory of a message whose sender is gone is its receiver's again only when nobody can write there any more, also not
// somebody who had begun to read a stream before it was lost.
func TestMemoryOfALostStream(t *testing.T) {
	es, ports := pair(t)
	in := make([]byte, 1<<20)
	p, pr := ports[1], es[1].wire.Link(0)
	p.begin(1)
	done := p.awaits(t, in)
	s := pr.Streams()[0]
	let := s.HoldReads() // somebody reads
	p.mu.Lock()
	x := p.ways[0][0].slots[p.ways[0][0].head]
	x.busy++
	x.direct = append(x.direct, 0)
	p.mu.Unlock()
	s.Within(x, frame.Header{Kind: frame.Data, Length: len(in), Total: uint64(len(in)), Piece: 1}, in)
	go s.Fail(io.EOF)
	until := patience()
	for len(pr.Streams()) > 1 {
		if err := until(); err != nil {
			t.Fatal(err)
		}
		wait.Yield()
	}
	pr.Vanish("it is gone, as this test says")
	select {
	case err := <-done:
		t.Errorf("the message ended while a stream was read into its memory: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	let()
	if g, ok := errors.AsType[*transport.Gone](<-done); !ok {
		t.Error(g)
	}
}

// A rank that waits elsewhere lets in what others send: their long messages end though nobody receives them yet, announced or not.
func TestServe(t *testing.T) {
	es := endpoints(t, 2, func(c *Config) { c.Streams = 2 })
	var p [2]transport.Port
	for r, e := range es {
		var err error
		if p[r], err = e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}}); err != nil {
			t.Fatal(err)
		}
		p[r].Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, patience())
	}
	src, got := make([]byte, 4*wire.KeepSize), make([]byte, 8*wire.KeepSize)
	fillRandom(src, 1)
	p[1].Expect(0, 0, got[:len(src)])
	sent := make(chan error, 1)
	go func() {
		err := p[0].Send(1, 0, src)
		if err == nil {
			err = p[0].Send(1, 0, src)
		}
		sent <- err
	}()
	var err error
	for on := true; on; {
		select {
		case err = <-sent:
			on = false
		default:
			if !p[1].(transport.Server).Serve() {
				wait.Yield()
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := p[1].Recv(0, 0, got[i*len(src):][:len(src)]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got[:len(src)], src) || !bytes.Equal(got[len(src):], src) {
		t.Error("what was let in is not what was sent")
	}
}

// Messages of a rank that is ahead are kept in the order of their calls, however they come, and a call takes only its own.
func TestRankThatIsAhead(t *testing.T) {
	_, ports := pair(t)
	const calls = 40 // as many as are taken though nobody waits for them
	for seq := uint64(1); seq <= calls; seq++ {
		ports[0].begin(seq)
		if err := ports[0].Send(1, 0, []byte{byte(seq), byte(seq >> 8)}); err != nil {
			t.Fatal(err)
		}
	}
	p := ports[1]
	p.look(t, "all messages", func() bool { return len(p.early) == calls })
	p.mu.Lock()
	came := slices.Clone(p.ahead[0].slots)
	p.ahead[0].slots = p.ahead[0].slots[:0]
	for i := range came { // the second of every pair first
		p.keep(came[i^1])
	}
	kept := p.ahead[0].slots
	if !slices.Equal(kept, came) {
		t.Error("messages are not kept in the order of their calls")
	}
	p.mu.Unlock()
	for seq := uint64(1); seq <= calls; seq++ {
		p.begin(seq)
		p.mu.Lock()
		stray, _ := p.Strayed(0)
		left, early, next := len(p.ahead[0].slots), len(p.early), match.Seq(&stray.Call)
		p.mu.Unlock()
		if want := int(calls - seq); left != want || early != want || want > 0 && next != seq+1 {
			t.Fatalf("call %d: %d and %d messages are kept, want %d; the next is of call %d", seq, left, early, want, next)
		}
		in := make([]byte, 2)
		if err := p.Recv(0, 0, in); err != nil || in[0] != byte(seq) || in[1] != byte(seq>>8) {
			t.Fatalf("call %d: %v, %x", seq, err, in)
		}
	}
}
