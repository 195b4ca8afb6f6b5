package coord

import (
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

// All workers of a lost host go in one epoch, although their leases run on. Several
// observers report the same, and one that reports late, after another epoch, has
// nobody ended.
func TestALostHostGoesInOneEpoch(t *testing.T) {
	p := single(t, &Policy{Min: 30, Max: 60, Settle: 50e6, Name: "server"})
	ctx := within(t)
	c := dialTerm(t, 10*time.Minute, p.addr)
	epochs := c.WatchEpochs(ctx)
	const ranks, host = 60, 40
	var all []*Registration
	var ids []member.ID
	for i := range ranks {
		all = append(all, register(t, c, member.ID(i)))
		ids = append(ids, member.ID(i))
	}
	e := await(t, epochs, "an epoch of all", func(e Epoch) bool {
		for _, r := range all {
			if len(e.Recovering) > 0 {
				r.CaughtUp()
			}
		}
		return len(e.Recovering) == 0 && lists(ids...)(e) // else another epoch follows when all have caught up
	})
	gone := slices.Clone(e.Members[host:])
	if err := c.Lost(ctx, e.Number, gone[:3], "the host is silent"); err != nil {
		t.Fatal(err)
	}
	left := await(t, epochs, "an epoch without three", func(e Epoch) bool { return len(e.Members) == ranks-3 })
	if left.Number != e.Number+1 {
		t.Errorf("it took %d epochs; want one", left.Number-e.Number)
	}
	// The same word of another observer, and a late one about the others.
	if err := c.Lost(ctx, e.Number, e.Members, "the host is silent"); err != nil {
		t.Fatal(err)
	}
	stale := slices.Clone(gone[3:])
	for i := range stale {
		stale[i].Life++ // processes that were replaced meanwhile
	}
	if err := c.Lost(ctx, left.Number, stale, "the host is silent"); err != nil {
		t.Fatal(err)
	}
	workers, err := c.Workers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dead := 0
	for _, w := range workers {
		if w.State == Dead {
			dead++
		}
	}
	if dead > 3 || len(workers)-dead < ranks-3 {
		t.Errorf("%d workers, %d dead; late and outdated reports must end nobody", len(workers), dead)
	}
	if err := c.Lost(ctx, left.Number, gone, "the host is silent"); err != nil {
		t.Fatal(err)
	}
	last := await(t, epochs, "an epoch without the host", lists(ids[:host]...))
	if last.Number != left.Number+1 {
		t.Errorf("it took %d epochs; want one", last.Number-left.Number)
	}
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
}

// The leader's lease stays short, however long those of workers are.
func TestTheLeadersLeaseIsShort(t *testing.T) {
	for term, want := range map[time.Duration]time.Duration{TTL: TTL, OneHost: OneHost, ManyHosts: TTL, time.Minute: TTL} {
		c := Client{cfg: Config{TTL: term}}
		if got := c.leaderTerm(); got != want {
			t.Errorf("workers' leases of %v: the leader's is of %v, want %v", term, got, want)
		}
	}
}
