package up

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/fault"
)

// Drill is what is to be broken, and how often each.
type Drill []Exercise

// Exercise is one kind of trouble.
type Exercise struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

// Exercises are the kinds that there are.
var Exercises = []struct{ Name, Summary string }{
	{"kill", "a rank at work gets SIGKILL"},
	{"stop", "a rank at work gets SIGSTOP, and SIGCONT 3 s later"},
	{"coord", "the coordinator gets SIGKILL, and is started again on its directory"},
	{"slow", "a rank at work comes late to every step for 10 s"},
	{"hang", "a rank at work takes no step for 12 s, and lives"},
	{"link", "what a rank at work sends to another is throttled to 200 kB/s for 10 s; over tcp"},
}

// ParseDrill reads kill:5,stop:1,coord:1. A kind without a number is done once.
func ParseDrill(s string) (Drill, error) {
	var d Drill
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		kind, count, has := strings.Cut(strings.TrimSpace(part), ":")
		n := 1
		if has {
			var err error
			if n, err = strconv.Atoi(count); err != nil || n < 1 || n > 1_000_000 {
				return nil, wrong("drill %q: %q is not a number of times from 1 on; give for example kill:5", s, count)
			}
		}
		known := slices.ContainsFunc(Exercises, func(x struct{ Name, Summary string }) bool { return x.Name == kind })
		if !known {
			var names []string
			for _, x := range Exercises {
				names = append(names, x.Name)
			}
			return nil, wrong("drill %q: %q is none of %s; give for example kill:5,coord:1", s, kind, strings.Join(names, ", "))
		}
		d = append(d, Exercise{kind, n})
	}
	return d, nil
}

func (d Drill) String() string {
	var list []string
	for _, x := range d {
		list = append(list, fmt.Sprintf("%s:%d", x.Kind, x.Count))
	}
	return strings.Join(list, ",")
}

// gap is the mean time between two exercises where the run has no end.
const gap = 2 * time.Second

// rest is how long a rank is stopped.
const rest = 3 * time.Second

// act is an exercise at an instant after training began.
type act struct {
	at   time.Duration
	kind string
}

// plan spreads exercises over the time there is: at random instants between its
// first and its last tenth.
func (d Drill) plan(whole time.Duration, rng *rand.Rand) []act {
	n := 0
	for _, x := range d {
		n += x.Count
	}
	if whole == 0 {
		whole = time.Duration(n+1) * gap
	}
	var list []act
	for _, x := range d {
		for range x.Count {
			list = append(list, act{whole/10 + time.Duration(rng.Float64()*0.8*float64(whole)), x.Kind})
		}
	}
	slices.SortStableFunc(list, func(a, b act) int { return cmp.Compare(a.at, b.at) })
	return list
}

// waitUntil waits for a time; false if ctx ended first.
func waitUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *run) kill(slot int) {
	at := time.Now()
	if pid := r.node.Signal(slot, syscall.SIGKILL); pid != 0 {
		r.ledger.hurt(slot, pid, at, "kill")
	}
}

// pause stops a rank, which the others take for dead, and lets it go on after they have replaced it.
func (r *run) pause(slot int) {
	at := time.Now()
	pid := r.node.Signal(slot, syscall.SIGSTOP)
	if pid == 0 {
		return
	}
	r.ledger.hurt(slot, pid, at, "stop")
	time.AfterFunc(rest, func() {
		if r.node.Signal(slot, syscall.SIGCONT) == pid {
			r.note("continued", slot, "SIGCONT to pid %d", pid)
		}
	})
}

// drill carries the drill out; false if ctx ended first. Where there is nobody to
// kill, it waits until there is.
func (r *run) drill(ctx context.Context) bool {
	rng := rand.New(rand.NewPCG(r.o.Seed, 0x6472696c6c))
	began := time.Now()
	for _, a := range r.o.Drill.plan(r.o.For, rng) {
		if ctx.Err() != nil {
			return false
		}
		if !waitUntil(ctx, began.Add(a.at)) {
			return false
		}
		if a.kind == "coord" {
			r.note("coordinator", -1, "SIGKILL to the coordinator")
			r.ledger.coordinatorKilled()
			r.killCoordinator()
			continue
		}
		slot, ok := r.ledger.victim(ctx, rng.Float64())
		if !ok {
			return false
		}
		switch a.kind {
		case "slow", "hang", "link":
			if !r.trouble(ctx, a.kind, slot) {
				return false
			}
		case "kill":
			r.kill(slot)
		case "stop":
			r.pause(slot)
		}
	}
	// The last one must have been overcome before the run may end.
	return r.ledger.calm(ctx)
}

// How long a rank is slow, a link throttled or a rank hung, and how slow the link is.
const (
	slowFor  = 10 * time.Second
	hangFor  = 12 * time.Second
	late     = 150 * time.Millisecond
	linkRate = 2e5
)

// trouble makes a rank slow, or hang, or a link of it slow, and takes it back after a
// while; false if ctx ended first.
func (r *run) trouble(ctx context.Context, kind string, slot int) bool {
	length := slowFor
	var undo func()
	var err error
	switch kind {
	case "slow":
		r.note("drill", slot, "comes %s late to every step", late)
		err, undo = fault.Give(r.orders(), slot, "slow "+late.String()), func() { _ = fault.Give(r.orders(), slot, "") }
	case "hang":
		length = hangFor
		r.note("drill", slot, "takes no step")
		err, undo = fault.Give(r.orders(), slot, "hang"), func() { _ = fault.Give(r.orders(), slot, "") }
	case "link":
		peer := r.busiest(slot)
		if peer < 0 {
			r.note("error", slot, "sends nothing over tcp: there is no link to throttle")
			return true
		}
		_, undo, err = fault.Throttle(r.ledger.pid(slot), r.ledger.pid(peer), linkRate)
		if err == nil {
			r.note("drill", slot, "what it sends to slot %d is throttled to %.0f kB/s", peer, linkRate/1e3)
		}
	}
	if err != nil {
		r.note("error", slot, "drill %s: %v", kind, err)
		return true
	}
	defer undo()
	timer := time.NewTimer(cmp.Or(r.o.lasting, length))
	defer timer.Stop()
	select {
	case <-timer.C:
		r.note("drill", slot, "%s is over", kind)
		return true
	case <-ctx.Done():
		return false
	}
}

// busiest is the slot that one sends most to.
func (r *run) busiest(slot int) int {
	peer, most := -1, 0.0
	for _, l := range r.watch.View().Links {
		for _, c := range l.Cells {
			if c.From == slot && c.Bytes > most {
				peer, most = c.To, c.Bytes
			}
		}
	}
	return peer
}
