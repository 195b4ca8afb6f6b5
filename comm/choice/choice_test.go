package choice

import (
	"os"
	"testing"
	"time"

	"github.com/weft-fabric/weft/tune"
)

func tcpLinks(ranks int) tune.Links {
	return tune.Links{Kind: "tcp", Ranks: ranks, Cores: 2, Sync: 20, Paces: []tune.Pace{{320 << 10, 4.3e-6}, {1 << 20, 13e-6}, {8 << 20, 16.6e-6}, {64 << 20, 25e-6}, {256 << 20, 42e-6}},
		Near: tune.Link{Alpha: 3, Post: 2, Beta: 1.5e-4}, Far: tune.Link{Alpha: 20, Post: 3, Beta: 2e-4, Wire: 8e-4}}
}

func TestTmp(t *testing.T) {
	for _, n := range []int{2, 8, 64} {
		tab := New(tcpLinks(n), "tcp", n, nil)
		start := time.Now()
		tab.Explain(os.Stdout)
		t.Log(n, time.Since(start))
	}
	hosts := []int{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}
	New(tcpLinks(12), "tcp", 12, hosts).Explain(os.Stdout)
	New(tcpLinks(4), "shm", 4, nil).Explain(os.Stdout)
}
