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
// A generation is one life of the cache. A slot of another generation, of another name, or whose checksums do not
// fit, holds nothing. So nothing needs to be synchronised: after a crash the slab is empty.
type slab struct {
	f          *os.File
	slots      int
	slot       int64 // bytes, with the head
	generation uint64
	free       []int
}

const (
	slabMagic = 0x77656674_6b763031 // "weftkv01"
	headBytes = 72
	headRoom  = 4096 // the data begins at a page
)

func newGeneration() uint64 { return rand.Uint64() | 1 }

func openSlab(path string, size, block int64) (*slab, error) {
	s := &slab{slot: headRoom + (block+4095)/4096*4096, generation: newGeneration()}
	if s.slots = int(size / s.slot); s.slots < 1 {
		return nil, fmt.Errorf("slab %s of %v is too small for a block of %v", path, unit.Bytes(size), unit.Bytes(block))
	}
	// A folder is not made: where a disk is not mounted its blocks would fill another one.
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("slab %s: %w; make the folder, or mount the disk", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("slab: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("slab %s: another cache uses it: %w", path, err)
	}
	if err := foreign(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("slab %s: %w", path, err)
	}
	if err := reserve(f, s.size()); err != nil {
		f.Close()
		return nil, fmt.Errorf("slab %s of %v: %w; make it smaller, or free space", path, unit.Bytes(s.size()), err)
	}
	s.f = f
	for i := range s.slots {
		s.free = append(s.free, s.slots-1-i)
	}
	return s, nil
}

// foreign refuses a file that was something else before: it would be overwritten. A slab begins with a slot's head, or with noughts where its first
// slot was never written.
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

func (s *slab) close() { s.f.Close() }

// take and give are called under the cache's lock. There is always a free slot where the trees have room.
func (s *slab) take() int {
	n := len(s.free) - 1
	slot := s.free[n]
	s.free = s.free[:n]
	return slot
}

func (s *slab) give(slot int) { s.free = append(s.free, slot) }

func (s *slab) head(name kv.Hash, size int, sum uint64) []byte {
	b := make([]byte, headBytes)
	binary.LittleEndian.PutUint64(b, slabMagic)
	binary.LittleEndian.PutUint64(b[8:], s.generation)
	copy(b[16:], name[:])
	binary.LittleEndian.PutUint64(b[48:], uint64(size))
	binary.LittleEndian.PutUint64(b[56:], sum)
	binary.LittleEndian.PutUint64(b[64:], xxh3.Hash(b[:64]))
	return b
}

// write fills a slot: data first, then the head.
func (s *slab) write(slot int, name kv.Hash, data []byte, sum uint64) error {
	if _, err := s.f.WriteAt(data, int64(slot)*s.slot+headRoom); err != nil {
		return err
	}
	_, err := s.f.WriteAt(s.head(name, len(data), sum), int64(slot)*s.slot)
	return err
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
