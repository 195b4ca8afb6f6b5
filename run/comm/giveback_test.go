package comm

import (
	"runtime"
	"testing"
)

// What was needed while many ranks met is the system's again; few ranks do not spend the time for it.
func TestMemoryIsGivenBackAfterMeeting(t *testing.T) {
	const ballast = 64 << 20
	var m runtime.MemStats
	spent := func() uint64 { // memory that was used and is of no use any more
		for b := make([]byte, ballast); len(b) > 0; b = b[min(4096, len(b)):] {
			b[0] = 1
		}
		runtime.ReadMemStats(&m)
		return m.HeapReleased
	}
	before := spent()
	giveBack(manyRanks)
	if runtime.ReadMemStats(&m); m.HeapReleased < before+ballast/2 {
		t.Errorf("%d bytes were the system's before, %d are after; want %d more", before, m.HeapReleased, ballast)
	}
	spent()
	forced := m.NumForcedGC
	giveBack(manyRanks - 1)
	if runtime.ReadMemStats(&m); m.NumForcedGC != forced {
		t.Errorf("%d ranks collect garbage at once", manyRanks-1)
	}
}
