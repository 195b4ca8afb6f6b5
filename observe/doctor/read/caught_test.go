package read

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Programs that catch many exceptions are read as fast as others: of the lines that follow each only those are looked at that may
// be a step. A line that is looked at is copied, so copies count them.
func TestManyCaughtExceptions(t *testing.T) {
	const raised, after = 300, 100
	lines := strings.Repeat("INFO the loader got a shard of many from the store and checked it\n", after)
	trace := "Traceback (most recent call last):\n  File \"m.py\", line 12, in push\nrequests.HTTPError: 503\n"
	text := strings.Repeat(lines+trace, raised)
	copies := testing.AllocsPerRun(1, func() {
		if err := File(&doctor.Case{}, "log", "", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	})
	if each := copies / raised; each > after/2 {
		t.Errorf("%.0f copies for each exception, which %d other lines follow", each, after)
	} else {
		t.Logf("%.0f copies for each exception", each)
	}
}

// Once enough lines of how NCCL connects are kept, further ones are passed over without being read.
func TestManyPaths(t *testing.T) {
	const line = "n1:100:200 [3] NCCL INFO Channel 07/0 : 12[4] -> 13[5] [send] via NET/IB/4/GDRDMA\n"
	copies := func(lines int) float64 {
		text := strings.Repeat(line, lines)
		return testing.AllocsPerRun(1, func() {
			if err := File(&doctor.Case{}, "log", "", strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
		})
	}
	const more = 20_000
	if each := (copies(maxPaths+more) - copies(maxPaths)) / more; each > 0.1 {
		t.Errorf("%.1f copies for each line beyond the first %d", each, maxPaths)
	}
}

// TestPathsPassedOver: only what is like the lines of which enough are kept is passed over, and who printed it is known.
func TestPathsPassedOver(t *testing.T) {
	const path = "n2:100:200 [3] NCCL INFO Channel 07/0 : 12[4] -> 13[5] via P2P/IPC"
	for line, want := range map[string]bool{
		path:                                     true,
		strings.Replace(path, "P2P", "SHM", 1):   false, // of which there were few
		strings.Replace(path, "INFO", "WARN", 1): false,
		path + "n3:1:2 [0] NCCL WARN Call to ibv_create_qp failed": false,
		"{\"log\":\"" + path + "\"}":                               false,
		"\x1b[1m" + path:                                           false,
		"n2:100:200 [3] NCCL INFO Channel 00/02 : 0 1 2 3":         false,
	} {
		s := &scan{kinds: map[string]int{"ch_p2p": maxPaths, "ch_shm": 1}, hosts: map[string]bool{}}
		if got := s.passPath([]byte(line)); got != want || s.hosts["n2"] != want {
			t.Errorf("%q: passed over is %v, want %v; hosts are %v", line, got, want, s.hosts)
		}
	}
}
