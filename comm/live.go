package comm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/comm/flight"
)

// livePace is how often a process tells of its operations, liveTimes how often of each,
// so that a reader that comes late misses none, and liveOps of how many of a
// communicator at a time.
const (
	livePace  = 500 * time.Millisecond
	liveTimes = 4
	liveOps   = 96
)

// lives are the communicators of this process that tell of their operations.
var lives struct {
	mu    sync.Mutex
	comms map[*Comm][liveTimes]uint64 // and up to which operation they had, the last times
	dir   string
	stop  chan struct{}
	over  chan struct{}
}

// liveGroup is a communicator in live-PID.json.
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
	lives.mu.Lock()
	defer lives.mu.Unlock()
	if lives.comms == nil {
		lives.comms = map[*Comm][liveTimes]uint64{}
	}
	lives.comms[c] = [liveTimes]uint64{}
	if lives.stop == nil {
		lives.dir, lives.stop, lives.over = dir, make(chan struct{}), make(chan struct{})
		go tellLives(lives.dir, lives.stop, lives.over)
	}
}

// vanish ends what appear began.
func (c *Comm) vanish() {
	lives.mu.Lock()
	delete(lives.comms, c)
	var over chan struct{}
	if len(lives.comms) == 0 && lives.stop != nil {
		close(lives.stop)
		over, lives.stop = lives.over, nil
	}
	lives.mu.Unlock()
	if over != nil {
		<-over
	}
}

// tellLives writes live-PID.json twice a second, for agents (weft agent) to read.
func tellLives(dir string, stop, over chan struct{}) {
	defer close(over)
	path := filepath.Join(dir, fmt.Sprintf("live-%d.json", os.Getpid()))
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

func liveState() any {
	lives.mu.Lock()
	defer lives.mu.Unlock()
	rank, size := 0, 0
	groups := []liveGroup{}
	for c, had := range lives.comms {
		g := liveGroup{Comm: c.id, Epoch: c.epoch, Ranks: c.group.Members, Live: c.flight.Live(had[0], liveOps)}
		copy(had[:], had[1:])
		had[liveTimes-1] = g.Done
		lives.comms[c] = had
		if s := c.world.all.Size(); s >= size {
			rank, size = c.world.all.Rank(), s
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
	}{rank, size, os.Getpid(), time.Now().UnixNano(), groups}
}
