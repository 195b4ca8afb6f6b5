package fit

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/comm"
)

// rates are what links carry, in bytes a second.
type rates struct {
	hosts [][]int     // ranks by host
	near  []float64   // by host: between two of its ranks, while all of its ranks send; 0 for a host with one
	pair  [][]float64 // by sending and receiving host, while every host sends to one and receives from one
	out   []float64   // by host: to all others at once
}

// long is how long a message is to be on its way for its rate to count: longer than the bursts that a rate limit lets pass.
const long = 40 * time.Millisecond

// Tags of messages.
const (
	dataTag  = 1
	replyTag = 2
)

// measure finds the rates between all pairs of hosts, and what hosts send to all others at once. All ranks get the same.
func measure(ctx context.Context, c *comm.Comm) (*rates, error) {
	m := &rates{}
	for rank, h := range c.Hosts() {
		for len(m.hosts) <= h {
			m.hosts = append(m.hosts, nil)
		}
		m.hosts[h] = append(m.hosts[h], rank)
	}
	n := len(m.hosts)
	mine := c.Hosts()[c.Rank()]
	found := make([]float64, n*n+2*n) // pairs, out, near: by whoever measured them
	first := m.hosts[mine][0] == c.Rank()
	x := &exchange{c: c, data: make([]byte, most)}

	at := slices.Index(m.hosts[mine], c.Rank())
	if mates := m.hosts[mine]; len(mates) > 1 {
		got, err := x.round(ctx, []int{mates[(at+1)%len(mates)]}, []int{mates[(at+len(mates)-1)%len(mates)]}, nil)
		if err != nil {
			return nil, err
		}
		if first {
			found[n*n+n+mine] = got[0]
		}
	}
	if err := comm.Barrier(ctx, c); err != nil {
		return nil, err
	}
	var all, from []int
	var alone []float64
	for k := 1; k < n; k++ {
		if first {
			to, by := m.hosts[(mine+k)%n][0], m.hosts[(mine+n-k)%n][0]
			got, err := x.round(ctx, []int{to}, []int{by}, nil)
			if err != nil {
				return nil, err
			}
			found[mine*n+(mine+k)%n] = got[0]
			all, from, alone = append(all, to), append(from, by), append(alone, got[0])
		}
		if err := comm.Barrier(ctx, c); err != nil {
			return nil, err
		}
	}
	if first && n > 2 {
		got, err := x.round(ctx, all, from, alone)
		if err != nil {
			return nil, err
		}
		for _, rate := range got {
			found[n*n+mine] += rate
		}
	}
	if err := comm.AllReduce(ctx, c, found, comm.Sum); err != nil {
		return nil, err
	}
	for h := range n {
		m.pair = append(m.pair, found[h*n:][:n])
	}
	m.out, m.near = found[n*n:][:n], found[n*n+n:][:n]
	return m, nil
}

// exchange sends messages and answers those of others.
type exchange struct {
	c    *comm.Comm
	data []byte // to send
}

