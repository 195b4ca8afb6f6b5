package xfer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// ring is io_uring by raw system calls: one for the process, filled by many and emptied by one of those who wait.
type ring struct {
	fd               int
	rings, entries   []byte
	head, tail, mask *atomic.Uint32
	array            []uint32
	cqHead, cqTail   *atomic.Uint32
	cqMask           uint32
	cqes             []completion
	sqes             []submission
	room             chan struct{} // one for each entry that is free
	turn             chan struct{} // whoever empties the ring holds it

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan int32
}

type submission struct {
	opcode, flags uint8
	prio          uint16
	fd            int32
	off           uint64
	addr          uint64
	len, rwFlags  uint32
	user          uint64
	_             [24]byte
}

type completion struct {
	user  uint64
	res   int32
	flags uint32
}

const (
	ringEntries  = 64
	opRead       = 22
	opWrite      = 23
	singleMap    = 1
	getEvents    = 1
	offsetSQEs   = 0x10000000
	ringParams   = 120
	ringSetup    = 425
	ringEnter    = 426
	ringSQOffset = 40
	ringCQOffset = 80
)

// theRing is the process's, made when it is first asked for.
var theRing = sync.OnceValues(newRing)

// newRing sets up io_uring, and says why if that is not possible. The offsets are those of the kernel's
// io_uring_params. room has one token per entry: whoever submits takes one first.
func newRing() (*ring, error) {
	var p [ringParams]byte
	fd, _, e := unix.Syscall(ringSetup, ringEntries, uintptr(unsafe.Pointer(&p)), 0)
	if e != 0 {
		if e == unix.EPERM || e == unix.ENOSYS {
			return nil, fmt.Errorf("io_uring is forbidden here (%w): a container's seccomp profile, or kernel.io_uring_disabled", e)
		}
		return nil, fmt.Errorf("io_uring: %w", e)
	}
	u32 := func(at int) uint32 { return *(*uint32)(unsafe.Pointer(&p[at])) }
	if u32(20)&singleMap == 0 {
		unix.Close(int(fd))
		return nil, errors.New("io_uring: the kernel is older than 5.4")
	}
	sqSize, cqSize := u32(ringSQOffset+24)+u32(0)*4, u32(ringCQOffset+20)+u32(4)*16
	r := &ring{fd: int(fd), waiting: map[uint64]chan int32{}, room: make(chan struct{}, u32(0)), turn: make(chan struct{}, 1)}
	var err error
	if r.rings, err = unix.Mmap(r.fd, 0, int(max(sqSize, cqSize)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE); err == nil {
		r.entries, err = unix.Mmap(r.fd, offsetSQEs, int(u32(0))*64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err != nil {
		unix.Close(r.fd)
		return nil, fmt.Errorf("io_uring: %w", err)
	}
	at := func(off uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&r.rings[off])) }
	r.head, r.tail, r.mask = at(u32(ringSQOffset)), at(u32(ringSQOffset+4)), at(u32(ringSQOffset+8))
	r.array = unsafe.Slice((*uint32)(unsafe.Pointer(&r.rings[u32(ringSQOffset+24)])), u32(0))
	r.cqHead, r.cqTail, r.cqMask = at(u32(ringCQOffset)), at(u32(ringCQOffset+4)), at(u32(ringCQOffset+8)).Load()
	r.cqes = unsafe.Slice((*completion)(unsafe.Pointer(&r.rings[u32(ringCQOffset+20)])), u32(4))
	r.sqes = unsafe.Slice((*submission)(unsafe.Pointer(&r.entries[0])), u32(0))
	for range u32(0) {
		r.room <- struct{}{}
	}
	return r, nil
}

// enter submits entries and waits for completions.
func (r *ring) enter(submit, wait int) error {
	flags := 0
	if wait > 0 {
		flags = getEvents
	}
	for {
		_, _, e := unix.Syscall6(ringEnter, uintptr(r.fd), uintptr(submit), uintptr(wait), uintptr(flags), 0, 0)
		switch e {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN, unix.EBUSY:
		default:
			return e
		}
	}
}

// do reads or writes all of p.
func (r *ring) do(f *os.File, p []byte, off int64, write bool) error {
	<-r.room
	defer func() { r.room <- struct{}{} }()
	for len(p) > 0 {
		res, err := r.one(f, p, off, write)
		switch {
		case err != nil:
			return fmt.Errorf("io_uring: %w", err)
		case res < 0 && unix.Errno(-res) == unix.EAGAIN, res < 0 && unix.Errno(-res) == unix.EINTR:
		case res < 0:
			return &os.PathError{Op: map[bool]string{true: "write", false: "read"}[write], Path: f.Name(), Err: unix.Errno(-res)}
		case res == 0 || int(res)%align != 0:
			// The file ends here, or a short write that is not aligned any more: plain calls find out.
			return through(f, p, off, write)
		default:
			p, off = p[res:], off+int64(res)
		}
	}
	return nil
}

// one submits an operation and waits for it. One of those who wait empties the ring for all.
func (r *ring) one(f *os.File, p []byte, off int64, write bool) (int32, error) {
	op := uint8(opRead)
	if write {
		op = opWrite
	}
	done := make(chan int32, 1)
	r.mu.Lock()
	r.last++
	id := r.last
	r.waiting[id] = done
	tail := r.tail.Load()
	slot := tail & r.mask.Load()
	r.sqes[slot] = submission{opcode: op, fd: int32(f.Fd()), off: uint64(off), addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))),
		len: uint32(min(len(p), 1<<30)), user: id}
	r.array[slot] = slot
	r.tail.Store(tail + 1)
	err := r.enter(1, 0)
	if err != nil { // the kernel has not taken it, and must not take it with the next one
		r.tail.Store(tail)
		delete(r.waiting, id)
	}
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	select {
	case res := <-done:
		runtime.KeepAlive(p)
		return res, nil
	case r.turn <- struct{}{}:
	}
	defer func() { <-r.turn }()
	for {
		// Nobody else takes completions now, so one comes: the own at the latest.
		select {
		case res := <-done:
			runtime.KeepAlive(p)
			return res, nil
		default:
		}
		if err := r.enter(0, 1); err != nil {
			return 0, err
		}
		r.reap()
	}
}

