//go:build linux

package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/transport/tcp/internal/rails"
)

// A rank on a busy host may take long to answer one that dials it. That is a time limit that passed, after which it is dialed again,
// and not an error that ends the ranks.
func TestBusyPeerIsDialedAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // nobody accepts: the system answers, the process does not
	home := netip.MustParseAddr("127.0.0.1")
	e := &Endpoint{ctx: t.Context(), rails: []rails.Rail{{Name: "lo", Addr: home, Bits: 8}}, want: []int{0, 1}}
	e.cfg.Size = 2
	e.where = [][]rails.Address{{}, {{Addr: netip.MustParseAddrPort(l.Addr().String()), Bits: 8}}}
	e.peers = []*peer{{e: e}, {e: e, rank: 1}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err = e.dialOnce(ctx, 1, lane{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a peer that does not answer: %v, want %v", err, context.DeadlineExceeded)
	}
	for _, err := range []error{err, fmt.Errorf("write: %w", unix.EPIPE), fmt.Errorf("read: %w", unix.ECONNRESET)} {
		if err := e.peers[1].unmet(err); err != nil {
			t.Errorf("it is not tried again: %v", err)
		}
	}
}
