package record

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/weft-fabric/weft/run/transport/auth"
)

// written is a connection on which everything that is written can be read.
type written struct {
	net.Conn
	bytes.Buffer
}

func (w *written) Read(b []byte) (int, error)  { return w.Buffer.Read(b) }
func (w *written) Write(b []byte) (int, error) { return w.Buffer.Write(b) }

func any(*Header) (uint32, error) { return 1 << 20, nil }

// said is what a dialer writes who sends random records, and the records.
func said(t *testing.T, r *rand.Rand, s *auth.Secret) (wire []byte, heads []Header, bodies [][]byte) {
	t.Helper()
	w := &written{}
	c := New(w, s, true, 4<<10)
	for range 4 {
		h := Header{Kind: uint8(r.Uint32()), Flags: uint8(r.Uint32()), Call: r.Uint64(), Number: r.Uint64()}
		body := make([]byte, r.IntN(40)*r.IntN(300))
		for i := range body {
			body[i] = byte(r.Uint32())
		}
		if err := errors.Join(c.Put(h, body), c.Flush()); err != nil {
			t.Fatal(err)
		}
		heads, bodies = append(heads, h), append(bodies, body)
	}
	return w.Bytes(), heads, bodies
}

// hear counts the records that come whole before an error, which must be those that were sent.
func hear(t *testing.T, wire []byte, s *auth.Secret, heads []Header, bodies [][]byte) (n int, err error) {
	t.Helper()
	c := New(&written{Buffer: *bytes.NewBuffer(bytes.Clone(wire))}, s, false, 4<<10)
	for {
		var h Header
		body, err := c.Receive(&h, any)
		if err != nil {
			return n, err
		}
		if n == len(heads) {
			t.Fatalf("record %+v was never sent", h)
		}
		want := heads[n]
		if h.Kind != want.Kind || h.Flags != want.Flags || h.Call != want.Call || h.Number != want.Number || !bytes.Equal(body, bodies[n]) {
			t.Fatalf("record %d came as %+v, want %+v", n, h, want)
		}
		n++
	}
}

// What is sent comes, once and in order. A byte that changed is an error in the record that it is in; with a secret so is a record that was
// left out, repeated, or said on another connection.
func TestRecordsComeAsTheyWereSent(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	for range 200 {
		secret, other := &auth.Secret{1, byte(r.Uint32())}, &auth.Secret{2}
		for _, s := range []*auth.Secret{nil, secret} {
			wire, heads, bodies := said(t, r, s)
			if n, err := hear(t, wire, s, heads, bodies); n != len(heads) || err != io.EOF {
				t.Fatalf("%d of %d records: %v", n, len(heads), err)
			}
			altered := bytes.Clone(wire)
			altered[r.IntN(len(wire))] ^= 1 << r.IntN(8)
			if n, err := hear(t, altered, s, heads, bodies); err == io.EOF || n == len(heads) {
				t.Fatalf("%d records after a bit changed: %v", n, err)
			}
			if s == nil {
				continue
			}
			first := Size + len(bodies[0])
			for what, b := range map[string][]byte{"left out": wire[first:], "repeated": append(bytes.Clone(wire[:first]), wire...)} {
				if _, err := hear(t, b, s, heads, bodies); !errors.Is(err, auth.ErrAltered) {
					t.Fatalf("the first record was %s: %v", what, err)
				}
			}
			if n, err := hear(t, wire, other, heads, bodies); n != 0 || !errors.Is(err, auth.ErrAltered) {
				t.Fatalf("%d records of another connection: %v", n, err)
			}
		}
	}
}

// A length costs no memory before its bytes are there, and more than is allowed is refused.
func TestLengthsAreNotTrusted(t *testing.T) {
	var b [Size]byte
	(&Header{Kind: 1, Length: 1<<32 - 1}).Put(&b, auth.PlainKey())
	many := func(*Header) (uint32, error) { return 1<<32 - 1, nil }
	took := testing.AllocsPerRun(1, func() {
		var h Header
		if _, err := New(&written{Buffer: *bytes.NewBuffer(bytes.Clone(b[:]))}, nil, false, 4<<10).Receive(&h, many); err != io.EOF {
			t.Error(err)
		}
	})
	if took > 20 {
		t.Errorf("%v allocations", took)
	}
	var h Header
	if _, err := New(&written{Buffer: *bytes.NewBuffer(b[:])}, nil, false, 4<<10).Receive(&h, any); err == nil || err == io.EOF {
		t.Errorf("4 GiB where 1 MiB is allowed: %v", err)
	}
}
