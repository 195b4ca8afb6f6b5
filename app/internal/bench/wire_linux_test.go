package bench

import "testing"

// Only the ports of switches count, and what they take in.
func TestReceived(t *testing.T) {
	table := `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    1000      10    0    0    0     0          0         0     1000      10    0    0    0     0       0          0
   sw0:    2000      20    0    0    0     0          0         0     9000      20    0    0    0     0       0          0
  p0r0:     300       3    0    0    0     0          0         0     4000       4    0    0    0     0       0          0
  p1r0:      50       1    0    0    0     0          0         0     5000       5    0    0    0     0       0          0
`
	if got, err := received([]byte(table)); got != 350 || err != nil {
		t.Errorf("%d bytes, %v; want 350", got, err)
	}
	if _, err := received([]byte("p0r0: many\n")); err == nil {
		t.Error("a count that is not a number was accepted")
	}
}
