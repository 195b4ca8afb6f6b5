package mem

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

// pair makes two ranks with a port.
func pair(t *testing.T) (es []*Endpoint, p [2]transport.Port) {
	es = New(2)
	for r, e := range es {
		var err error
		if p[r], err = e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
	}
	return es, p
}

func counter(e *Endpoint, name string) uint64 {
	for _, c := range e.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 1<<64 - 1
}

// A port whose calls move on to another epoch drops what is left of the one
// before, whether it is received or served while sending.
func TestEpochMovesOn(t *testing.T) {
	for _, announce := range []bool{false, true} {
		es, p := pair(t)
		begin := func(epoch uint32) {
			for r := range p {
				p[r].Begin(transport.Call{Epoch: epoch, Comm: 1, Seq: 1}, nil)
			}
		}
		begin(1)
		for _, n := range []int{10, 10000, 0} {
			if err := p[0].Send(1, 0, make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		begin(2)
		err := conform.Together(2, func(r int) error {
			got := make([]byte, 20)
			if announce {
				p[r].Expect(1-r, 0, got)
			}
			if err := p[r].Send(1-r, 0, []byte(fmt.Sprintf("new message from %3d", r))); err != nil {
				return err
			}
			if err := p[r].Send(1-r, 1, make([]byte, 50000)); err != nil {
				return err
			}
			if err := p[r].Recv(1-r, 1, make([]byte, 50000)); err != nil {
				return err
			}
			if err := p[r].Recv(1-r, 0, got); err != nil {
				return err
			}
			if want := fmt.Sprintf("new message from %3d", 1-r); string(got) != want {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := counter(es[1], "messages_dropped"); got != 3 {
			t.Errorf("%d messages were dropped, want 3", got)
		}
		if got := counter(es[0], "messages_sent"); got != 5 {
			t.Errorf("%d messages were sent, want 5", got)
		}
		if got := counter(es[1], "bytes_received"); got != 50020 {
			t.Errorf("%d bytes were received, want 50020", got)
		}
	}
}

// A rank that has gone on by many calls is still named with the number of the
// call that its message was of.
func TestMismatchOfLongAgo(t *testing.T) {
	_, p := pair(t)
	for seq := uint64(65530); seq < 65550; seq++ {
		p[0].Begin(transport.Call{Epoch: 1, Comm: 1, Seq: seq, Signature: transport.Signature{7}}, nil)
		if err := p[0].Send(1, int(seq-65530), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []uint64{65530, 65537} {
		mine := transport.Call{Epoch: 1, Comm: 1, Seq: seq + 2, Signature: transport.Signature{8}}
		p[1].Begin(mine, nil)
		err := p[1].Recv(0, int(seq-65530), nil)
		var m *transport.Mismatch
		if !errors.As(err, &m) || m.Theirs.Seq != seq || m.Theirs.Comm != 1 || m.Mine != mine {
			t.Errorf("a message of call %d gave %v", seq, err)
		}
	}
}

func TestWrongUse(t *testing.T) {
	es, p := pair(t)
	b, other := make([]byte, 8), make([]byte, 8)
	for r := range p {
		p[r].Begin(transport.Call{Seq: 1}, nil)
	}
	for _, c := range []struct {
		want string
		try  func() error
	}{
		{"ranks are 0 to 1", func() error { return p[0].Send(2, 0, b) }},
		{"ranks are 0 to 1", func() error { return p[0].Recv(-1, 0, b) }},
		{"ranks are 0 to 1", func() error { return p[0].Take(5, 0, 8, nil) }},
		{"channels are 0 to 65535", func() error { return p[0].Send(1, 1<<24, b) }},
		{"channels are 0 to 65535", func() error { return p[0].Recv(1, -1, b) }},
		{"memory that was announced", func() error { p[0].Expect(1, 1, b); return p[0].Recv(1, 1, other) }},
		{"has to be received", func() error { p[0].Expect(1, 2, b); return p[0].Take(1, 2, 8, nil) }},
		{"not among the members", func() error { _, err := es[0].Port(transport.Group{ID: 2, Epoch: 1, Members: []int{1}}); return err }},
		{"is there twice", func() error { _, err := es[0].Port(transport.Group{ID: 2, Epoch: 1, Members: []int{0, 0}}); return err }},
		{"is there twice or is not", func() error { _, err := es[0].Port(transport.Group{ID: 2, Epoch: 1, Members: []int{0, 2}}); return err }},
	} {
		if err := c.try(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
	if _, ok := p[0].Last(7); ok {
		t.Error("a rank that is not there was seen")
	}
	if err := es[0].Pull(1, 0, b); !errors.Is(err, transport.ErrNoPull) || es[0].Pulls() {
		t.Errorf("pull: %v", err)
	}
	if es[0].Can().Name != "mem" {
		t.Error(es[0].Can().Name)
	}
}

// Words of eight bytes are read as one.
func TestReadWord(t *testing.T) {
	es, _ := pair(t)
	b, err := es[1].Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	copy(b, "0123456789abcdef")
	k, err := es[1].Key(b)
	if err != nil {
		t.Fatal(err)
	}
	for off := range 3 {
		dst := make([]byte, 8)
		ticket, err := es[0].Read(1, dst, k+transport.Key(4*off))
		if err != nil || string(dst) != "0123456789abcdef"[4*off:4*off+8] {
			t.Errorf("read %q at %d: %v", dst, 4*off, err)
		}
		if done := es[0].Poll(nil); !slices.Equal(done, []transport.Completion{{Ticket: ticket, Peer: 1}}) {
			t.Errorf("completed %v, want ticket %d", done, ticket)
		}
	}
}

// A rank may send to itself.
func TestToItself(t *testing.T) {
	_, p := pair(t)
	p[0].Begin(transport.Call{Seq: 1}, nil)
	for _, n := range []int{0, 100, 5000, 1 << 20} {
		out, in := make([]byte, n), make([]byte, n)
		for i := range out {
			out[i] = byte(i * 7)
		}
		if err := p[0].Send(0, 0, out); err != nil {
			t.Fatal(err)
		}
		if err := p[0].Recv(0, 0, in); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(in, out) {
			t.Errorf("%d bytes came back changed", n)
		}
	}
}

// Waits for a message, for its receiver and for room do something else meanwhile: here, what they wait for.
func TestMeanwhile(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("two ranks on one core have nothing else to do")
	}
	const long = 1 << 20
	for _, x := range []struct {
		name     string
		announce bool
		waits    func(p transport.Port) error
		meets    func(p transport.Port) error
	}{
		{"receive", false, func(p transport.Port) error { return p.Recv(1, 0, make([]byte, 8)) },
			func(p transport.Port) error { return p.Send(0, 0, make([]byte, 8)) }},
		{"send", false, func(p transport.Port) error { return p.Send(1, 0, make([]byte, long)) },
			func(p transport.Port) error { return p.Recv(0, 0, make([]byte, long)) }},
		{"announced", true, func(p transport.Port) error { return p.Send(1, 0, make([]byte, long)) },
			func(p transport.Port) error { return p.Recv(0, 0, make([]byte, long)) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, p := pair(t)
			met := false
			p[0].(transport.Idler).Meanwhile(func() bool {
				if met {
					return false
				}
				met = true
				if err := x.meets(p[1]); err != nil {
					t.Error(err)
				}
				return true
			})
			for r := range p {
				p[r].Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, func() error { return errors.New("nothing was done meanwhile") })
			}
			if x.announce {
				p[0].Expect(1, 0, make([]byte, 8))
			}
			if err := x.waits(p[0]); err != nil || !met {
				t.Errorf("%v, done meanwhile: %t", err, met)
			}
		})
	}
}
