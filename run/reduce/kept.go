package reduce

import "fmt"

// ApplyKept computes dst = dst op src as Apply does, and stores what dst was in kept,
// past the caches: for copies that nobody is likely to read. All have one length and
// are apart. In sums whose vectors are added by one instruction it is one pass: two
// ranks that send one another 1 MiB to be summed in place take 0.95 of the time of
// copies and sums by turns, 16 KiB each (2026-11-15).
func ApplyKept(t Type, op Op, dst, src, kept []byte) {
	if len(src) != len(dst) || len(kept) != len(dst) {
		panic(fmt.Errorf("reduce: %d bytes, %d to keep them and %d to reduce them with; all must be equal", len(dst), len(kept), len(src)))
	}
	check(t, op, len(dst))
	at := 0
	if op.pairwise() == Sum {
		at = sumKept(t, dst, src, kept)
	}
	for at < len(dst) {
		end := min(at+keptBlock, len(dst))
		CopyAway(kept[at:end], dst[at:end])
		Apply(t, op, dst[at:end], dst[at:end], src[at:end])
		at = end
	}
}

// keptBlock is what is kept at a time before it is reduced: few enough to stay near.
const keptBlock = 64 << 10
