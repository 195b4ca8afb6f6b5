package conform

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// fill writes the message of a number: no two messages agree in more than a few
// bytes, at no offset.
func fill(b []byte, number uint64) {
	x := number*0x9e3779b97f4a7c15 + 1
	for len(b) >= 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(b, x^x>>29)
		b = b[8:]
	}
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
}

// message is the message of a number.
func message(n int, number uint64) []byte {
	b := make([]byte, n)
	fill(b, number)
	return b
}

// same says where b differs from the message of a number.
func same(b []byte, number uint64) error {
	want, b := message(len(b), number), bytes.Clone(b) // a copy is something the race detector sees
	if bytes.Equal(b, want) {
		return nil
	}
	for i := range b {
		if b[i] != want[i] {
			return fmt.Errorf("message %#x of %d bytes: byte %d is %#x, want %#x", number, len(b), i, b[i], want[i])
		}
	}
	return nil
}

// number names the k-th message of a way.
func number(from, to, channel, k int) uint64 {
	return uint64(from)<<48 | uint64(to)<<32 | uint64(channel)<<24 | uint64(k)
}
