package infer

import (
	"context"
	"slices"
	"time"
)

// WorkerStatus is how a worker stands.
type WorkerStatus struct {
	Name     string `json:"name"`
	Role     Role   `json:"role"`
	Pid      int    `json:"pid"`
	Live     bool   `json:"live"`
	Silent   bool   `json:"silent,omitempty"` // it owes an answer for longer than it may
	Load     int    `json:"requests"`
	Done     int    `json:"done"`
	Restarts int    `json:"restarts"`
	Last     string `json:"last,omitempty"` // how the process before ended
}

// Status is how a cluster stands, the latest request first.
type Status struct {
	Model    Model          `json:"model"`
	Workers  []WorkerStatus `json:"workers"`
	Asked    int            `json:"asked"`
	Requests []Reply        `json:"requests"`
	TTFT     []Spread       `json:"ttft"`
	TPOT     []Spread       `json:"tpot"`
	Cache    *CacheStatus   `json:"cache,omitempty"`
}

// CacheStatus is how the cache service stands, as far as it answers.
type CacheStatus struct {
	Address string `json:"address"`
	Blocks  int    `json:"blocks"` // in memory
	Room    int    `json:"room"`
	Asked   int64  `json:"asked"`
	Found   int64  `json:"found"`
	Stored  int64  `json:"stored"`
	Moved   int64  `json:"bytes_by_transfers"`
	Error   string `json:"error,omitempty"`
}

// cacheStatus asks the cache service.
func (c *Cluster) cacheStatus() *CacheStatus {
	if c.stats == nil {
		return nil
	}
	out := &CacheStatus{Address: c.o.Cache}
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Patience)
	defer cancel()
	s, err := c.stats.Stat(ctx)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	for _, t := range s.Tenants {
		out.Blocks, out.Room = out.Blocks+t.Memory, out.Room+t.Room
	}
	n := s.Counters
	out.Asked, out.Found, out.Stored, out.Moved = n.Asked, n.Asked-n.Missed, n.Stored, n.Moved
	return out
}

// Spread is how a time varies over the last requests of a mode.
type Spread struct {
	Mode  Mode          `json:"mode"`
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
}

func spread(mode Mode, list []time.Duration) Spread {
	if len(list) == 0 {
		return Spread{Mode: mode}
	}
	slices.Sort(list)
	return Spread{mode, len(list), list[len(list)/2], list[min(len(list)-1, len(list)*99/100)]}
}

// times are those of the requests of a mode that are done: until the first token, and between two tokens, which a request of one token
// has not. The caller holds mu.
func (c *Cluster) times(mode Mode) (first, each []time.Duration) {
	for _, r := range c.requests {
		if r.Mode != mode || r.State != "done" {
			continue
		}
		first = append(first, r.First)
		if r.Count > 1 {
			each = append(each, r.Each)
		}
	}
	return first, each
}

// Status tells how the cluster stands.
func (c *Cluster) Status() Status {
	cache := c.cacheStatus()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Cache: cache, Model: c.o.Model, Asked: c.asked, Workers: []WorkerStatus{}, Requests: []Reply{}}
	for _, p := range c.workers {
		x := WorkerStatus{Name: p.name, Role: p.role, Live: p.live, Silent: p.silent, Load: p.load, Done: p.done, Restarts: p.restarts,
			Last: p.last}
		if p.cmd != nil && p.cmd.Process != nil {
			x.Pid = p.cmd.Process.Pid
		}
		s.Workers = append(s.Workers, x)
	}
	for i := len(c.requests) - 1; i >= 0; i-- {
		s.Requests = append(s.Requests, *c.requests[i])
	}
	for _, m := range Modes {
		if first, each := c.times(m); len(first) > 0 {
			s.TTFT, s.TPOT = append(s.TTFT, spread(m, first)), append(s.TPOT, spread(m, each))
		}
	}
	return s
}
