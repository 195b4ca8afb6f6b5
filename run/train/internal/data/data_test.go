package data_test

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/run/train/internal/data"
)

func TestEveryEpochReadsEverySampleOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "n")
		o := data.NewOrder(n, rapid.Uint64().Draw(t, "seed"))
		for epoch := range 3 {
			seen := make([]bool, n)
			for i := range n {
				s := o.At(uint64(epoch*n + i))
				if seen[s] {
					t.Fatalf("epoch %d reads sample %d twice", epoch, s)
				}
				seen[s] = true
			}
		}
	})
}

func TestEpochsAndSeedsDiffer(t *testing.T) {
	const n = 100
	read := func(seed uint64, epoch int) string {
		var b strings.Builder
		o := data.NewOrder(n, seed)
		for i := range n {
			b.WriteByte(byte(o.At(uint64(epoch*n + i))))
		}
		return b.String()
	}
	if read(1, 0) == read(1, 1) || read(1, 0) == read(2, 0) {
		t.Error("two epochs or two seeds have the same order")
	}
	if first, again := read(1, 1), read(1, 1); first != again {
		t.Error("an order is not the same twice")
	}
}

// Neighbours in the text are not neighbours in the order more often than by chance.
func TestOrderIsSpread(t *testing.T) {
	const n = 10_000
	o := data.NewOrder(n, 7)
	near := 0
	for i := range uint64(n - 1) {
		if d := o.At(i+1) - o.At(i); d > -100 && d < 100 {
			near++
		}
	}
	// 199 of 10,000 distances are that small: 199 pairs are expected, with a deviation of 14.
	if near < 120 || near > 280 {
		t.Errorf("%d pairs lie near one another, about 199 by chance", near)
	}
}

func TestSharesPartitionABatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch, ranks := rapid.IntRange(0, 100).Draw(t, "batch"), rapid.IntRange(1, 20).Draw(t, "ranks")
		at := 0
		for r := range ranks {
			lo, hi := data.Share(batch, r, ranks)
			if lo != at || hi-lo < batch/ranks || hi-lo > (batch+ranks-1)/ranks {
				t.Fatalf("rank %d of %d has [%d, %d) of %d, after %d", r, ranks, lo, hi, batch, at)
			}
			at = hi
		}
		if at != batch {
			t.Fatalf("%d of %d samples are read", at, batch)
		}
	})
}

func TestWindowsCoverTheText(t *testing.T) {
	text := []byte("the quick brown fox jumps")
	d, err := data.NewText(text, 4)
	if err != nil {
		t.Fatal(err)
	}
	var targets []byte
	for i := range d.Len() {
		w := d.Window(i)
		if len(w) != 5 {
			t.Fatalf("window %d has %d bytes", i, len(w))
		}
		targets = append(targets, w[1:]...)
	}
	if !bytes.Equal(targets, text[1:]) {
		t.Errorf("targets are %q", targets)
	}
	if other, _ := data.NewText(text, 5); other.Digest() == d.Digest() {
		t.Error("digest does not depend on the context")
	}
	for _, c := range []int{0, 25} {
		if _, err := data.NewText(text, c); err == nil {
			t.Errorf("context %d is taken", c)
		}
	}
}
