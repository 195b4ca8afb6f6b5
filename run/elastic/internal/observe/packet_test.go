package observe

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/run/internal/member"
)

func sampleMessage() member.Message {
	return member.Message{Verb: member.Rumour, From: 7, Life: 7, EpochNumber: 9,
		Words: []member.Word{{ID: 3, State: member.Failed, Incarnation: 2}}}
}

func TestADatagramIsForOneReceiverUnderOneSecret(t *testing.T) {
	s := newSealer("secret")
	msg := sampleMessage()
	b := s.seal(nil, 12, 5, &msg)
	n, got, err := s.open(12, b)
	if err != nil || n != 5 || got.From != 7 || len(got.Words) != 1 || got.Words[0] != msg.Words[0] {
		t.Fatalf("number %d, message %+v, %v", n, got, err)
	}
	if _, _, err := s.open(13, b); err != errForged {
		t.Errorf("sent on to another receiver: %v", err)
	}
	if _, _, err := newSealer("other").open(12, b); err != errForged {
		t.Errorf("under another secret: %v", err)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1 << (i % 8)
		if _, _, err := s.open(12, bad); err != errForged {
			t.Errorf("byte %d damaged: %v", i, err)
		}
		if _, _, err := s.open(12, b[:i]); err != errForged {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
	if _, _, err := s.open(12, append(bytes.Clone(b), make([]byte, maxPacket)...)); err != errForged {
		t.Errorf("too long: %v", err)
	}
}

// The window against a plain set: a number is taken once, unless it is 64 or more
// behind the highest.
func TestTheWindowTakesEachNumberOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		var w window
		seen, top := map[uint64]bool{}, uint64(0)
		at := uint64(1)
		for range 500 {
			at += uint64(r.IntN(4))
			if r.IntN(50) == 0 {
				at += uint64(r.IntN(200))
			}
			n := at - min(at, uint64(r.IntN(90)))
			want := n > 0 && !seen[n] && (n > top || top-n < 64)
			if got := w.take(n); got != want {
				t.Fatalf("number %d after the highest %d: taken %v, want %v", n, top, got, want)
			}
			if want {
				seen[n], top = true, max(top, n)
			}
		}
	}
}

// Whatever comes, opening it neither fails nor takes what was not sealed.
func FuzzOpen(f *testing.F) {
	s := newSealer("secret")
	msg := sampleMessage()
	good := s.seal(nil, 12, 5, &msg)
	f.Add(good)
	f.Add(good[:headSize+macSize])
	f.Add([]byte{magic, version})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := s.open(12, b); err == nil && !bytes.Equal(b, good) {
			t.Fatalf("%x was taken", b)
		}
		// The same bytes as the inside of a genuine datagram: a member of the job that
		// sends nonsense.
		p := append([]byte{magic, version, 0, 0, 0, 0, 0, 0, 0, 1}, b...)
		p = append(p, s.sign(12, p)...)
		if _, m, err := s.open(12, p); err == nil {
			if again := m.Append(nil); len(again) > len(b)+64 {
				t.Fatalf("%x grew to %d bytes", b, len(again))
			}
		} else if err != errGarbled && len(p) <= maxPacket {
			t.Fatalf("%x: %v", b, err)
		}
	})
}
