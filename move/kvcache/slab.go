package kvcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/zeebo/xxh3"
)

var errDamaged = errors.New("checksum does not fit")

// slab is a file of slots of one size, each with a head:
//
//	8 magic   8 generation   32 name   8 size   8 checksum of the data   8 checksum of the head
//
// The generation is that of the slab's index (index.go). A slot of another generation, of another name, or whose checksums
// do not fit, holds nothing, whatever the index says.
type slab struct {
	f     *os.File
	slots int
	slot  int64 // bytes, with the head
	index *index
	free  []int
	// gone are slots that were emptied since the index was written last. The cache's lock guards free and gone.
	gone []entry
}

const (
	slabMagic = 0x77656674_6b763031 // "weftkv01"
	headBytes = 72
	headRoom  = 4096 // the data begins at a page
)

func newGeneration() uint64 { return rand.Uint64() | 1 }

// openSlab opens a slab and gives the blocks that are in it. One with an error can be read from and not written to.
func openSlab(path string, size, block int64) (*slab, []entry, error) {
	s := &slab{slot: headRoom + (block+4095)/4096*4096}
	if s.slots = int(size / s.slot); s.slots < 1 {
		return nil, nil, fmt.Errorf("slab %s of %v is too small for a block of %v", path, unit.Bytes(size), unit.Bytes(block))
	}
	// A folder is not made: where a disk is not mounted its blocks would fill another one.
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, nil, fmt.Errorf("slab %s: %w; make the folder, or mount the disk", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("slab: %w", err)
	}
	s.f = f
	list, err := s.begin(path)
	if s.index == nil {
		f.Close()
		return nil, nil, err
	}
	used := make(map[int]bool, len(list))
	for _, e := range list {
		used[e.slot] = true
	}
	for i := s.slots - 1; i >= 0; i-- {
		if !used[i] {
			s.free = append(s.free, i)
		}
	}
	return s, list, err
}

// begin locks and checks the file, and replays its index. Without an index the slab is of no use.
func (s *slab) begin(path string) ([]entry, error) {
	if err := syscall.Flock(int(s.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("slab %s: another cache uses it: %w", path, err)
	}
	info, err := s.f.Stat()
	if err == nil {
		err = foreign(s.f)
	}
	if err != nil {
		return nil, fmt.Errorf("slab %s: %w", path, err)
	}
	if err := reserve(s.f, s.size()); err != nil {
		return nil, fmt.Errorf("slab %s of %v: %w; make it smaller, or free space", path, unit.Bytes(s.size()), err)
	}
	var list []entry
	if s.index, list, err = openIndex(path+".index", s.slots, s.slot, info.Size() == 0); err != nil {
		err = fmt.Errorf("slab %s: its index %s.index: %w", path, path, err)
	}
	return list, err
}

// foreign refuses a file that was something else before: it would be overwritten. A slab begins with a slot's head, or with noughts where
// its first slot was never written.
func foreign(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is no plain file")
	}
	first := make([]byte, headRoom)
	n, err := f.ReadAt(first, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n >= 8 && binary.LittleEndian.Uint64(first) == slabMagic {
		return nil
	}
	for _, b := range first[:n] {
		if b != 0 {
			return errors.New("it holds something that is no slab of a kv cache, and would be overwritten; remove it, or name another file")
		}
	}
	return nil
}

// reserve takes the disk space of the slab. A file that has more keeps it.
func reserve(f *os.File, size int64) error {
	if err := blob.Reserve(f, size); err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < size { // of a file system that reserves nothing
		err = f.Truncate(size)
	}
	return err
}

func (s *slab) size() int64 { return int64(s.slots) * s.slot }

// close syncs what is there. It is called when nobody uses the slab any more.
func (s *slab) close(broken bool) {
	if !broken && s.f.Sync() == nil && s.index.write(s.gone...) == nil {
		s.index.f.Sync() //nolint:errcheck // what is lost is a miss
	}
	s.index.close()
	s.f.Close()
}

// take and give are called under the cache's lock. There is always a free slot where the trees have room.
func (s *slab) take() int {
	n := len(s.free) - 1
	slot := s.free[n]
	s.free = s.free[:n]
	return slot
}

func (s *slab) give(slot int) {
	s.free = append(s.free, slot)
	s.gone = append(s.gone, entry{slot: slot})
}

// emptied gives the slots to record as empty before the next write.
func (s *slab) emptied() []entry {
	list := s.gone
	s.gone = nil
	return list
}

func (s *slab) head(name kv.Hash, size int, sum uint64) []byte {
	b := make([]byte, headBytes)
	binary.LittleEndian.PutUint64(b, slabMagic)
	binary.LittleEndian.PutUint64(b[8:], s.index.generation)
	copy(b[16:], name[:])
	binary.LittleEndian.PutUint64(b[48:], uint64(size))
	binary.LittleEndian.PutUint64(b[56:], sum)
	binary.LittleEndian.PutUint64(b[64:], xxh3.Hash(b[:64]))
	return b
}

// write fills a slot, after the index says which slots are empty: data first, then the head, then the index. One goroutine writes.
func (s *slab) write(e entry, data []byte, emptied []entry) error {
	if err := s.index.write(emptied...); err != nil {
		return err
	}
	if _, err := s.f.WriteAt(data, int64(e.slot)*s.slot+headRoom); err != nil {
		return err
	}
	if _, err := s.f.WriteAt(s.head(e.key, e.size, e.sum), int64(e.slot)*s.slot); err != nil {
		return err
	}
	return s.index.write(e)
}

// read gives what write wrote, or an error.
func (s *slab) read(slot int, name kv.Hash, size int, sum uint64) ([]byte, error) {
	b := make([]byte, headRoom+size)
	if _, err := s.f.ReadAt(b, int64(slot)*s.slot); err != nil {
		return nil, err
	}
	if want := s.head(name, size, sum); string(b[:headBytes]) != string(want) {
		return nil, fmt.Errorf("slot %d: its head is not that of %s: %w", slot, name, errDamaged)
	}
	if data := b[headRoom:]; xxh3.Hash(data) == sum {
		return data, nil
	}
	return nil, fmt.Errorf("slot %d, block %s: %w", slot, name, errDamaged)
}
