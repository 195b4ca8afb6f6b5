package coord

import "testing"

// An accusation by a member of an epoch counts as long as no other has followed:
// who was cut off and is back must not have those ended who went on.
func TestAccuse(t *testing.T) {
	p := single(t, &Policy{Min: 1, Max: 8, Settle: 50e6, Name: "server"})
	ctx := within(t)
	c := dial(t, p.addr)
	epochs := c.WatchEpochs(ctx)
	a, b := register(t, c, 0), register(t, c, 1)
	a.CaughtUp()
	b.CaughtUp()
	first := await(t, epochs, "an epoch", func(Epoch) bool { return true })
	e := first
	if len(e.Members) < 2 { // the second came late
		e = await(t, epochs, "both", lists(0, 1))
	}
	if err := c.Accuse(ctx, e.Number, 1, b.Worker().Life, "does not answer"); err != nil {
		t.Fatal(err)
	}
	alone := await(t, epochs, "the one that is left", lists(0))
	if alone.Reason != "worker 1 died: does not answer" {
		t.Errorf("%q", alone.Reason)
	}
	// The one that was left out accuses in turn, too late.
	if err := c.Accuse(ctx, e.Number, 0, a.Worker().Life, "does not answer"); err != nil {
		t.Fatal(err)
	}
	list, err := c.Workers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list {
		if w.ID == 0 && w.State == Dead {
			t.Errorf("%+v", w)
		}
	}
	if err := a.Err(); err != nil {
		t.Error(err)
	}
}
