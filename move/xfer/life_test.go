package xfer

import (
	"errors"
	"testing"
	"time"
)

// The clock of a host is set back by an hour while its worker starts anew: nobody takes the new life for an earlier one. What was
// stopped and wakes up later stays out.
func TestClockSetBack(t *testing.T) {
	for _, path := range []string{"process", "unix", "tcp"} {
		t.Run(path, func(t *testing.T) {
			ctx := limit(t)
			of := func(generation uint64) func(*Config) {
				return func(c *Config) { c.Path, c.Generation = path, generation }
			}
			const noon, hour = uint64(1) << 60, uint64(3600e9)
			a := start(t, "a", of(noon))
			host(t, a, "room", 1000, false, 1)
			both := func(w *Agent) error {
				mine := host(t, w, "mine", 1000, false, 2)
				p, err := a.Open(w.Describe())
				if err != nil {
					return err
				}
				back, err := w.Open(a.Describe())
				if err != nil {
					return err
				}
				for _, m := range []struct {
					from *Agent
					own  *Region
					far  *Remote
					peer *Peer
				}{{w, mine, remote(t, back, "room"), back}, {a, a.names["room"], remote(t, p, "mine"), p}} {
					q, err := m.from.Post(Transfer{Op: Read, Local: prepare(t, m.from, nil, m.own.At(0, 1000)),
						Remote: prepare(t, m.from, m.peer, m.far.At(0, 1000))})
					if err == nil {
						err = q.Wait(ctx)
					}
					if err != nil {
						return err
					}
				}
				return nil
			}
			first := start(t, "worker", of(noon))
			if err := both(first); err != nil {
				t.Fatal(err)
			}
			if path != "process" { // which asks nobody
				zombie := start(t, "worker", of(noon-2*hour))
				if err := both(zombie); !errors.Is(err, ErrStale) {
					t.Errorf("an earlier one while the later one is there: %v", err)
				}
				zombie.Close()
			}
			first.Close()
			second := start(t, "worker", of(noon-hour))
			if err := both(second); err != nil {
				t.Fatalf("after the clock was set back: %v", err)
			}
			if path != "process" {
				woken := start(t, "worker", of(noon))
				if err := both(woken); !errors.Is(err, ErrStale) {
					t.Errorf("the first one, which another has taken the place of: %v", err)
				}
			}
		})
	}
}

func TestGenerations(t *testing.T) {
	now := time.Now().Add(time.Hour)
	last := nextGeneration(now)
	for range 1000 {
		now = now.Add(-time.Minute)
		g := nextGeneration(now)
		if g <= last {
			t.Fatalf("generation %x after %x", g, last)
		}
		last = g
	}
}
