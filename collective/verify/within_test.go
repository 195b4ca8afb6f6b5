package verify_test

import (
	"context"
	"errors"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// ending is a context that ends when it was asked for the nth time.
type ending struct {
	context.Context
	left int
}

func (e *ending) Err() error {
	if e.left--; e.left < 0 {
		return context.Canceled
	}
	return nil
}

// A proof ends wherever its context does: in the rotation, in the unrolled run, and in the clocks that order channels.
func TestWithin(t *testing.T) {
	for _, c := range []struct {
		name   string
		ranks  int
		method string
	}{{"ring", 16, "unrolled"}, {"ring", 2048, "rotation"}, {"double-binary-tree", 48, "unrolled"}} {
		a, err := algo.Find(c.name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: c.ranks})
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		for ; ; asked++ {
			rep, err := verify.Within(&ending{context.Background(), asked}, p)
			if err == nil {
				if rep.Method != c.method {
					t.Errorf("%s on %d ranks is proven by %s", c.name, c.ranks, rep.Method)
				}
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: after %d looks at the context: %v", c.name, asked, err)
			}
		}
		if asked < 2 {
			t.Errorf("%s on %d ranks: the context was looked at %d times", c.name, c.ranks, asked)
		}
	}
}
