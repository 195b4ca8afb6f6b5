package mem

import (
	"testing"

	"github.com/weft-fabric/weft/run/transport"
)

// BenchmarkHandle says where plain memory lies, and looks at it from another rank.
func BenchmarkHandle(b *testing.B) {
	es := New(2)
	buf := make([]byte, 1<<20)
	for b.Loop() {
		h, _ := es[0].Handle(buf)
		if _, err := es[1].At(0, h, len(buf)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTurn sends eight bytes to another goroutine and back.
func BenchmarkTurn(b *testing.B) {
	es := New(2)
	var p [2]transport.Port
	for r := range p {
		p[r], _ = es[r].Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		p[r].Begin(transport.Call{Seq: 1}, nil)
	}
	var buf [2][8]byte
	done := make(chan error)
	go func() {
		for range b.N {
			if err := p[1].Recv(0, 0, buf[1][:]); err != nil {
				done <- err
				return
			}
			if err := p[1].Send(0, 0, buf[1][:]); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range b.N {
		if err := p[0].Send(1, 0, buf[0][:]); err != nil {
			b.Fatal(err)
		}
		if err := p[0].Recv(1, 0, buf[0][:]); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
