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
