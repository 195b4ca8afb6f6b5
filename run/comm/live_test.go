package comm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// A process with a watch directory tells how far its communicators are, of operations
// since it last told, and stops telling when they are closed.
func TestLive(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	each(t, 3, Config{WatchDir: dir}, func(c *Comm) error {
		data := make([]float32, 64)
		for range 100 {
			if err := AllReduce(ctx, c, data, Sum); err != nil {
				return err
			}
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		living.mu.Lock()
		after := living.comms[c][0]
		living.mu.Unlock()
		l := c.Flight().Live(after, 16)
		if l.In || l.Done < 101 || after == 0 && len(l.Ops) != 16 {
			return fmt.Errorf("rank %d: %+v", c.Rank(), l)
		}
		for _, o := range l.Ops {
			if o.Took < 0 || o.Op == "" {
				return fmt.Errorf("operation %+v", o)
			}
		}
		return nil
	})
	living.mu.Lock()
	n, running := len(living.comms), living.stop != nil
	living.mu.Unlock()
	if n != 0 || running {
		t.Errorf("%d communicators still tell; the teller runs: %v", n, running)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// What is written is JSON with the members of every communicator.
	c, err := LocalWith(2, Config{WatchDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(liveState())
	var s struct{ Groups []struct{ Ranks []int } }
	if err != nil || json.Unmarshal(b, &s) != nil || len(s.Groups) == 0 || len(s.Groups[0].Ranks) != 2 {
		t.Errorf("%s %v", b, err)
	}
	for _, x := range c {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}
