package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

func init() {
	bodies["grow"] = (*kid).grow
	bodies["newcomer"] = func(k *kid) error { return k.once(counts(k.c, 5)) }
	bodies["vain"] = (*kid).vain
}

// counts adds up the ranks of a communicator, which are to be as many as expected.
func counts(c *Comm, want int) error {
	sum := []int32{int32(c.Rank() + 1)}
	if err := AllReduce(context.Background(), c, sum, Sum); err != nil {
		return err
	}
	if c.Size() != want || int(sum[0]) != want*(want+1)/2 {
		return fmt.Errorf("%d ranks add up to %d; want %d ranks", c.Size(), sum[0], want)
	}
	return nil
}

// grow lets two newcomers in, and uses both communicators.
func (k *kid) grow() error {
	ctx := context.Background()
	rank := k.c.Rank()
	grown, err := k.c.Grow(ctx, Growth{Newcomers: 2, Invite: func(i Invitation) error {
		text, err := json.Marshal([][]string{i.Env(0), i.Env(1)})
		k.say(event{At: "invited", Value: text})
		return err
	}})
	if err != nil {
		return err
	}
	if grown.Rank() != rank {
		return fmt.Errorf("rank %d became rank %d", rank, grown.Rank())
	}
	err = errors.Join(counts(grown, 5), counts(k.c, 3))
	if err := k.once(err); err != nil {
		return err
	}
	return grown.Close()
}

// vain grows in vain and goes on as before.
func (k *kid) vain() error {
	if err := Barrier(context.Background(), k.c); err != nil { // so that nobody's time begins much earlier
		return err
	}
	limit := 2 * time.Second
	if k.c.Rank() > 0 {
		limit = 50 * time.Second // rank 0 tells the others who is missing
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if _, err := k.c.Grow(ctx, Growth{Newcomers: 2}); err == nil || !strings.Contains(err.Error(), "3, 4") {
		return fmt.Errorf("nobody came, and Grow says %w", err)
	}
	refuses := Growth{Newcomers: 1,
		Invite: func(Invitation) error { return errors.New("no machine is free: " + strings.Repeat("\x01 busy", 1000)) }}
	if _, err := k.c.Grow(context.Background(), refuses); err == nil || !strings.Contains(err.Error(), "no machine is free") {
		return fmt.Errorf("nobody could be invited, and Grow says %w", err)
	}
	return k.once(counts(k.c, 3))
}

// Newcomers join a living communicator: members keep their ranks, and the old communicator goes on beside the new one.
func TestGrow(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		list := startProcs(t, 3, transport, "grow")
		var envs [][]string
		if err := json.Unmarshal(list[0].await("invited").Value, &envs); err != nil {
			t.Fatal(err)
		}
		for i, env := range envs {
			cmd := bounded.Server(t, "/proc/self/exe")
			cmd.Env = append(append(os.Environ(), envBody+"=newcomer", "WEFT_TRANSPORT="+transport, "WEFT_TIMEOUT=30s"), env...)
			list = append(list, startProc(t, cmd, 3+i, nil))
		}
		list[3:].joined()
		list.await("done")
		list.finish()
	}
}

// If nobody comes, Grow says who is missing, and the communicator is as it was.
func TestGrowInVain(t *testing.T) {
	list := startProcs(t, 3, "shm", "vain")
	list.await("done")
	list.finish()
	each(t, 2, Config{}, func(c *Comm) error {
		if _, err := c.Grow(context.Background(), Growth{Newcomers: 1}); err == nil {
			return errors.New("goroutines grew")
		}
		return nil
	})
}
