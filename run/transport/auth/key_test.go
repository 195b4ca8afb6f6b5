package auth

import (
	"bytes"
	"testing"
)

// TestTail makes the checksum of long bytes block by block, as both ends of a stream do, and alters it, its bytes and its frame.
func TestTail(t *testing.T) {
	for _, keyed := range []bool{true, false} {
		out, in := PlainKey(), PlainKey()
		if keyed {
			var s Secret
			copy(s[:], "only the two ends know it, nobody else")
			out, _ = s.Keys(true)
			_, in = s.Keys(false)
		}
		b := bytes.Repeat([]byte("weft"), BlockSize) // four blocks
		b = b[:len(b)-5]
		out.Next()
		in.Next()
		sum := out.Tail(out.Blocks(nil, b))
		parts := in.Blocks(in.Blocks(nil, b[:BlockSize]), b[BlockSize:])
		if in.Tail(parts) != sum {
			t.Errorf("keyed %v: block by block it is another checksum", keyed)
		}
		for _, at := range []int{0, BlockSize - 1, BlockSize, len(b) - 1} {
			c := bytes.Clone(b)
			c[at] ^= 1
			if in.Tail(in.Blocks(nil, c)) == sum {
				t.Errorf("keyed %v: byte %d was altered, and the checksum is the same", keyed, at)
			}
		}
		swapped := append(bytes.Clone(b[BlockSize:2*BlockSize]), b[:BlockSize]...)
		swapped[0] ^= 1
		swapped[BlockSize+1] ^= 1
		other := append(bytes.Clone(swapped[BlockSize:]), swapped[:BlockSize]...)
		if out.Tail(out.Blocks(nil, swapped)) == out.Tail(out.Blocks(nil, other)) {
			t.Errorf("keyed %v: blocks in another order have the same checksum", keyed)
		}
		if in.Next(); keyed && in.Tail(parts) == sum {
			t.Error("the checksum of one frame fits another")
		}
	}
}
