package up

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/app/internal/studio/engine"
	eyes "github.com/weft-fabric/weft/observe/agent"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
	watching "github.com/weft-fabric/weft/observe/watch/server"
	"github.com/weft-fabric/weft/view/web"
)

// hangLimit is how long no operation of a run may end, in seconds.
const hangLimit = 5

// Verdict is what the watch of a run found.
type Verdict struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Slots   []int     `json:"slots"`
	Verdict string    `json:"verdict"`
}

// observe watches the run as a cluster is watched: an agent looks at the ranks'
// processes, their connections and what they say of their operations, and a server
// judges. The numbers in its verdicts are slots, which stay while ranks come and go.
func (r *run) observe() (err error) {
	for _, d := range []string{r.orders(), r.lives()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	r.watch, err = watching.New(watching.Config{Watch: watch.Config{Title: "weft up", Hang: hangLimit, Elastic: true}, Notice: r.verdict})
	return err
}

func (r *run) orders() string { return filepath.Join(r.dir, "orders") }
func (r *run) lives() string  { return filepath.Join(r.dir, "live") }

// look runs the agent and the judge until ctx ends.
func (r *run) look(ctx context.Context) {
	c := eyes.Default()
	c.Ranks, c.Pulse, c.Send = r.ledger.processes, 500*time.Millisecond, r.hear
	var wg sync.WaitGroup
	wg.Add(3)
	go func() {
		defer wg.Done()
		r.compare(ctx)
	}()
	go func() {
		defer wg.Done()
		eyes.New(c).Run(ctx)
	}()
	go func() {
		defer wg.Done()
		_ = r.watch.Run(ctx) // it keeps nothing that could fail to be written
	}()
	wg.Wait()
}

// comparePace is how often the page gets measured and predicted times.
const comparePace = time.Second

// compare puts what collectives take against their predictions onto the page, as the watch measures both.
func (r *run) compare(ctx context.Context) {
	tick := time.NewTicker(comparePace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.board.Against(against(r.watch.View()))
		}
	}
}

// against is what operations took last, of whichever communicator had the most of them.
func against(v watch.View) (list []web.Against) {
	slices.SortStableFunc(v.Collectives, func(a, b watch.CollectiveView) int { return cmp.Compare(a.Count, b.Count) })
	for _, c := range v.Collectives {
		if c.Predicted > 0 {
			list = append(list, web.Against{Op: c.Op, Bytes: c.Bytes, Took: time.Duration(c.Took * 1e9),
				Predicted: time.Duration(c.Predicted * 1e9)})
		}
	}
	return list
}

// hear takes a report of the agent, with slots instead of ranks.
func (r *run) hear(_ context.Context, rep *watch.Report) (watch.Answer, error) {
	slot := map[int]int{}
	for i := range rep.Ranks {
		x := &rep.Ranks[i]
		if s := r.ledger.slotOf(x.PID); s >= 0 {
			slot[x.Rank], x.Rank = s, s
		}
		x.Size = r.o.Ranks
	}
	for i := range rep.Ranks {
		for k := range rep.Ranks[i].Groups {
			g := &rep.Ranks[i].Groups[k]
			members := make([]int, 0, len(g.Ranks))
			for _, m := range g.Ranks {
				if s, ok := slot[m]; ok {
					members = append(members, s)
				}
			}
			g.Ranks = members
		}
	}
	for i := range rep.Launches {
		l := &rep.Launches[i]
		l.Rank, l.Size = r.ledger.slotBefore(l.PID, l.Rank), r.o.Ranks
	}
	rep.Dumps = nil
	return r.watch.Take(rep)
}

// verdict puts what was found into the journal and onto the page.
func (r *run) verdict(i watch.Incident) {
	if i.Kind == "check" { // of the host, not of the run
		return
	}
	slot := -1
	if len(i.Subject.Ranks) == 1 {
		slot = i.Subject.Ranks[0]
	}
	at := time.Unix(0, int64(i.Began*1e9))
	if i.Ended > 0 {
		r.event(web.Event{At: time.Unix(0, int64(i.Ended*1e9)), Kind: "over", ID: slot,
			Text: fmt.Sprintf("%s lasted %.1f s", i.Kind, i.Ended-i.Began)})
		return
	}
	r.event(web.Event{At: at, Kind: "verdict", ID: slot, Text: i.Verdict})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verdicts = append(r.verdicts, Verdict{at, i.Kind, slices.Clone(i.Subject.Ranks), i.Verdict})
}

// pages are the page of the run, and below /watch/ that of its watch.
func (r *run) pages() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", r.board.Handler())
	mux.Handle("/watch/", http.StripPrefix("/watch", r.watch.Pages()))
	if r.studio() != "" {
		limits := engine.Default()
		page := &studio.Server{Engine: engine.New(limits), Limits: limits, Live: mux}
		mux.Handle("/studio/", http.StripPrefix("/studio", page.Handler()))
	}
	return mux
}

// studio is where the run is drawn on a picture: nowhere on an address that other hosts reach, as that page computes what it
// is asked.
func (r *run) studio() string {
	host, _, _ := net.SplitHostPort(r.o.Listen)
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return ""
	}
	return "/studio/"
}

// processes are those of the slots, for the agent.
func (l *ledger) processes() (list []doctor.Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for slot, s := range l.slots {
		if s.Pid != 0 && s.State != web.Failed && s.State != web.Left {
			list = append(list, doctor.Process{Host: "localhost", PID: s.Pid, Rank: slot, World: len(l.slots), Local: slot, Job: "up",
				Env: map[string]string{"WEFT_WATCH": l.r.lives()}})
		}
	}
	return list
}

// slotOf is the slot of a process, -1 if it has none.
func (l *ledger) slotOf(pid int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.IndexFunc(l.slots, func(s web.Rank) bool { return s.Pid == pid })
}

// slotBefore is the slot of a process that may have ended; else the one given.
func (l *ledger) slotBefore(pid, other int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.had[pid]; ok {
		return s
	}
	return other
}

// pid is the process of a slot.
func (l *ledger) pid(slot int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slots[slot].Pid
}
