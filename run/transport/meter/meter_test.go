package meter

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// What a rank of another process sends is counted here.
func TestCountsOtherProcesses(t *testing.T) {
	if n, err := strconv.Atoi(os.Getenv("WEFT_TEST_SENDS")); err == nil {
		for range n {
			Sent(1000)
			Came(2000)
		}
		return
	}
	read := Open()
	if read == nil {
		t.Skip("no shared memory of processes here")
	}
	sent, came := read()
	cmd := bounded.Command(t, os.Args[0], "-test.run=^TestCountsOtherProcesses$")
	cmd.Env = append(os.Environ(), "WEFT_TEST_SENDS=50")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Fatalf("%v\n%s", err, out)
	}
	sent2, came2 := read()
	if sent2-sent < 50_000 || came2-came < 100_000 { // other ranks of this user may send, too
		t.Errorf("%d and %d bytes were counted, want 50000 and 100000 at least", sent2-sent, came2-came)
	}
}

// A rank looks for the count now and then, not for every piece.
func TestLooksSeldom(t *testing.T) {
	if got := testing.AllocsPerRun(1000, func() { Sent(1) }); got > 0 {
		t.Errorf("%g allocations for each piece", got)
	}
}
