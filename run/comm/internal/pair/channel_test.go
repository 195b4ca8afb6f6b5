package pair

import (
	"testing"
)

// No two of a rank's sends and receives share a channel, and numbers stay small.
func TestChannelsOfPairs(t *testing.T) {
	for n := 2; n <= 40; n++ {
		for rank := range n {
			seen := map[int]bool{}
			for peer := range n {
				if peer == rank {
					continue
				}
				for _, c := range []int{channel(rank, peer, n), channel(peer, rank, n)} {
					if seen[c] || c < 0 || c >= n*12 {
						t.Fatalf("rank %d of %d: channel %d is used twice, or too large", rank, n, c)
					}
					seen[c] = true
				}
			}
		}
	}
}
