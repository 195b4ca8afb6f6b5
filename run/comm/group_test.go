package comm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// notices is a place where ranks leave something for one another, as a store is.
type notices struct {
	mu   sync.Mutex
	cond sync.Cond
	left map[string][][]byte
}

func newNotices() *notices {
	n := &notices{left: map[string][][]byte{}}
	n.cond.L = &n.mu
	return n
}

// gather is that of a member of a group with a name.
func (n *notices) gather(name string, place, size int) func(context.Context, []byte) ([][]byte, error) {
	round := 0
	return func(_ context.Context, mine []byte) ([][]byte, error) {
		round++
		key := fmt.Sprint(name, " ", round)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.left[key] == nil {
			n.left[key] = make([][]byte, size)
		}
		n.left[key][place] = append([]byte{}, mine...)
		n.cond.Broadcast()
		for slices.ContainsFunc(n.left[key], func(b []byte) bool { return b == nil }) {
			n.cond.Wait()
		}
		return n.left[key], nil
	}
}

// Groups are made by their members alone, several at once and one of another, and each sums what its members have.
func TestGroupIsMadeByItsMembers(t *testing.T) {
	ctx := context.Background()
	store := newNotices()
	each(t, 4, quick, func(c *Comm) error {
		for round := range 5 {
			for i, ranks := range [][]int{{1, 2}, {3, 0}, {2, 3, 0}, {1}, {0, 1, 2, 3}} {
				place := slices.Index(ranks, c.Rank())
				if place < 0 {
					continue
				}
				g, err := c.Group(ctx, ranks, store.gather(fmt.Sprint(round, i), place, len(ranks)))
				if err != nil {
					return err
				}
				if g.Rank() != place || g.Size() != len(ranks) {
					return fmt.Errorf("group %v: rank %d of %d for rank %d", ranks, g.Rank(), g.Size(), c.Rank())
				}
				x, want := []int64{int64(c.Rank() + 1)}, int64(0)
				for _, r := range ranks {
					want += int64(r + 1)
				}
				if err := AllReduce(ctx, g, x, Sum); err != nil {
					return err
				}
				if x[0] != want {
					return fmt.Errorf("group %v: the sum is %d, want %d", ranks, x[0], want)
				}
				if err := g.Close(); err != nil {
					return err
				}
			}
		}
		return Barrier(ctx, c)
	})
}

func TestGroupRefuses(t *testing.T) {
	each(t, 2, quick, func(c *Comm) error {
		for _, x := range []struct {
			ranks []int
			want  string
		}{{[]int{0, 7}, "7"}, {[]int{0, 1, 0}, "named twice"}, {[]int{1 - c.Rank()}, "in which it is not"}} {
			_, err := c.Group(context.Background(), x.ranks, nil)
			if err == nil || !strings.Contains(err.Error(), x.want) {
				return fmt.Errorf("a group of %v: %v, want %q", x.ranks, err, x.want)
			}
		}
		// Members that do not hear of one another make none, and the communicator stays good.
		_, err := c.Group(context.Background(), []int{0, 1},
			func(context.Context, []byte) ([][]byte, error) { return nil, fmt.Errorf("no store") })
		if err == nil || !strings.Contains(err.Error(), "no store") {
			return fmt.Errorf("without a store: %v", err)
		}
		return Barrier(context.Background(), c)
	})
}

// Ranks that meet with different lists of members all get an error that has both.
func TestGroupOfDifferentLists(t *testing.T) {
	ctx := context.Background()
	store := newNotices()
	each(t, 3, quick, func(c *Comm) error {
		lists := [][]int{{0, 2}, {0, 1}, {2, 1}}
		for k, pair := range [][2]int{{0, 1}, {0, 2}} {
			place := slices.Index(pair[:], c.Rank())
			if place < 0 {
				continue
			}
			g, err := c.Group(ctx, lists[c.Rank()], store.gather(fmt.Sprint("different ", k), place, 2))
			if g != nil || err == nil {
				return fmt.Errorf("rank %d: a group was made", c.Rank())
			}
			for _, r := range pair {
				if want := fmt.Sprint(lists[r]); !strings.Contains(err.Error(), want) {
					return fmt.Errorf("rank %d: %s is not in: %w", c.Rank(), want, err)
				}
			}
		}
		return Barrier(ctx, c)
	})
}
