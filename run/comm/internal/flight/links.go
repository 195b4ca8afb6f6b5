package flight

import (
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/transport"
)

// Link is something that happened to the links with a rank: an outage, or a path that was lost, and their end.
type Link struct {
	Kind   string `json:"kind"` // path lost, path back, link lost, link back
	Peer   int    `json:"peer"` // rank of the world
	Path   string `json:"interface,omitempty"`
	Conn   string `json:"connection,omitempty"` // both addresses, ours first
	Why    string `json:"why,omitempty"`
	At     int64  `json:"at_ns"`               // since the host started
	Lasted int64  `json:"lasted_ns,omitempty"` // what is over
}

// Links are what happened to the links of a rank, the last of it.
type Links struct {
	mu   sync.Mutex
	list []Link
}

// linksKept is how many events are kept.
const linksKept = 256

// Add notes an event.
func (l *Links) Add(e transport.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == linksKept {
		l.list = append(l.list[:0], l.list[1:]...)
	}
	l.list = append(l.list, Link{Kind: e.Kind.String(), Peer: e.Peer, Path: e.Path, Conn: e.Conn, Why: e.Text,
		At: clock.Now() - int64(time.Since(e.Time)), Lasted: int64(e.Lasted)})
}

// all are the events, oldest first.
func (l *Links) all() []Link {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Link(nil), l.list...)
}

// SetLinks lets the recorder tell of links; nobody uses it yet.
func (f *Recorder) SetLinks(l *Links) { f.links = l }

// Links are what happened to the links of this rank, oldest first: outages and lost paths, and their end.
func (f *Recorder) Links() []Link { return f.links.all() }
