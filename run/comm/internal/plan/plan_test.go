package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
)

// one is a rank's call with what it is about; entries of the others are like its own.
type one struct {
	name  string
	call  Call
	enter Entry
	mode  Mode
}

// flat is a program of an operation that runs flat between ranks of a host that may pull.
func flat(op sched.Collective, ranks, in, out int) Call {
	c := Call{Op: op, Ranks: ranks, In: in, Out: out, Largest: in, Program: Program{Flat: true, InPlace: true, Exports: true},
		Host: Host{Pulls: true}}
	switch op {
	case sched.AllReduce:
		c.Reduces, c.Pushes = true, true
	case sched.ReduceScatter:
		c.Reduces = true
	case sched.Reduce:
		c.Reduces, c.Rooted = true, true
	case sched.Gather:
		c.Rooted = true
	}
	return c
}

func with(c Call, change func(*Call)) Call {
	change(&c)
	return c
}

func seen(c *Call)   { c.InSeen, c.OutSeen = true, true }
func scaled(c *Call) { c.Scaled = true }
func inPlace(c *Call) {
	c.Overlap, c.Exact = true, true
}
func full(c *Call)    { c.Full = true }
func noPulls(c *Call) { c.Pulls = false }
func helper(c *Call)  { c.Rank = 1 }

