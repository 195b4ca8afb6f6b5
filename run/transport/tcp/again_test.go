//go:build linux

package tcp

import (
	"bytes"
	"testing"

	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// A piece comes again over a second stream while the first, which broke, still reads it into the receiver's memory, with bytes that
// were altered. The message is complete only when the first has let go, and has the bytes of the second.
func TestPieceComesAgainWhileItIsRead(t *testing.T) {
	e := unopened(t, 1)
	p := &port{e: e, expects: make([]int, 1)}
	dst := make([]byte, 8)
	x := &slot{port: p, asked: true, known: true, total: 8, dst: dst, busy: 2, direct: []int{0}}
	h := &frame.Header{Piece: 1, Length: 8}
	good := buffer.Part(8)
	copy(good, "original")
	copy(dst, "alt")
	if whole := x.Arrived(h, wire.Part, good); !whole || x.done.Load() {
		t.Fatalf("whole %v, done %v while a stream reads into the memory", whole, x.done.Load())
	}
	copy(dst[3:], "tered")
	x.Let(h, wire.Direct, nil, 0)
	if !x.done.Load() || !bytes.Equal(dst, []byte("original")) {
		t.Errorf("done %v with %q", x.done.Load(), dst)
	}
}

// A message came over two streams before it was asked for, and was taken while one of them still read it: its slot serves no other message
// before that stream has let go, which would take it for unread.
func TestSlotIsReadWhenItsMessageIsTaken(t *testing.T) {
	e := unopened(t, 1)
	p := &port{e: e, expects: make([]int, 1)}
	x := &slot{port: p, known: true, total: 8, busy: 2}
	h := &frame.Header{Piece: 1, Length: 8}
	x.Arrived(h, wire.Part, buffer.Part(8))
	if !x.done.Load() {
		t.Fatal("the message is not complete")
	}
	p.retire(x)
	next := p.slot()
	x.Let(h, wire.Part, buffer.Part(8), 0)
	if next.busy != 0 {
		t.Errorf("%d streams read the next message", next.busy)
	}
}
