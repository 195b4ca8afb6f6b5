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

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/wait"
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

// A rank that ended before anything was sent to it is found out by a one-sided operation, which ends then.
func TestOneSidedWithARankThatWasNeverMet(t *testing.T) {
	es := endpoints(t, 2, func(c *Config) { c.Lazy = true })
	es[0].resumes = true // as between hosts
	b, err := es[1].Verbs().Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	k, err := es[1].Verbs().Key(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := es[1].Close(); err != nil {
		t.Fatal(err)
	}
	v := es[0].Verbs()
	if _, err := v.Read(1, make([]byte, 64), k); err != nil {
		t.Fatal(err)
	}
	var done []transport.Completion
	for end := time.Now().Add(bounded.Limit / 2); len(done) == 0 && time.Now().Before(end); wait.Yield() {
		done = v.Poll(done)
	}
	if len(done) != 1 || done[0].Err == nil || es[0].Alive(1) == nil {
		t.Errorf("a read of a rank that has ended: %v, alive: %v", done, es[0].Alive(1))
	}
}
