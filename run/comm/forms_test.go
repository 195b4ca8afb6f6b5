package comm

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// One rank of many finds the form of a program, whichever comes first, and the others read it.
func TestOneRankFindsTheFormForAll(t *testing.T) {
	const n = 32
	var found [3]atomic.Int32
	counts := [3]int{2, 2, 1 << 14} // two programs
	each(t, n, Config{}, func(c *Comm) error {
		for round, count := range counts {
			b := make([]int32, count)
			for i := range b {
				b[i] = int32(c.Rank() + i)
			}
			if err := AllReduce(context.Background(), c, b, Sum); err != nil {
				return err
			}
			for i, v := range b {
				if want := int32(n*(n-1)/2 + n*i); v != want {
					t.Errorf("rank %d: element %d is %d, want %d", c.Rank(), i, v, want)
					break
				}
			}
			found[round].Add(int32(len(c.library.tables)))
		}
		return nil
	})
	for round, want := range []int32{1, 1, 2} {
		if got := found[round].Load(); got != want {
			t.Errorf("after an all-reduce of %d elements %d forms were found, want %d", counts[round], got, want)
		}
	}
}

// Nobody waits for a form whose finder has gone, or for a call that has ended.
func TestNobodyWaitsForAFinderThatLeft(t *testing.T) {
	began := time.Now()
	cs, err := Local(3)
	if err != nil {
		t.Fatal(err)
	}
	line, mine := cs[2].group.Boards[0].FormOf(7, 2)
	if !mine {
		t.Fatal("a form is taken that nobody has asked for")
	}
	if again, mine := cs[1].group.Boards[0].FormOf(7, 1); mine || again.Finder() != 2 {
		t.Errorf("rank %d finds a form, want 2", again.Finder())
	}
	line.GiveUp() // as a finder does that has no memory for the table
	if _, _, ok := line.Where(); ok || !line.GivenUp() {
		t.Error("a form that its finder gave up is there")
	}
	line.Found(1<<40, 64) // memory that cannot be mapped, as that of a rank that died
	if f, err := cs[1].library.readForm(2, 1<<40, 64); err == nil {
		t.Errorf("memory that is not there holds %v", f)
	}
	line, _ = cs[2].group.Boards[0].FormOf(9, 2)
	ended, end := context.WithCancel(context.Background())
	end()
	cs[1].library.ctx = ended
	if _, _, ok := cs[1].library.awaitForm(line); ok || time.Since(began) > formWait {
		t.Error("a call that has ended waits for a form")
	}
	cs[1].library.ctx = nil
	line, _ = cs[2].group.Boards[0].FormOf(8, 2)
	if err := cs[2].Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := cs[1].library.awaitForm(line); ok {
		t.Error("a form came from a rank that has gone")
	}
	for _, c := range cs[:2] {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
