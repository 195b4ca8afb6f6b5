package comm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/board"
)

// local is a world of goroutines that is closed with the test.
func local(t *testing.T, n int, cfg Config) []*Comm {
	t.Helper()
	comms, err := LocalWith(n, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range comms {
			_ = c.Close()
		}
	})
	return comms
}

// Errors of a communicator that was split off say what its ranks are called in the world; where the numbers are the same, nothing.
func TestErrorsNameWorldRanks(t *testing.T) {
	for _, x := range []struct {
		name string
		fail func(ctx context.Context, odd *Comm) error
		want []string // of the rank that is 1 of the odd ones
	}{
		{"mismatch", func(ctx context.Context, odd *Comm) error {
			return AllReduce(ctx, odd, make([]float32, 4+odd.Rank()/2), Sum)
		}, []string{"rank 1 (world rank 3): ", "; rank 2 is world rank 5"}},
		{"abort", func(ctx context.Context, odd *Comm) error {
			if odd.Rank() == 0 {
				odd.Abort(errors.New("no data"))
			}
			return AllReduce(ctx, odd, make([]float32, 4), Sum)
		}, []string{"rank 1 (world rank 3): ", "rank 0 reports: aborted: no data", "; rank 0 is world rank 1"}},
		{"time limit of a receive", func(ctx context.Context, odd *Comm) error {
			if odd.Rank() != 1 {
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			return Recv(ctx, odd, make([]float32, 1), 2)
		}, []string{"rank 1 (world rank 3): ", "; rank 2 is world rank 5"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			comms := local(t, 6, Config{Timeout: 20 * time.Second})
			texts := make([]string, 6)
			var wg sync.WaitGroup
			for r, c := range comms {
				wg.Go(func() {
					sub, err := c.Split(context.Background(), r%2, r)
					if err == nil && r%2 == 1 {
						err = x.fail(context.Background(), sub)
					}
					if err != nil {
						texts[r] = err.Error()
					}
				})
			}
			wg.Wait()
			for _, part := range x.want {
				if !strings.Contains(texts[3], part) {
					t.Errorf("no %q in %q", part, texts[3])
				}
			}
		})
	}
	comms := local(t, 2, Config{})
	comms[1].Abort(errors.New("no data"))
	if err := AllReduce(context.Background(), comms[0], make([]float32, 4), Sum); err == nil || strings.Contains(err.Error(), "world rank") {
		t.Errorf("%v", err)
	}
}

// What a rank heard of another is passed on as that one's report. Here rank 0 has told rank 2 alone.
func TestReportsAreNotChained(t *testing.T) {
	comms := local(t, 3, Config{Timeout: 20 * time.Second})
	n := &board.Notice{From: 0, Kind: uint64(Aborted), Seq: 1, Culprits: []int{0}, Text: "aborted: no data"}
	n.Leave(comms[2].group.Mine(), n.Body())
	for _, r := range []int{2, 1} {
		err := AllReduce(context.Background(), comms[r], make([]float32, 4), Sum)
		if err == nil || !strings.HasSuffix(err.Error(), ": rank 0 reports: aborted: no data") || strings.Count(err.Error(), "reports") != 1 {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// A rank that another one lost with a link is not blamed alone by ranks that it answers, nor by itself. One that has ended is.
func TestBothEndsOfALostLink(t *testing.T) {
	for _, ended := range []bool{false, true} {
		comms := local(t, 4, Config{Timeout: 20 * time.Second})
		if ended {
			_ = comms[0].Close()
		}
		n := &board.Notice{From: 3, Kind: uint64(Dead), Seq: 1, Culprits: []int{0}, Text: "rank 0 cannot be reached by rank 3", Parted: true}
		for r, c := range comms[:3] {
			if ended && r == 0 {
				continue
			}
			n.Leave(c.group.Mine(), n.Body())
			f, _ := errors.AsType[*Failure](AllReduce(context.Background(), c, make([]float32, 4), Sum))
			want := []int{0, 3}
			if ended {
				want = []int{0}
			}
			if f == nil || f.Kind != Dead || !slices.Equal(f.Culprits, want) || strings.Contains(f.Error(), "between ranks 3 and 0") == ended {
				t.Errorf("ended %v, rank %d: %+v", ended, r, f)
			}
		}
	}
}
