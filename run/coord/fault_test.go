package coord

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/run/internal/member"
)

// The coordinator is killed with SIGKILL and started again on its directory:
// workers keep their lives, the history is whole, watches and decisions go on.
func TestCoordinatorKilledAndStartedAgain(t *testing.T) {
	p := single(t, &Policy{Min: 1, Max: 8, Settle: 50e6, Name: "server"})
	ctx := within(t)
	c := dial(t, p.addr)
	epochs := c.WatchEpochs(ctx)
	workers := c.WatchWorkers(ctx)
	var regs []*Registration
	var lives []Life
	for i := range 3 {
		regs = append(regs, register(t, c, member.ID(i)))
		lives = append(lives, regs[i].Worker().Life)
	}
	for {
		e := await(t, epochs, "an epoch", func(Epoch) bool { return true })
		for _, s := range e.Recovering {
			regs[s.ID].CaughtUp()
		}
		if len(e.Members) == 3 {
			break
		}
	}
	before, err := c.History(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p.kill()
		reported := make(chan error, 1)
		go func() { reported <- c.ReportDead(ctx, 9, 0, "was never there") }() // asked while nobody answers
		p = start(t, p.conf)
		if err := <-reported; err != nil {
			t.Fatal(err)
		}
	}
	after, err := c.History(ctx)
	if err != nil || len(after) < len(before) || !reflect.DeepEqual(after[:len(before)], before) {
		t.Fatalf("history %+v\nwas %+v, %v", after, before, err)
	}
	regs[1].cancel() // its process is no more
	if err := c.ReportDead(ctx, 1, lives[1], "signal: killed"); err != nil {
		t.Fatal(err)
	}
	await(t, workers, "the word of the death", func(e WorkerEvent) bool { return e.Word == Died && e.Worker.ID == 1 })
	e := await(t, epochs, "the survivors", lists(0, 2))
	if e.Members[0].Life != lives[0] || e.Members[1].Life != lives[2] {
		t.Errorf("%+v; lives were %v", e, lives)
	}
	for _, i := range []int{0, 2} {
		if err := regs[i].Err(); err != nil {
			t.Error(err)
		}
	}
}

// One of three servers is killed: nothing that was written is lost, and leases,
// watches, decisions and barriers go on with the other two.
func TestOneOfThreeServersKilled(t *testing.T) {
	var peers, addrs []string
	for i := range 3 {
		peers = append(peers, fmt.Sprintf("n%d=%s", i, freePort(t)))
		addrs = append(addrs, freePort(t))
	}
	var servers []*process
	var ready []func()
	dir := stateDir(t)
	for i := range 3 {
		p, r := launch(t,
			child{Server: ServerConfig{Dir: fmt.Sprintf("%s/%d", dir, i), Listen: addrs[i], Token: testToken, Name: fmt.Sprintf("n%d", i),
				Peers: peers}})
		servers, ready = append(servers, p), append(ready, r)
	}
	for _, r := range ready {
		r()
	}
	ctx, cancel := context.WithCancel(within(t))
	c := dial(t, addrs...)
	decider := dial(t, addrs...)
	done := make(chan error, 1)
	go func() { done <- decider.Decide(ctx, Policy{Min: 2, Max: 4, Settle: 50e6, Name: "d"}) }()
	epochs := c.WatchEpochs(ctx)
	a, b := register(t, c, 0), register(t, c, 1)
	e := await(t, epochs, "both", lists(0, 1))
	for i, victim := range []int{0, 1} {
		servers[victim].kill()
		name := fmt.Sprint("after-", i)
		var both sync.WaitGroup
		for rank := range 2 {
			both.Go(func() {
				if err := c.Barrier(ctx, e, rank, name); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if held, err := c.Latest(ctx); err != nil || !reflect.DeepEqual(*held, e) {
			t.Fatalf("%+v, %v; want %+v", held, err, e)
		}
		again, r := launch(t, servers[victim].conf)
		r()
		servers[victim] = again
	}
	for _, r := range []*Registration{a, b} {
		if err := r.Leave(ctx); err != nil {
			t.Error(err)
		}
	}
	cancel()
	<-done
}

// A worker that says nothing any more is out when its lease ends, without anybody's report.
func TestSilentWorkerExpires(t *testing.T) {
	p := single(t, &Policy{Min: 1, Max: 8, Settle: 200e6, Name: "server"})
	ctx := within(t)
	c := dial(t, p.addr)
	silent, err := Dial(ctx, Config{Endpoints: []string{p.addr}, Job: "job", Token: testToken})
	if err != nil {
		t.Fatal(err)
	}
	epochs, workers := c.WatchEpochs(ctx), c.WatchWorkers(ctx)
	register(t, silent, 1)
	register(t, c, 0).CaughtUp()
	await(t, epochs, "both", lists(0, 1))
	silent.Close() // ends the renewals and leaves the lease
	ev := await(t, workers, "the end of the lease", func(e WorkerEvent) bool { return e.Word != Joined && e.Worker.ID == 1 })
	if ev.Word != Expired {
		t.Errorf("%+v", ev)
	}
	e := await(t, epochs, "the one that is left", lists(0))
	if e.Reason != "worker 1 was silent until its lease ended" {
		t.Errorf("%q", e.Reason)
	}
}
