package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
)

// Namespaces of a bench that was killed are found, and no others.
func TestOrphans(t *testing.T) {
	dir := t.TempDir()
	const gone = 1 << 30 // no process has such a number
	want := []string{fmt.Sprintf("weft%df", gone), fmt.Sprintf("weft%dh0", gone)}
	for _, name := range append(want, fmt.Sprintf("weft%dh0", os.Getpid()), "weft1f", "weftlab", "h0", fmt.Sprintf("weft%dhost", gone)) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := orphans(dir); !slices.Equal(got, want) {
		t.Errorf("orphans %q, want %q", got, want)
	}
	if got := orphans(filepath.Join(dir, "nowhere")); got != nil {
		t.Errorf("orphans %q in a folder that is not there", got)
	}
}

// A competitor that shares memory between hosts is found out by the bytes that did not pass between them.
func TestCrossing(t *testing.T) {
	for _, x := range []struct {
		op           sched.Collective
		hosts, ranks int
		want         int64
	}{
		{sched.AllReduce, 2, 8, 1000}, {sched.AllGather, 4, 8, 3000}, {sched.Broadcast, 8, 8, 7000},
		{sched.AllToAll, 2, 8, 4000}, {sched.AllToAll, 4, 4, 3000}, {sched.Barrier, 2, 2, 0},
	} {
		if got := leastCrossing(Op{Collective: x.op}, x.hosts, x.ranks, 1000); got != x.want {
			t.Errorf("%s of %d ranks on %d hosts: at least %d bytes pass, want %d", x.op, x.ranks, x.hosts, got, x.want)
		}
	}
	for wire, want := range map[float64]bool{0: true, 499: true, 500: false, 2000: false} {
		if got := (&Cell{Wire: wire}).elsewhere(1000); got != want {
			t.Errorf("%.0f bytes of 1000: another way is %t, want %t", wire, got, want)
		}
	}
	if (&Cell{}).elsewhere(0) {
		t.Error("where nothing must pass another way was taken")
	}
}
