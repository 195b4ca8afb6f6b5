//go:build linux

package tcp

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/run/transport/auth"
)

// lines collects what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// A stream that ends before the others of its rank is dialed again, and comes too late: to a rank that closes, or from one that has left. The
// dialer is told, and nobody else. One that was given up is told of.
func TestLateStreamsAreNotTold(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*Endpoint)
		told bool
	}{
		{"to a rank that closes", func(e *Endpoint) { e.closed.Store(true) }, false},
		{"from a rank that has left", func(e *Endpoint) {
			e.peers[1].bye.Store(true)
			e.peers[1].vanish("it left")
		}, false},
		{"from a rank that was given up", func(e *Endpoint) { e.peers[1].vanish("it was silent") }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var told lines
			log := slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{Level: slog.LevelWarn}))
			es := endpoints(t, 2, func(c *Config) { c.Log = log })
			listens, dials := es[0], es[1] // of two ranks the second dials
			c.end(listens)
			conn, _, err := dials.dialOnce(t.Context(), listens.cfg.Rank, dials.peers[listens.cfg.Rank].attempt([2]int{}, 0))
			if conn != nil {
				conn.Close()
			}
			if _, ok := errors.AsType[*auth.Refusal](err); !ok {
				t.Fatalf("the dialer was told %v", err)
			}
			listens.closed.Store(false)
			closeAll(es) // after the listener is done with it
			if s := told.text.String(); strings.Contains(s, "turned away") != c.told {
				t.Errorf("told: %q", s)
			}
		})
	}
}
