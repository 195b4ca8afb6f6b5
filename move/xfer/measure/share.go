package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/transport/meter"
)

// Share is how a collective fares beside transfers over the same link.
type Share struct {
	Beside string    `json:"beside"`
	Class  string    `json:"class,omitempty"` // of the transfers
	Each   float64   `json:"all_reduce_s"`    // the median
	Rate   unit.Rate `json:"all_reduce_rate"`
	Slower float64   `json:"slower"`               // by the time alone
	Bulk   unit.Rate `json:"bulk_rate,omitempty"`  // of the transfers while collectives ran
	Limit  unit.Rate `json:"bulk_limit,omitempty"` // that was agreed
	Ratio  float64   `json:"ratio,omitempty"`      // bytes of the transfers by those of the collectives
	Agreed float64   `json:"agreed,omitempty"`     // what it may be by the rule; 0 where the rule is off
	Held   bool      `json:"held"`                 // the transfers kept to the rule and to their limit
}

// shared is how many all-reduces are timed for a line.
const shared = 61

// slack is by how much a figure may be over what was agreed: a slice may be ahead of what it is compared with.
const slack = 1.15

// settle is how long collectives run before it counts: transfers have sent ahead, as nobody else was there.
const settle = 300 * time.Millisecond

// Shares runs all-reduces of two ranks over tcp: alone, beside transfers of each class without the rule of classes and with it, and beside
// bulk transfers with the limit that was agreed, all over this host's loopback interface.
func Shares(ctx context.Context, c Config, size int64, limit unit.Rate, tell func(Share)) ([]Share, error) {
	type line struct {
		beside string
		class  xfer.Class
		apart  bool
		limit  unit.Rate
		agreed float64
	}
	lines := []line{{beside: "nothing"}}
	for _, c := range []xfer.Class{xfer.Latency, xfer.Bulk, xfer.Background} {
		lines = append(lines, line{fmt.Sprintf("%s, without the rule", c), c, true, 0, 0},
			line{fmt.Sprintf("%s, by the rule", c), c, false, 0, c.Share()})
	}
	lines = append(lines, line{fmt.Sprintf("bulk of at most %v", limit), xfer.Bulk, true, limit, 0})
	var out []Share
	for i, x := range lines {
		s := Share{Beside: x.beside, Limit: x.limit, Agreed: x.agreed, Slower: 1, Held: true}
		stop := func() stretch { return stretch{} }
		if i > 0 {
			s.Class = x.class.String()
			var err error
			if stop, err = c.stream(ctx, x.class, x.apart, x.limit); err != nil {
				return out, err
			}
		}
		r, err := c.ranks(ctx, 2, "share", size, "WEFT_TRANSPORT=tcp")
		moved := stop()
		if err != nil {
			return out, fmt.Errorf("all-reduce next to %s: %w", x.beside, err)
		}
		s.Each, s.Rate = r.Each, unit.Rate(float64(size)/r.Each)
		if i > 0 {
			s.Slower = s.Each / out[0].Each
			if moved.beside == 0 {
				return out, fmt.Errorf("all-reduce next to %s: they took only %.3f s together; raise --size", x.beside, r.Each*shared)
			}
			s.Bulk = unit.Rate(float64(moved.bytes) / moved.took.Seconds())
			s.Ratio = float64(moved.bytes) / float64(moved.beside)
		}
		s.Held = (x.agreed == 0 || s.Ratio <= slack*x.agreed) && (x.limit == 0 || float64(s.Bulk) <= slack*float64(x.limit))
		out = append(out, s)
		if tell != nil {
			tell(s)
		}
	}
	return out, nil
}

// stretch is what was sent while collectives ran.
type stretch struct {
	took   time.Duration
	bytes  int64  // by transfers
	beside uint64 // by collectives
}

// stream writes into another process over tcp, four requests of a slice each at a time, until stop. That says what was written while
// collectives ran.
func (c *Config) stream(ctx context.Context, class xfer.Class, apart bool, limit unit.Rate) (stop func() stretch, err error) {
	const size, deep = 1 << 20, 4
	sent := meter.Open()
	if sent == nil {
		return nil, errors.New("what collectives send cannot be counted: no shared memory between processes (/dev/shm)")
	}
	a, err := xfer.New(xfer.Config{Name: "stream", Token: c.Token, Path: "tcp", Timeout: time.Minute, Apart: apart,
		Limits: xfer.Limits{xfer.Bulk: limit}})
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
	for k := 0; err == nil && k < deep; k++ {
		err = t.add(ctx, c, size)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	var moved atomic.Int64
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, far := range t.far {
		wg.Go(func() {
			for ctx.Err() == nil {
				q, err := a.Post(xfer.Transfer{Op: xfer.Write, Local: t.local, Remote: far, Class: class})
				if err != nil || q.Wait(ctx) != nil {
					return
				}
				moved.Add(size)
			}
		})
	}
	var seen stretch
	wg.Go(func() {
		var first, began time.Time
		var from int64
		start, _ := sent()
		for last := start; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			now, _ := sent()
			if now == last {
				continue
			}
			last = now
			if first.IsZero() {
				first = time.Now()
			}
			if time.Since(first) < settle {
				continue
			}
			if began.IsZero() {
				began, from, start = time.Now(), moved.Load(), now
				continue
			}
			seen = stretch{time.Since(began), moved.Load() - from, now - start}
		}
	})
	return func() stretch {
		cancel()
		wg.Wait()
		t.close()
		return seen
	}, nil
}

