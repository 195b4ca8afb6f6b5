package measure

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/unit"
	"github.com/weft-fabric/weft/xfer"
)

// Share is how a collective fares beside bulk transfers over the same link.
type Share struct {
	Beside  string    `json:"beside"`
	Each    float64   `json:"all_reduce_s"` // the median
	Rate    unit.Rate `json:"all_reduce_rate"`
	Slower  float64   `json:"slower"` // by the time alone
	Bulk    unit.Rate `json:"bulk_rate,omitempty"`
	Limit   unit.Rate `json:"bulk_limit,omitempty"`
	Allowed bool      `json:"allowed"` // the transfers kept to their limit
}

// shared is how many all-reduces are timed for a line.
const shared = 31

// Shares runs all-reduces of two ranks over tcp: alone, beside bulk transfers without a limit, and beside ones with the limit that
// was agreed, all over this host's loopback interface.
func Shares(ctx context.Context, c Config, size int64, limit unit.Rate) ([]Share, error) {
	var out []Share
	for _, x := range []struct {
		beside string
		bulk   bool
		limit  unit.Rate
	}{{"nothing", false, 0}, {"bulk transfers without a limit", true, 0}, {fmt.Sprintf("bulk transfers of at most %v", limit), true, limit}} {
		s := Share{Beside: x.beside, Limit: x.limit, Allowed: true}
		stop := func() unit.Rate { return 0 }
		if x.bulk {
			var err error
			if stop, err = c.bulk(ctx, x.limit); err != nil {
				return out, err
			}
		}
		r, err := c.ranks(ctx, 2, "share", size, "WEFT_TRANSPORT=tcp")
		s.Bulk = stop()
		if err != nil {
			return out, fmt.Errorf("all-reduce beside %s: %w", x.beside, err)
		}
		s.Each, s.Rate = r.Each, unit.Rate(float64(size)/r.Each)
		s.Slower = 1
		if len(out) > 0 {
			s.Slower = s.Each / out[0].Each
		}
		// What is in the first slices may be ahead of the limit.
		s.Allowed = x.limit == 0 || float64(s.Bulk) <= 1.1*float64(x.limit)
		out = append(out, s)
	}
	return out, nil
}

// bulk writes into another process over tcp until stop, which gives the rate.
func (c *Config) bulk(ctx context.Context, limit unit.Rate) (stop func() unit.Rate, err error) {
	const size = 8 << 20
	a, err := xfer.New(xfer.Config{Name: "bulk", Token: c.Token, Path: "tcp", Timeout: time.Minute, Limits: xfer.Limits{xfer.Bulk: limit}})
	if err != nil {
		return nil, err
	}
	t := &transfers{agent: a}
	b, err := a.Alloc(size)
	if err == nil {
		var r *xfer.Region
		if r, err = a.Register("local", xfer.Memory(b), 0); err == nil {
			t.local, err = a.Prepare(nil, []xfer.Desc{r.At(0, size)})
		}
	}
	if err == nil {
		err = t.add(ctx, c, size)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	var moved atomic.Int64
	over := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	began := time.Now()
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			q, err := a.Post(xfer.Transfer{Op: xfer.Write, Local: t.local, Remote: t.far[0], Class: xfer.Bulk})
			if err != nil || q.Wait(ctx) != nil {
				return
			}
			moved.Add(size)
		}
	}()
	return func() unit.Rate {
		rate := unit.Rate(float64(moved.Load()) / time.Since(began).Seconds())
		cancel()
		<-over
		t.close()
		return rate
	}, nil
}
