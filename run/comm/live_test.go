package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/comm/internal/flight"
)

// Calls in phases over hosts have a prediction, which is that of the phases that were chosen: it grows with the size, and is
// the one that the choice was made by where the size is a whole class.
func TestPredictionsOverHosts(t *testing.T) {
	for _, hosts := range bounded.First(2, "aabb", "aaabb", "abab", "aabbcc") {
		list := startProcs(t, len(hosts), "mixed", "predicted", "hosts="+hosts)
		list.await("done")
		list.finish()
	}
}

func init() { bodies["predicted"] = func(k *kid) error { return k.once(predictsPhases(k.c)) } }

func predictsPhases(c *Comm) error {
	ctx := context.Background()
	for _, op := range []string{"all-reduce", "barrier", "broadcast", "all-gather", "reduce-scatter", "all-to-all", "gather"} {
		last := int64(0)
		for _, bytes := range []int{0, 1 << 10, 3 << 10, 1 << 20, 3 << 19, 1 << 21} {
			ops := []flight.Took{{Op: op, Bytes: bytes}}
			if c.predict(ops); ops[0].Predicted <= 0 || ops[0].Predicted < last && bytes > 1<<10 {
				return fmt.Errorf("%s of %d bytes: %d ns predicted, %d ns for less", op, bytes, ops[0].Predicted, last)
			}
			last = ops[0].Predicted
		}
	}
	if err := AllReduce(ctx, c, make([]float32, 1<<18), Sum); err != nil {
		return err
	}
	ops := []flight.Took{{Op: "all-reduce", Bytes: 1 << 20}}
	c.predict(ops)
	want, l := unit.Time(0), c.cur.prepared.levels
	switch {
	case l != nil:
		want = l.predicted
	case c.levels.local > 0 && c.levels.places == nil: // elsewhere one program of all ranks may be faster, if the links are slow
		return errors.New("no phases")
	default:
		whole, err := c.levels.whole.Pick(sched.AllReduce, 0, 1<<20, false)
		if err != nil {
			return err
		}
		want = whole.Predicted
	}
	if int64(want/unit.Nanosecond) != ops[0].Predicted {
		return fmt.Errorf("%d ns predicted, chosen by %s: %+v", ops[0].Predicted, want, l)
	}
	return nil
}

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
