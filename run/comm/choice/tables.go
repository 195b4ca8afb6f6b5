package choice

import (
	"fmt"
	"sync"

	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/transport"
)

// Tables are the tables of communicators that use the same links. Those of the
// same shape share one, so that splitting a communicator costs no new choices.
type Tables struct {
	links cost.Links
	can   transport.Capabilities
	mu    sync.Mutex
	known map[string]*Table
}

// kept is how many shapes are remembered; tables of others are made anew.
const kept = 256

// NewTables makes an empty set of tables.
func NewTables(links cost.Links, can transport.Capabilities) *Tables {
	return &Tables{links: links, can: can, known: map[string]*Table{}}
}

// For gives the table of ranks that are on these hosts; see New.
func (t *Tables) For(hosts []int) *Table {
	fresh := New(t.links, t.can, len(hosts), hosts)
	shape := fmt.Sprint(fresh.hosts) // hosts are numbered as they come
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.known[shape]; known != nil {
		return known
	}
	if len(t.known) < kept {
		t.known[shape] = fresh
	}
	return fresh
}
