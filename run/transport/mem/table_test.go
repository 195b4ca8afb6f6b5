package mem

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/run/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var global [100]byte

// All memory has a handle while its owner holds it, wherever it lies.
func TestHandlesOfPlainMemory(t *testing.T) {
	es := New(2)
	for name, b := range map[string][]byte{"heap": make([]byte, 1000), "tiny": make([]byte, 3), "global": global[10:90]} {
		h, ok := es[0].Handle(b)
		if !ok {
			t.Fatalf("%s: no handle", name)
		}
		got, err := es[1].At(0, h+1, len(b)-1)
		if err != nil || unsafe.SliceData(got) != &b[1] || len(got) != len(b)-1 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if _, err := es[1].At(0, h+1, len(b)); err == nil {
			t.Errorf("%s: more than there is", name)
		}
		if _, err := es[0].At(1, h, 1); err == nil {
			t.Errorf("%s: the other rank has it, too", name)
		}
		runtime.KeepAlive(b)
	}
	if _, ok := es[0].Handle(nil); ok {
		t.Error("nothing has a handle")
	}
}

// The table keeps no memory alive, and says so when a handle is used too late.
func TestHandlesEnd(t *testing.T) {
	es := New(1)
	big := make([]byte, 1<<20)
	h, _ := es[0].Handle(big)
	big = nil
	_ = big
	runtime.GC()
	runtime.GC()
	if _, err := es[0].At(0, h, 1); err == nil || !strings.Contains(err.Error(), "released") {
		t.Errorf("memory that nobody holds: %v", err)
	}
	b := make([]byte, 10)
	first, _ := es[0].Handle(b)
	for range lentSize {
		es[0].Handle(b)
	}
	if _, err := es[0].At(0, first, 1); err == nil || !strings.Contains(err.Error(), "since") {
		t.Errorf("an old handle: %v", err)
	}
	runtime.KeepAlive(b)
}

// Memory got from Alloc, and every part of it, is found, and nothing else.
func TestPins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := New(1)[0]
		var live [][]byte
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				b, err := e.Alloc(rapid.IntRange(0, 500).Draw(t, "n"))
				if err != nil {
					t.Fatal(err)
				}
				live = append(live, b)
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
				b := live[i]
				live = append(live[:i], live[i+1:]...)
				if err := e.Free(b); err != nil {
					t.Fatal(err)
				}
				if err := e.Free(b); err == nil {
					t.Fatal("freed twice")
				}
			},
			"": func(t *rapid.T) {
				for _, b := range live {
					i := rapid.IntRange(0, len(b)).Draw(t, "from")
					k, err := e.Key(b[i:])
					if err != nil {
						t.Fatal(err)
					}
					if i == len(b) {
						continue
					}
					got, err := e.At(0, transport.Handle(k), len(b)-i)
					if err != nil || &got[0] != &b[i] {
						t.Fatalf("byte %d of %d: %v", i, len(b), err)
					}
				}
				if _, err := e.Key(make([]byte, 8)); err == nil {
					t.Fatal("plain memory has a key")
				}
			},
		})
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A rank that is killed is gone for the others, and its own waits end.
func TestKill(t *testing.T) {
	es := New(3)
	p, err := es[0].Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	q, err := es[1].Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	asleep := make(chan struct{}, 1000)
	p.Begin(transport.Call{Seq: 1}, nil)
	q.Begin(transport.Call{Seq: 1}, func() error { asleep <- struct{}{}; return nil })
	ended := make(chan error)
	go func() { ended <- q.Recv(0, 0, make([]byte, 8)) }()
	<-asleep
	es[1].Kill()
	if err := <-ended; !errors.Is(err, transport.ErrClosed) {
		t.Errorf("the victim's wait ended with %v", err)
	}
	var gone *transport.Gone
	if err := p.Recv(1, 0, make([]byte, 8)); !errors.As(err, &gone) || *gone != (transport.Gone{Rank: 1, Why: "killed"}) {
		t.Errorf("a wait for the victim ended with %v", err)
	}
	if err := es[0].Alive(2); err != nil {
		t.Error(err)
	}
	es[2].Close()
	if err := es[0].Alive(2); !errors.As(err, &gone) || gone.Why != "left" {
		t.Error(err)
	}
	es[0].Close()
}