func TestEveryModeAndEntry(t *testing.T) {
	const k, m = 1 << 10, 1 << 20
	all := []one{
		{"one rank", flat(sched.AllReduce, 1, k, k), Staged, Alone},
		{"no shared memory", with(flat(sched.AllReduce, 4, k, k), func(c *Call) { c.Flat = false }), Staged, Script},
		{"all-to-all-v", with(flat(sched.AllToAll, 4, k, k), func(c *Call) { c.Unknown = true }), InSmall, Script},

		{"96 bytes to all", flat(sched.AllGather, 4, 96, 384), InEntry, Inline},
		{"96 bytes to all, one rank has more", with(flat(sched.AllGather, 4, 96, 384), func(c *Call) { c.Largest = 97 }), InEntry, Direct},
		{"scaled sums are not inline", with(flat(sched.ReduceScatter, 4, 64, 16), scaled), InEntry, Direct},
		{"blocks of different lengths are not inline", with(flat(sched.AllGather, 4, 96, 384), func(c *Call) { c.Uneven = true }),
			InEntry, Direct},
		{"barrier", with(flat(sched.Barrier, 4, 0, 0), func(c *Call) { c.Exports = false }), Nowhere, Inline},

		{"4 KiB", flat(sched.AllGather, 4, 4*k, 16*k), InSmall, Direct},
		{"4 KiB and a byte", flat(sched.AllGather, 4, 4*k+1, 16*k+4), Staged, Direct},
		{"registered", with(flat(sched.AllGather, 4, 64*k, 256*k), seen), Lent, Direct},
		{"broadcast, registered", with(flat(sched.Broadcast, 4, 64*k, 64*k), seen), Lent, Direct},
		{"broadcast, registered, no idle core", with(with(flat(sched.Broadcast, 4, 64*k, 64*k), seen), full), Staged, Direct},
		{"scatter, registered, no idle core", with(with(flat(sched.Scatter, 4, 64*k, 16*k), seen), full), Staged, Direct},
		{"larger broadcast, registered, no idle core", with(with(flat(sched.Broadcast, 4, 64*k+1, 64*k+1), seen), full), Lent, Direct},
		{"registered, in place, not proven", with(with(flat(sched.AllToAll, 4, 32*k, 32*k), seen),
			func(c *Call) { inPlace(c); c.InPlace = false }), Staged, Direct},
		{"registered, scaled", with(with(flat(sched.ReduceScatter, 4, 64*k, 16*k), seen), scaled), Staged, Direct},
		{"moves are pulled from 64 KiB", flat(sched.AllToAll, 4, 64*k, 64*k), Pulled, Direct},
		{"moves below are staged", flat(sched.AllToAll, 4, 64*k-1, 64*k-1), Staged, Direct},
		{"sums are pulled from 8 MiB", flat(sched.ReduceScatter, 4, 8*m, 2*m), Pulled, Direct},
		{"sums below are staged once", flat(sched.ReduceScatter, 4, 8*m-64, 2*m-16), Staged | Once, Direct},
		{"no pulls here", with(flat(sched.AllToAll, 4, 64*k, 64*k), noPulls), Staged, Direct},
		{"all-gather is pulled", flat(sched.AllGather, 4, 64*k, 256*k), Pulled, Direct},
		{"broadcast of more than two grows", flat(sched.Broadcast, 4, 64*k, 64*k), Staged | Growing, Direct},
		{"large, growing stages are used once", flat(sched.Broadcast, 4, 2*m, 2*m), Staged | Growing | Once, Direct},
		{"broadcast of two from 512 KiB grows", flat(sched.Broadcast, 2, 512*k, 512*k), Staged | Growing, Direct},
		{"broadcast of two below is pulled", flat(sched.Broadcast, 2, 512*k-1, 512*k-1), Pulled, Direct},
		{"growing ends at 8 MiB", flat(sched.Broadcast, 4, 8*m+1, 8*m+1), Pulled, Direct},

		{"all-reduce, registered", with(flat(sched.AllReduce, 4, k, k), seen), Lent | OutSeen, Store},
		{"all-reduce, registered, in place", with(with(flat(sched.AllReduce, 4, k, k), seen), inPlace), Lent | OutSeen | Overlaid, Store},
		{"all-reduce, plain", flat(sched.AllReduce, 4, k, k), Staged, Commit},
		{"all-reduce, only out registered", with(flat(sched.AllReduce, 4, k, k), func(c *Call) { c.OutSeen = true }), Staged | OutSeen, Commit},
		{"all-reduce, large, plain", flat(sched.AllReduce, 4, 8*m, 8*m), Pulled, Commit},
		{"all-reduce of two, plain", flat(sched.AllReduce, 2, m, m), Staged, Commit},
		{"all-reduce of two, by pieces", flat(sched.AllReduce, 2, 5*m/4, 5*m/4), InSlots, Pieces},
		{"all-reduce of two, by pieces, in place", with(flat(sched.AllReduce, 2, 2*m, 2*m), inPlace), InSlots | Overlaid, Pieces},
		{"all-reduce of two, shifted", with(flat(sched.AllReduce, 2, 2*m, 2*m), func(c *Call) { c.Overlap = true }), Staged | Overlaid, Commit},
		{"all-reduce of two, scaled", with(flat(sched.AllReduce, 2, 2*m, 2*m), scaled), Staged, Commit},
		{"all-reduce of two, 16 MiB", flat(sched.AllReduce, 2, 16*m, 16*m), InSlots, Pieces},

		{"gather, registered, root", with(flat(sched.Gather, 4, 16*k, 64*k), seen), Lent | OutSeen, Share},
		{"gather, registered, helper", with(with(flat(sched.Gather, 4, 16*k, 64*k), seen), helper), Lent, Share},
		{"gather, small", with(flat(sched.Gather, 4, k, 4*k), seen), InSmall, Direct},
		{"gather, plain, grows", flat(sched.Gather, 4, 512*k, 2*m), Staged | Growing, Direct},
		{"gather, plain, no idle core", with(flat(sched.Gather, 4, 512*k, 2*m), full), Pulled, Direct},
		{"reduce, registered, root", with(flat(sched.Reduce, 4, 16*k, 16*k), seen), Lent | OutSeen, Share},
		{"reduce, registered, root in place", with(with(flat(sched.Reduce, 4, 16*k, 16*k), seen), inPlace), Lent | OutSeen | Overlaid, Share},
		{"reduce, registered, crowded", with(with(flat(sched.Reduce, 4, 16*k, 16*k), seen), func(c *Call) { c.Crowded = true }), Lent, Direct},
		{"reduce, below 16 KiB", with(flat(sched.Reduce, 4, 16*k-4, 16*k-4), seen), Lent, Direct},
		{"reduce, plain, root pools", flat(sched.Reduce, 4, 8*m+4, 8*m+4), Pulled | Pooled, Pool},
		{"reduce, only in registered, root pools", with(flat(sched.Reduce, 4, 8*m+4, 8*m+4), func(c *Call) { c.InSeen = true }),
			Lent | Pooled, Pool},
		{"reduce, plain, no pulls", with(flat(sched.Reduce, 4, 8*m+4, 8*m+4), noPulls), Staged | Once, Direct},
		{"reduce, scaled", with(with(flat(sched.Reduce, 4, 16*m, 16*m), seen), scaled), Staged | Once, Direct},
	}
	met := map[Mode]bool{}
	for _, x := range all {
		t.Run(x.name, func(t *testing.T) {
			c := x.call
			mine := Enter(&c)
			if mine != x.enter {
				t.Errorf("enters as %#x, want %#x", mine, x.enter)
			}
			mode := Start(&c)
			if mode == Direct {
				root := mine
				if c.Rooted && c.Rank != c.Root {
					boss := c
					boss.Rank = c.Root
					root = Enter(&boss)
				}
				var entries Entries
				entries.Add(mine, true)
				for range c.Ranks - 1 {
					entries.Add(mine, false)
				}
				mode = Settle(&c, mine, root, &entries)
			}
			if mode != x.mode {
				t.Errorf("runs %s, want %s", mode, x.mode)
			}
			met[mode] = true
		})
	}
	for m := Alone; m <= Script; m++ {
		if !met[m] {
			t.Errorf("no case runs %s", m)
		}
		if m.String() == "" {
			t.Errorf("mode %d has no name", m)
		}
	}
}

