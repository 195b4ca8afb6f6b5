package match

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"

	"github.com/weft-fabric/weft/run/transport"
)

// Key names the port of a communicator in an epoch.
type Key struct{ Epoch, ID uint32 }

// KeyOf is the port that a message is for.
func KeyOf(call *[transport.CallSize]byte) Key {
	return Key{Epoch: binary.LittleEndian.Uint32(call[:]), ID: binary.LittleEndian.Uint32(call[4:])}
}

// Fate is what becomes of a message that comes for a port.
type Fate uint8

// The fates.
const (
	Here  Fate = iota // the port is there
	Early             // it is not yet, and will be: whoever brings the message makes it
	Old               // its communicator is in a later epoch
	Ended             // it was closed
)

// remembered is how many ports that have ended are told from those that are not there yet.
const remembered = 4096

// Table is the ports of an endpoint: those that are open, those that messages made before their owner did, and those that
// have ended.
type Table[P any] struct {
	ports  map[Key]P
	newest map[uint32]uint32 // epoch of each communicator
	ended  map[Key]bool
	order  []Key // in which they ended
}

// Find is the port of a key, if it is here, and what becomes of messages for it. Those of an old epoch are dropped, also while its port
// is still open.
func (t *Table[P]) Find(k Key) (p P, f Fate) {
	if k.Epoch < t.newest[k.ID] {
		return p, Old
	}
	p, here := t.ports[k]
	switch {
	case here:
		return p, Here
	case t.ended[k]:
		return p, Ended
	}
	return p, Early
}

// Get is the port of a key, of whatever epoch; the zero value if there is none.
func (t *Table[P]) Get(k Key) P { return t.ports[k] }

// Begin says that the owner of a port makes it, and whether that begins an epoch. What came for it before is in the port that Find
// gives; one that has ended may begin again.
func (t *Table[P]) Begin(k Key) (newer bool, err error) {
	newest := t.newest[k.ID]
	if k.Epoch < newest {
		return false, fmt.Errorf("communicator %d is in epoch %d already, not %d", k.ID, newest, k.Epoch)
	}
	if t.newest == nil {
		t.newest = map[uint32]uint32{}
	}
	t.newest[k.ID] = k.Epoch
	delete(t.ended, k)
	return k.Epoch > newest, nil
}

// Put makes a port that of a key.
func (t *Table[P]) Put(k Key, p P) {
	if t.ports == nil {
		t.ports = map[Key]P{}
	}
	t.ports[k] = p
}

// End takes a port out: what comes for it from now on is dropped.
func (t *Table[P]) End(k Key) {
	delete(t.ports, k)
	if t.ended == nil {
		t.ended = map[Key]bool{}
	}
	if t.ended[k] {
		return
	}
	if len(t.order) >= remembered {
		delete(t.ended, t.order[0])
		t.order = t.order[1:]
	}
	t.order, t.ended[k] = append(t.order, k), true
}

// All are the ports that are here.
func (t *Table[P]) All() iter.Seq[P] { return maps.Values(t.ports) }
