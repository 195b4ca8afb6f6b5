package witness

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// Ledger keeps the decisions of ranks of one host that share no memory. A rank that was stopped while the others decided, went
// on and ended finds there that they did: nobody is left to tell it.
type Ledger interface {
	// Decide gives the record that was given first for a decision, which is this one if there was none.
	Decide(k Key, record []byte) ([]byte, error)
	Close() error
}

// A ledger in memory that processes share is a file without a name. It ends with the last process that has it open. Entries
// have a fixed length and are appended, each by one write: the first one of a decision counts. So there is no lock that a
// stopped process could hold.
//
//	bytes 0-3 communicator, 4-11 epoch, 12-15 length of the record, then the record
//
// The first entry is the name of the world.
const (
	entrySize   = 256 // a page has a whole number of them, so that one is written whole or not at all
	entryRecord = 16
)

// entry encodes an entry.
func entry(k Key, record []byte) ([]byte, error) {
	if len(record) > entrySize-entryRecord {
		return nil, fmt.Errorf("a record of %d bytes, at most %d fit in a ledger", len(record), entrySize-entryRecord)
	}
	b := make([]byte, entrySize)
	le := binary.LittleEndian
	le.PutUint32(b, k.Comm)
	le.PutUint64(b[4:], k.Epoch)
	le.PutUint32(b[12:], uint32(len(record)))
	copy(b[entryRecord:], record)
	return b, nil
}

// firstOf finds the first record of a decision among entries.
func firstOf(k Key, entries []byte) ([]byte, error) {
	head, _ := entry(k, nil)
	for ; len(entries) >= entrySize; entries = entries[entrySize:] {
		if bytes.Equal(entries[:12], head[:12]) {
			n := binary.LittleEndian.Uint32(entries[12:])
			if n > entrySize-entryRecord {
				return nil, fmt.Errorf("an entry of the ledger has %d bytes", n)
			}
			return entries[entryRecord:][:n:n], nil
		}
	}
	return nil, errors.New("the ledger lost an entry")
}

// MemoryLedger is a ledger for ranks of one process.
func MemoryLedger() Ledger { return &memoryLedger{list: map[Key][]byte{}} }

type memoryLedger struct {
	mu   sync.Mutex
	list map[Key][]byte
}

func (l *memoryLedger) Decide(k Key, record []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list[k] == nil {
		l.list[k] = bytes.Clone(record)
	}
	return l.list[k], nil
}

func (l *memoryLedger) Close() error { return nil }