// reap hands completions to those who wait for them.
func (r *ring) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	head := r.cqHead.Load()
	for ; head != r.cqTail.Load(); head++ {
		c := r.cqes[head&r.cqMask]
		if w := r.waiting[c.user]; w != nil {
			delete(r.waiting, c.user)
			w <- c.res
		}
	}
	r.cqHead.Store(head)
}

// measured is what was found out about a file system, by device.
var measured struct {
	sync.Mutex
	by map[uint64]diskRates
}

type diskRates struct {
	calls, ring unit.Rate // reading and writing, 1 MiB at a time
	why         string    // neither was measured
}

// rates are those of the file system that the file is on, measured once in a process.
func (x *file) rates(r *ring) (diskRates, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(x.f.Fd()), &st); err != nil {
		return diskRates{}, err
	}
	measured.Lock()
	defer measured.Unlock()
	if measured.by == nil {
		measured.by = map[uint64]diskRates{}
	}
	m, known := measured.by[st.Dev]
	if !known {
		m = measureDisk(filepath.Dir(x.path), r)
		measured.by[st.Dev] = m
	}
	return m, nil
}

// chooseIO decides between plain calls and the ring, by what was measured on the file system.
func (x *file) chooseIO() error {
	r, err := theRing()
	switch {
	case err != nil && x.o.IO == "ring":
		return fmt.Errorf("file %s: %w: %w", x.path, ErrPath, err)
	case err != nil:
		x.way = fmt.Sprintf("calls past the page cache: %v", err)
		return nil
	case x.o.IO == "calls":
		x.way = "calls past the page cache, as demanded"
		return nil
	case x.o.IO == "ring":
		x.ring, x.way = r, "io_uring past the page cache, as demanded"
		return nil
	}
	m, err := x.rates(r)
	switch {
	case err != nil:
		return err
	case m.why != "":
		x.way = "calls past the page cache: " + m.why
	case float64(m.ring) > 1.05*float64(m.calls):
		x.ring, x.way = r, fmt.Sprintf("io_uring past the page cache: %v, calls %v", m.ring, m.calls)
	default:
		x.way = fmt.Sprintf("calls past the page cache: %v, io_uring %v", m.calls, m.ring)
	}
	return nil
}

// measureDisk writes and reads 16 MiB in a file of its own, by calls and by the ring in turns, eight at a time.
func measureDisk(dir string, r *ring) diskRates {
	const blocks, size = 16, 1 << 20
	tmp, err := os.CreateTemp(dir, ".weft-measure-*")
	if err != nil {
		return diskRates{why: "not measured, " + err.Error()}
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	f := blob.OpenDirect(tmp.Name(), os.O_RDWR)
	if f == nil {
		return diskRates{why: "not measured, no direct file"}
	}
	defer f.Close()
	if err := blob.Reserve(tmp, blocks*size); err != nil {
		return diskRates{why: "not measured, " + err.Error()}
	}
	run := func(do func(p []byte, off int64, write bool) error) (time.Duration, error) {
		began := time.Now()
		for _, write := range []bool{true, false} {
			var wg sync.WaitGroup
			var next atomic.Int64
			var failed atomic.Pointer[error]
			for range 8 {
				wg.Go(func() {
					b := getBuffer()
					defer putBuffer(b)
					for {
						i := next.Add(1) - 1
						if i >= blocks {
							return
						}
						if err := do(b[:size], i*size, write); err != nil {
							failed.Store(&err)
							return
						}
					}
				})
			}
			wg.Wait()
			if e := failed.Load(); e != nil {
				return 0, *e
			}
		}
		return time.Since(began), nil
	}
	best := [2]time.Duration{}
	for range 3 {
		for k, do := range []func(p []byte, off int64, write bool) error{
			func(p []byte, off int64, write bool) error { return through(f, p, off, write) },
			func(p []byte, off int64, write bool) error { return r.do(f, p, off, write) },
		} {
			d, err := run(do)
			if err != nil {
				return diskRates{why: "not measured, " + err.Error()}
			}
			if best[k] == 0 || d < best[k] {
				best[k] = d
			}
		}
	}
	rate := func(d time.Duration) unit.Rate { return unit.Rate(2 * blocks * size / d.Seconds()) }
	return diskRates{calls: rate(best[0]), ring: rate(best[1])}
}
