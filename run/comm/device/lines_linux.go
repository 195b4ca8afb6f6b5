package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
)

// lines are two words of each rank, in memory that the processes and their GPUs share: the number of the last operation whose
// input is complete, and of the last whose passes are done. GPUs write them and wait for them, so that no host needs to.
//
// A GPU only ever waits for what is queued already on another: an operation is entered before it is waited for. So a rank whose
// driver keeps all calls waiting until its streams are idle, as it does when a stream is made or memory is freed, waits for GPUs
// alone, never for the host of another rank. And the host can let go of all waits, by writing the words itself, when a rank dies.
type lines struct {
	page []byte
	fd   int // rank 0's
}

const lineSize, linesSize = 64, 64 * (2*ptx.Most + 1)

func (l *lines) in(rank int) *uint32 { return (*uint32)(unsafe.Pointer(&l.page[2*lineSize*rank])) }
func (l *lines) out(rank int) *uint32 {
	return (*uint32)(unsafe.Pointer(&l.page[2*lineSize*rank+lineSize]))
}

// cut is not zero once a rank has let go of all waits.
func (l *lines) cut() *uint32 { return (*uint32)(unsafe.Pointer(&l.page[linesSize-lineSize])) }

// has reports whether a word holds a number, or one up to 2^31 above it.
func (l *lines) has(word *uint32, n uint32) bool { return int32(atomic.LoadUint32(word)-n) >= 0 }

func (l *lines) set(word *uint32, n uint32) { atomic.StoreUint32(word, n) }

// first sets a word that nobody has set.
func (l *lines) first(word *uint32, n uint32) { atomic.CompareAndSwapUint32(word, 0, n) }

func (l *lines) get(word *uint32) uint32 { return atomic.LoadUint32(word) }

// newLines makes them: rank 0 the memory, which the others map. If one rank cannot, or its GPU cannot wait for words, none has
// them.
func newLines(ctx context.Context, g *Group) (*lines, error) {
	l := &lines{fd: -1}
	var failed error
	path := make([]byte, 64)
	if g.Rank() == 0 {
		if l.fd, failed = unix.MemfdCreate("weft-lines", unix.MFD_CLOEXEC); failed == nil {
			failed = unix.Ftruncate(l.fd, linesSize)
			copy(path, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.fd))
		}
	}
	if err := comm.Broadcast(ctx, g.c, path, 0); err != nil {
		return nil, err
	}
	if failed == nil {
		failed = l.open(g, string(bytes.TrimRight(path, "\x00")))
	}
	verdict := []int32{0}
	if failed != nil {
		verdict[0] = 1
	}
	if err := comm.AllReduce(ctx, g.c, verdict, comm.Max); err != nil {
		return nil, err
	}
	if verdict[0] == 0 {
		return l, nil
	}
	if failed != nil && g.cfg.Log != nil {
		g.cfg.Log.Warn("GPUs do not wait for one another here: hosts wait for them", "rank", g.Rank(), "why", failed)
	}
	return nil, l.close(g.dev)
}

// open maps the page of words that the GPUs of a host wait for, and registers it with the driver. If it fails on one
// rank, no rank uses the page, and the group does without.
func (l *lines) open(g *Group, path string) error {
	if !g.gpuQ.Posts() {
		return errors.New("the driver lets no stream wait for a word")
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	page, err := unix.Mmap(fd, 0, linesSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if err := g.dev.Register(page); err != nil {
		return errors.Join(err, unix.Munmap(page))
	}
	l.page = page
	return nil
}

func (l *lines) close(dev gpu.Device) error {
	var errs []error
	if l.page != nil {
		errs = append(errs, dev.Unregister(l.page), unix.Munmap(l.page))
	}
	if l.fd >= 0 {
		errs = append(errs, unix.Close(l.fd))
	}
	return errors.Join(errs...)
}

// gone reports whether a process has ended, also if nobody has asked for how yet.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return len(rest) > 0 && (rest[0] == 'Z' || rest[0] == 'X')
}