// Urgent is how small requests fare beside others over the same link.
type Urgent struct {
	Class  string    `json:"class"` // of the small requests
	Beside string    `json:"beside"`
	Median float64   `json:"median_ms"`
	P95    float64   `json:"p95_ms"`
	Slower float64   `json:"slower"` // by the median alone
	Bulk   unit.Rate `json:"bulk_rate,omitempty"`
	Reduce float64   `json:"all_reduce_s,omitempty"` // the median of those that run beside
}

const (
	urgentSize  = 256 << 10
	urgentCount = 60
)

// Classes times small writes of an agent: alone, beside bulk writes of the same agent, of one class with them and of class latency, and
// beside all-reduces of two ranks, then beside both with the limit on bulk writes that was agreed.
func Classes(ctx context.Context, c Config, size int64, limit unit.Rate) ([]Urgent, error) {
	var out []Urgent
	for _, x := range []struct {
		class  xfer.Class
		beside string
		bulk   bool
		limit  unit.Rate
		reduce bool
	}{
		{xfer.Latency, "nothing", false, 0, false},
		{xfer.Bulk, "bulk writes of its own class", true, 0, false},
		{xfer.Latency, "bulk writes", true, 0, false},
		{xfer.Latency, "an all-reduce", false, 0, true},
		{xfer.Latency, "bulk writes and an all-reduce", true, 0, true},
		{xfer.Latency, fmt.Sprintf("bulk writes of at most %v and an all-reduce", limit), true, limit, true},
	} {
		u, err := c.urgent(ctx, x.class, x.bulk, x.limit, x.reduce, size)
		if err != nil {
			return out, fmt.Errorf("small writes next to %s: %w", x.beside, err)
		}
		u.Class, u.Beside, u.Slower = x.class.String(), x.beside, 1
		if len(out) > 0 {
			u.Slower = u.Median / out[0].Median
		}
		out = append(out, u)
	}
	return out, nil
}

func (c *Config) urgent(ctx context.Context, class xfer.Class, bulk bool, limit unit.Rate, reduce bool, size int64) (u Urgent, err error) {
	const large = 8 << 20
	a, err := xfer.New(xfer.Config{Name: "worker", Token: c.Token, Path: "tcp", Timeout: time.Minute, Limits: xfer.Limits{xfer.Bulk: limit}})
	if err != nil {
		return u, err
	}
	t := &transfers{agent: a}
	defer t.close()
	b, err := a.Alloc(large + urgentSize)
	if err != nil {
		return u, err
	}
	r, err := a.Register("local", xfer.Memory(b), 0)
	if err != nil {
		return u, err
	}
	if err := t.add(ctx, c, large+urgentSize); err != nil {
		return u, err
	}
	far, err := t.peerRegion(0)
	if err != nil {
		return u, err
	}
	list := func(off, n int64) (l, f *xfer.List, err error) {
		if l, err = a.Prepare(nil, []xfer.Desc{r.At(off, n)}); err == nil {
			f, err = a.Prepare(far.peer, []xfer.Desc{far.region.At(off, n)})
		}
		return l, f, err
	}
	write := func(ctx context.Context, l, f *xfer.List, class xfer.Class) error {
		q, err := a.Post(xfer.Transfer{Op: xfer.Write, Local: l, Remote: f, Class: class})
		if err != nil {
			return err
		}
		return q.Wait(ctx)
	}
	small, smallFar, err := list(large, urgentSize)
	if err != nil {
		return u, err
	}
	whole, wholeFar, err := list(0, large)
	if err != nil {
		return u, err
	}
	if err := write(ctx, small, smallFar, class); err != nil { // the connection is made
		return u, err
	}
	beside, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	var moved atomic.Int64
	began := time.Now()
	if bulk {
		for range 2 {
			wg.Go(func() {
				for beside.Err() == nil && write(beside, whole, wholeFar, xfer.Bulk) == nil {
					moved.Add(large)
				}
			})
		}
	}
	reduced := make(chan error, 1)
	if reduce {
		wg.Go(func() {
			s, err := c.ranks(beside, 2, "share", size, "WEFT_TRANSPORT=tcp")
			u.Reduce = s.Each
			reduced <- err
		})
	}
	var times []float64
	for over := false; !over; {
		at := time.Now()
		if err := write(ctx, small, smallFar, class); err != nil {
			return u, err
		}
		times = append(times, time.Since(at).Seconds()*1e3)
		over = len(times) >= urgentCount
		if reduce { // for as long as that runs
			select {
			case err := <-reduced:
				if err != nil {
					return u, err
				}
				over = true
			default:
				over = false
			}
		}
		select {
		case <-time.After(5 * time.Millisecond): // requests of people come one by one
		case <-ctx.Done():
			return u, ctx.Err()
		}
	}
	u.Bulk = unit.Rate(float64(moved.Load()) / time.Since(began).Seconds())
	stop()
	wg.Wait()
	u.Median = median(times)
	u.P95 = times[len(times)*95/100]
	return u, nil
}