// round sends to some ranks at once and answers others, and gives the rate to each. Messages grow until they are on their way for
// long enough; where the rates of each alone are given, they are as long as that says from the start.
func (x *exchange) round(ctx context.Context, to, from []int, alone []float64) ([]float64, error) {
	got := make([]float64, len(to))
	errs := make([]error, len(to)+len(from))
	var wg sync.WaitGroup
	for i, rank := range to {
		wg.Go(func() {
			bytes := 64 << 10
			if alone != nil {
				bytes = sizeFor(alone[i])
			}
			got[i], errs[i] = x.send(ctx, rank, bytes)
		})
	}
	for i, rank := range from {
		wg.Go(func() { errs[len(to)+i] = x.answer(ctx, rank) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return got, nil
}

// most is the length of a message at most.
const most = 32 << 20

// sizeFor is the length of messages that take long at a rate.
func sizeFor(rate float64) int {
	return int(min(max(rate*long.Seconds(), 64<<10), most/2))
}

// send finds the rate to a rank: the time that twice the bytes take longer.
func (x *exchange) send(ctx context.Context, to, bytes int) (float64, error) {
	once := func(n int) (float64, error) {
		start := time.Now()
		if err := comm.SendTag(ctx, x.c, []int64{int64(n)}, to, dataTag); err != nil {
			return 0, err
		}
		if n > 0 {
			if err := comm.SendTag(ctx, x.c, x.data[:n], to, dataTag); err != nil {
				return 0, err
			}
			if _, err := comm.RecvTag(ctx, x.c, make([]byte, 1), to, replyTag); err != nil {
				return 0, err
			}
		}
		return time.Since(start).Seconds(), nil
	}
	for {
		took, err := once(bytes)
		if err != nil {
			return 0, err
		}
		if took >= long.Seconds() || bytes >= most/2 {
			break
		}
		bytes = min(max(int(float64(bytes)*1.2*long.Seconds()/took), 2*bytes), 16*bytes, most/2)
	}
	var one, two float64
	for i := range 3 {
		a, err := once(bytes)
		if err != nil {
			return 0, err
		}
		b, err := once(2 * bytes)
		if err != nil {
			return 0, err
		}
		if i == 0 || a < one {
			one = a
		}
		if i == 0 || b < two {
			two = b
		}
	}
	if _, err := once(0); err != nil { // the end
		return 0, err
	}
	if more := two - one; more > two/4 {
		return float64(bytes) / more, nil
	}
	return float64(2*bytes) / two, nil
}

// answer answers a sender until it ends.
func (x *exchange) answer(ctx context.Context, from int) error {
	var data []byte
	for {
		var n [1]int64
		if _, err := comm.RecvTag(ctx, x.c, n[:], from, dataTag); err != nil {
			return err
		}
		if n[0] == 0 {
			return nil
		}
		if n[0] < 0 || n[0] > most {
			return fmt.Errorf("rank %d announces a message of %d bytes", from, n[0])
		}
		if int64(len(data)) < n[0] {
			data = make([]byte, n[0])
		}
		if _, err := comm.RecvTag(ctx, x.c, data[:n[0]], from, dataTag); err != nil {
			return err
		}
		if err := comm.SendTag(ctx, x.c, []byte{1}, from, replyTag); err != nil {
			return err
		}
	}
}

// text is the network as synth reads it: ranks at their host, hosts pair by pair, and where a host sends less to all at once than to
// one after the other, what it sends at most. Both directions of a pair have the rate of the slower one. Rates that
// differ by less than a measurement can tell are one, and all are whole numbers of quarters of the least: the schedule of odd numbers
// has more trees and is no better.
func (m *rates) text() string {
	var list []float64
	each := func(f func(a, b int, rate float64)) {
		for a := range m.hosts {
			for b := a + 1; b < len(m.hosts); b++ {
				f(a, b, min(m.pair[a][b], m.pair[b][a]))
			}
		}
	}
	each(func(_, _ int, rate float64) { list = append(list, rate) })
	inside := slices.Max(m.near) // what else runs makes it slower on some; none has a memory of its own kind
	if len(list) == 0 {
		list = append(list, inside)
	}
	alike := levelled(append(list, m.out...))
	quarter := max(alike(slices.Min(list))/4, 1e6)
	whole := func(rate float64) string { return written(max(math.Round(rate/quarter), 1) * quarter) }
	widest := 0.0
	for h := range m.hosts {
		sum := 0.0
		for _, rate := range m.pair[h] {
			sum += rate
		}
		widest = max(widest, sum)
	}
	if widest > 0 {
		inside = min(inside, 4*widest) // more is never used
	}
	var b strings.Builder
	port := make([]string, len(m.hosts))
	for h, ranks := range m.hosts {
		name := fmt.Sprintf("r%d", ranks[0])
		if len(ranks) > 1 {
			name = fmt.Sprintf("h%d", h)
			fmt.Fprintf(&b, "host %s", name)
			for _, r := range ranks {
				fmt.Fprintf(&b, " r%d", r)
			}
			b.WriteByte('\n')
			for _, r := range ranks {
				fmt.Fprintf(&b, "r%d - %s %s\n", r, name, whole(inside))
			}
		}
		port[h] = name
		sum := 0.0
		for _, rate := range m.pair[h] {
			sum += rate
		}
		if m.out[h] > 0 && m.out[h] < 0.8*sum {
			port[h] = fmt.Sprintf("net%d", h)
			fmt.Fprintf(&b, "%s - %s %s\n", name, port[h], whole(alike(m.out[h])))
		}
	}
	each(func(x, y int, rate float64) {
		fmt.Fprintf(&b, "%s - %s %s\n", port[x], port[y], whole(alike(rate)))
	})
	return b.String()
}

// levelled gives a function that takes rates that differ by up to a seventh for one, the most of them: what else runs makes
// links look slower, never faster.
func levelled(list []float64) func(float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	slices.Reverse(sorted)
	to := map[float64]float64{}
	base := math.Inf(1)
	for _, rate := range sorted {
		if rate < base*7/8 {
			base = rate
		}
		to[rate] = base
	}
	return func(rate float64) float64 { return to[rate] }
}

func written(rate float64) string { return fmt.Sprintf("%.0fMB/s", rate/1e6) }
