package comm

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/comm/internal/flight"
	"github.com/weft-fabric/weft/run/lives"
)

// livePace is how often a process tells of its operations, liveTimes how often of each,
// so that a reader that comes late misses none, and liveOps of how many of a
// communicator at a time.
const (
	livePace  = 500 * time.Millisecond
	liveTimes = 4
	liveOps   = 96
)

// living are the communicators of this process that tell of their operations.
var living struct {
	mu    sync.Mutex
	comms map[*Comm][liveTimes]uint64 // and up to which operation they had, the last times
	dir   string
	stop  chan struct{}
	over  chan struct{}
}

// liveGroup is a communicator in the file of a rank.
type liveGroup struct {
	Comm  uint32 `json:"comm"`
	Epoch uint32 `json:"epoch"`
	Ranks []int  `json:"ranks"` // of the world
	flight.Live
}

// appear makes a communicator tell of its operations, if the process is to.
func (c *Comm) appear() {
	dir := c.world.cfg.WatchDir
	if dir == "" || c.id == 0 { // it is alone so far
		return
	}
	living.mu.Lock()
	defer living.mu.Unlock()
	if living.comms == nil {
		living.comms = map[*Comm][liveTimes]uint64{}
	}
	living.comms[c] = [liveTimes]uint64{}
	if living.stop == nil {
		living.dir, living.stop, living.over = dir, make(chan struct{}), make(chan struct{})
		go tellLives(living.dir, living.stop, living.over)
	}
}

// vanish ends what appear began.
func (c *Comm) vanish() {
	living.mu.Lock()
	delete(living.comms, c)
	var over chan struct{}
	if len(living.comms) == 0 && living.stop != nil {
		close(living.stop)
		over, living.stop = living.over, nil
	}
	living.mu.Unlock()
	if over != nil {
		<-over
	}
}

// tellLives writes the file of a rank twice a second, for agents (weft agent) to read.
func tellLives(dir string, stop, over chan struct{}) {
	defer close(over)
	path := filepath.Join(dir, lives.Live(lives.Space(), os.Getpid()))
	defer os.Remove(path)
	tick := time.NewTicker(livePace)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		// A reader never sees half a file. What cannot be written is told the next time.
		if b, err := json.Marshal(liveState()); err == nil && os.WriteFile(path+".new", b, 0o644) == nil {
			_ = os.Rename(path+".new", path)
		}
	}
}

// predict says how long operations should have taken by the links that were measured when the ranks met.
func (c *Comm) predict(ops []flight.Took) {
	if len(ops) == 0 {
		return
	}
	predict := func(op sched.Collective, bytes int64) unit.Time { return c.levels.predict(op, bytes) }
	if c.levels == nil {
		hosts := make([]int, len(c.library.members))
		for i, m := range c.library.members {
			hosts[i] = c.world.hosts[m]
		}
		table := c.world.tables().For(hosts)
		predict = func(op sched.Collective, bytes int64) unit.Time {
			return table.Predict(op, bytes, c.world.cfg.Canonical)
		}
	}
	known := map[string]int64{}
	for i := range ops {
		o := &ops[i]
		k := o.Op + strconv.Itoa(o.Bytes)
		if _, ok := known[k]; !ok {
			if op, err := sched.ParseCollective(o.Op); err == nil {
				known[k] = int64(predict(op, int64(o.Bytes)) / unit.Nanosecond)
			}
		}
		o.Predicted = known[k]
	}
}

// liveState is what an agent reads while ranks run: where every group stands, and how far it was at the last few looks.
// Each call moves that history on, so it is meant for one reader.
func liveState() any {
	living.mu.Lock()
	defer living.mu.Unlock()
	rank, size := 0, 0
	var near, far unit.Rate
	groups := []liveGroup{}
	for c, had := range living.comms {
		g := liveGroup{Comm: c.id, Epoch: c.epoch, Ranks: c.group.Members, Live: c.flight.Live(had[0], liveOps)}
		c.predict(g.Ops)
		copy(had[:], had[1:])
		had[liveTimes-1] = g.Done
		living.comms[c] = had
		if s := c.world.all.Size(); s >= size {
			rank, size = c.world.all.Rank(), s
			near, far = reached(c.world.links.Near), reached(c.world.links.Far)
		}
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b liveGroup) int { return cmp.Or(cmp.Compare(a.Comm, b.Comm), cmp.Compare(a.Epoch, b.Epoch)) })
	return struct {
		Rank   int         `json:"rank"`
		Size   int         `json:"size"`
		PID    int         `json:"pid"`
		At     int64       `json:"at_ns"`
		Groups []liveGroup `json:"groups"`
		Near   unit.Rate   `json:"near_bytes_per_s,omitempty"` // that links inside a host reached when the ranks met
		Far    unit.Rate   `json:"far_bytes_per_s,omitempty"`  // and between hosts
	}{rank, size, os.Getpid(), time.Now().UnixNano(), groups, near, far}
}
