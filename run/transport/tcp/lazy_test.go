//go:build linux

package tcp

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// A rank that ended before anything was sent to it is found out by a one-sided operation, which ends then.
func TestOneSidedWithARankThatWasNeverMet(t *testing.T) {
	es := endpoints(t, 2, func(c *Config) { c.Lazy = true })
	es[0].wire.AsBetweenHosts()
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
