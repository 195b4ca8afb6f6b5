package blob

import (
	"bytes"
	"io"
	"testing"

	"pgregory.net/rapid"
)

func TestReaderAtIsTheConcatenation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 9)).Draw(t, "data")
		all := bytes.Join(data, nil)
		r := newReaderAt(data)
		off := rapid.IntRange(0, len(all)+2).Draw(t, "off")
		n := rapid.IntRange(0, len(all)+2).Draw(t, "n")
		p := make([]byte, n)
		got, err := r.ReadAt(p, int64(off))
		want := all[min(off, len(all)):min(off+n, len(all))]
		if !bytes.Equal(p[:got], want) || (err != nil) != (len(want) < n) || err != nil && err != io.EOF {
			t.Fatalf("%d bytes at %d: %v, %v; want %v", n, off, p[:got], err, want)
		}
		if s := r.slice(int64(off), int64(n)); s != nil && !bytes.Equal(s, all[off:off+n]) {
			t.Fatalf("slice of %d bytes at %d: %v, want %v", n, off, s, all[off:off+n])
		}
	})
}
