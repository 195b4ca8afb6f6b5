package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watcher hears what routers and kernels say during a drill.
type watcher struct {
	mu    sync.Mutex
	began time.Time
	list  []Notice
	seen  map[string]bool
	done  chan struct{}
	wg    sync.WaitGroup
}

func (w *watcher) note(who, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began.IsZero() || w.seen[who+what] {
		return
	}
	w.seen[who+what] = true
	w.list = append(w.list, Notice{Who: who, What: what, MS: float64(time.Since(w.began).Microseconds()) / 1000})
}

// watch follows links of the switches that a fault concerns, and the logs of all routing daemons.
func (i *Info) watch(t *target) *watcher {
	w := &watcher{seen: map[string]bool{}, done: make(chan struct{})}
	for _, node := range []string{t.leaf, t.spine, t.other} {
		links := make(chan netlink.LinkUpdate, 64)
		if i.within(node, func() error { return netlink.LinkSubscribe(links, w.done) }) == nil {
			w.wg.Go(func() {
				for u := range links {
					if u.IfInfomsg.Flags&unix.IFF_RUNNING == 0 {
						w.note("kernel of "+node, u.Attrs().Name+" lost its carrier")
					}
				}
			})
		}
	}
	w.wg.Go(func() {
		at := map[string]int64{}
		logs := func(f func(node, line string)) {
			for k := range i.Spec.Nodes {
				n := &i.Spec.Nodes[k]
				if !n.Router {
					continue
				}
				for _, d := range []string{"bgpd", "bird"} {
					path := filepath.Join(fmt.Sprintf("/proc/%d/root/run/weft", i.PID), n.Name, d+".log")
					st, err := os.Stat(path)
					if err != nil {
						continue
					}
					was, known := at[path]
					at[path] = st.Size()
					if !known || st.Size() <= was {
						continue
					}
					data, err := os.ReadFile(path)
					if err != nil || int64(len(data)) < was {
						continue
					}
					for line := range strings.Lines(string(data[was:])) {
						f(n.Name, line)
					}
				}
			}
		}
		for {
			select {
			case <-w.done:
				return
			case <-time.After(10 * time.Millisecond):
			}
			logs(func(node, line string) {
				if _, text, ok := strings.Cut(line, "ADJCHANGE: neighbor "); ok && strings.Contains(text, " Down") {
					peer, _, _ := strings.Cut(text, "(")
					_, why, _ := strings.Cut(text, "Down ")
					w.note("BGP of "+node, fmt.Sprintf("session %s down: %s", peer, strings.TrimSpace(why)))
				}
				if _, text, ok := strings.Cut(line, "<TRACE> "); ok && strings.Contains(text, "BGP session closed") { // BIRD
					peer, _, _ := strings.Cut(text, ":")
					w.note("BGP of "+node, "session "+peer+" closed")
				}
			})
		}
	})
	return w
}

// begin says that the fault is there.
func (w *watcher) begin(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = at
}

// noticed gives what was noticed so far.
func (w *watcher) noticed() []Notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

// end gives what was noticed until now, and stops watching.
func (w *watcher) end() []Notice {
	close(w.done)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Time{}
	slices.SortStableFunc(w.list, func(a, b Notice) int { return int(a.MS - b.MS) })
	return w.list
}
