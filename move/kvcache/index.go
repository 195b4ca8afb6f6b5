package kvcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/zeebo/xxh3"
)

// index is the journal of a slab, in a file next to it: which block is in which slot. It begins with a head, and each write or eviction
// appends a record. All numbers are little-endian.
//
//	head:    8 magic   8 version   8 generation   8 slots   8 bytes per slot   8 first number   24 zeros   8 checksum
//	record:  8 number   8 slot   8 owner   32 name   8 size, 0 if the slot is empty   8 checksum of the data   8 checksum
//
// Numbers are consecutive, and checksums of records are seeded with the generation. Replay passes over records that do not fit, as a
// torn tail: what it then believes wrongly of a slot, the slot's own head denies. A record follows the bytes that it describes, and the
// record that empties a slot precedes the next bytes in it, so a killed process leaves an index that is true. Nothing is synced before
// Close: after a power failure the index may be ahead of the slots, whose own heads and checksums tell.
type index struct {
	path       string
	f          *os.File
	generation uint64
	slots      int
	slot       int64
	next       uint64 // number of the next record
	records    int    // in the file
	lost       int    // records that did not fit when it was opened; -1: its head did not
}

// entry is a record: a block in a slot.
type entry struct {
	slot  int
	owner uint64 // the tenant
	key   kv.Hash
	size  int
	sum   uint64
}

const (
	indexMagic   = 0x77656674_6b766931 // "weftkvi1"
	indexVersion = 1
	recordBytes  = 80
)

var errNoIndex = errors.New("it holds something that is no index of a kv cache, and would be overwritten; remove it, or name another file for the slab")

// openIndex replays the journal of a slab with that geometry. One of another geometry or version, or of a slab that is gone (fresh), is
// begun anew. The entries are in the order in which they were written. An index with an error can be read from and not written to.
func openIndex(path string, slots int, slot int64, fresh bool) (*index, []entry, error) {
	x := &index{path: path, generation: newGeneration(), slots: slots, slot: slot}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return x, nil, err
	}
	if len(text) >= 8 && binary.LittleEndian.Uint64(text) != indexMagic {
		return nil, nil, errNoIndex
	}
	var list []entry
	if g, first, ok := x.parseHead(text); ok && !fresh {
		x.generation = g
		list, x.next, x.lost = x.replay(text[recordBytes:], first)
	} else if len(text) > 0 && !fresh {
		x.lost = -1
	}
	return x, list, x.rewrite(list)
}

func (x *index) head() []byte {
	b := make([]byte, recordBytes)
	for i, v := range []uint64{indexMagic, indexVersion, x.generation, uint64(x.slots), uint64(x.slot), x.next} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	binary.LittleEndian.PutUint64(b[recordBytes-8:], xxh3.Hash(b[:recordBytes-8]))
	return b
}

// parseHead gives the generation and the first record's number, if the head is whole and of this geometry.
func (x *index) parseHead(text []byte) (generation, first uint64, ok bool) {
	if len(text) < recordBytes {
		return 0, 0, false
	}
	like := *x
	like.generation, like.next = binary.LittleEndian.Uint64(text[16:]), binary.LittleEndian.Uint64(text[40:])
	return like.generation, like.next, string(like.head()) == string(text[:recordBytes])
}

func (x *index) append(to []byte, e entry) []byte {
	at := len(to)
	to = binary.LittleEndian.AppendUint64(to, x.next)
	to = binary.LittleEndian.AppendUint64(to, uint64(e.slot))
	to = binary.LittleEndian.AppendUint64(to, e.owner)
	to = append(to, e.key[:]...)
	to = binary.LittleEndian.AppendUint64(to, uint64(e.size))
	to = binary.LittleEndian.AppendUint64(to, e.sum)
	x.next++
	return binary.LittleEndian.AppendUint64(to, xxh3.HashSeed(to[at:], x.generation))
}

// replay gives the blocks that are there after all records, the number of the next one, and how many whole records did not fit.
func (x *index) replay(b []byte, next uint64) (list []entry, _ uint64, lost int) {
	var all []entry
	last := make(map[int]int, x.slots) // of a slot, in all
	for ; len(b) >= recordBytes; b, next = b[recordBytes:], next+1 {
		r := b[:recordBytes]
		e := entry{owner: binary.LittleEndian.Uint64(r[16:]), sum: binary.LittleEndian.Uint64(r[64:])}
		slot, size := binary.LittleEndian.Uint64(r[8:]), binary.LittleEndian.Uint64(r[56:])
		if binary.LittleEndian.Uint64(r) != next ||
			xxh3.HashSeed(r[:recordBytes-8], x.generation) != binary.LittleEndian.Uint64(r[recordBytes-8:]) ||
			slot >= uint64(x.slots) || size > uint64(x.slot-headRoom) {
			lost++
			continue
		}
		e.slot, e.size = int(slot), int(size)
		copy(e.key[:], r[24:])
		last[e.slot] = len(all)
		all = append(all, e)
	}
	for i, e := range all {
		if last[e.slot] == i && e.size > 0 {
			list = append(list, e)
		}
	}
	return list, next, lost
}

// rewrite replaces the file by one that holds these entries alone.
func (x *index) rewrite(list []entry) error {
	text := x.head()
	for _, e := range list {
		text = x.append(text, e)
	}
	f, err := os.OpenFile(x.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(x.path+".new", x.path)
	}
	if err != nil {
		f.Close()
		os.Remove(x.path + ".new")
		return err
	}
	x.close()
	x.f, x.records = f, len(list)
	dir, err := os.Open(filepath.Dir(x.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// write appends records. Where most of the file is out of date it is written anew.
func (x *index) write(list ...entry) error {
	if len(list) == 0 {
		return nil
	}
	if x.records+len(list) > 4*x.slots+1024 {
		text, err := os.ReadFile(x.path)
		if err != nil {
			return err
		}
		_, first, ok := x.parseHead(text)
		if !ok {
			return fmt.Errorf("%s: its head: %w", x.path, errDamaged)
		}
		live, _, _ := x.replay(text[recordBytes:], first)
		if err := x.rewrite(live); err != nil {
			return err
		}
	}
	var text []byte
	for _, e := range list {
		text = x.append(text, e)
	}
	x.records += len(list)
	_, err := x.f.Write(text)
	return err
}

func (x *index) close() {
	if x.f != nil {
		x.f.Close()
	}
}