// Ranks decide alone, each from its own call and from the entries that it reads. They must fit together, whatever memory
// each of them has.
func TestRanksAgree(t *testing.T) {
	ops := []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce, sched.AllToAll,
		sched.Gather, sched.Scatter}
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 13))
		n := 2 + r.IntN(4)
		size := 1 << r.IntN(25)
		base := flat(ops[r.IntN(len(ops))], n, size, size)
		base.Root, base.Full, base.Pulls = r.IntN(n), r.IntN(2) == 0, r.IntN(2) == 0
		base.Crowded = base.Full && r.IntN(2) == 0
		base.Scaled = base.Reduces && r.IntN(8) == 0
		if Start(&base) != Direct {
			continue
		}
		calls, entries := make([]Call, n), make([]Entry, n)
		for i := range calls {
			calls[i] = base
			calls[i].Rank = i
			calls[i].InSeen, calls[i].OutSeen, calls[i].Overlap = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(3) == 0
			calls[i].Exact = r.IntN(2) == 0
			entries[i] = Enter(&calls[i])
		}
		modes := make([]Mode, n)
		for i := range calls {
			var all Entries
			for j, e := range entries {
				all.Add(e, i == j)
			}
			modes[i] = Settle(&calls[i], entries[i], entries[base.Root], &all)
		}
		if err := fits(base, entries, modes); err != nil {
			t.Fatalf("seed %d: %s of %d bytes at root %d, entries %#x, modes %v: %v", seed, base.Op, size, base.Root, entries, modes, err)
		}
	}
}

// fits says what is wrong if ranks run modes that do not go together.
func fits(c Call, entries []Entry, modes []Mode) error {
	root := modes[c.Root]
	for i, m := range modes {
		switch {
		case c.Op == sched.Gather && root == Share: // each rank whose block the root can see moves it, the others leave it to the root
			if want := entries[i].Input() == Lent; i != c.Root && (m == Share) != want {
				return fmt.Errorf("rank %d runs %s, its input is given as %#x", i, m, entries[i].Input())
			}
		case m != root:
			return fmt.Errorf("rank %d runs %s, the root %s", i, m, root)
		case m == Store && (entries[i].Input() != Lent || entries[i]&OutSeen == 0):
			return fmt.Errorf("rank %d stores, but its memory is not seen", i)
		case m == Pieces && entries[i].Input() != InSlots:
			return fmt.Errorf("rank %d has no slots", i)
		}
	}
	return nil
}
