//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
)

// worker is UCX's worker of a rank: the lock under which all of UCX is called, its requests, and what callbacks leave to
// be done. It knows of no peer and of no message.
type worker struct {
	lib   *library
	efd   int            // UCX's descriptor: readable when there is something to do
	users sync.WaitGroup // calls under way

	mu      sync.Mutex // guards everything below, everything of the parts above, and all of UCX
	context uintptr
	handle  uintptr
	closed  bool
	inside  bool // of a callback
	moved   bool // since the lock was taken
	bell    bell
	slots   slots
	todo    []func() // for when UCX has returned
	flying  []*slot  // requests that nobody waits for
	swept   func()   // ends what the parts above have left to UCX
}

// bell wakes those that sleep. The worker's lock guards it.
type bell struct {
	kick    int  // an event descriptor that ends a sleep
	asleep  bool // somebody sleeps on the descriptors
	parked  int  // sleep until changed is closed
	changed chan struct{}
}

// newWorker starts UCX.
func newWorker(c Config, lib *library) (*worker, error) {
	w := &worker{lib: lib, swept: func() {}, bell: bell{kick: -1, changed: make(chan struct{})}}
	m := page()
	defer m.free()
	if err := lib.status("ucp_config_read", 0, 0, m.at()); err != nil {
		return nil, fmt.Errorf("ucx: %w", err)
	}
	config := m.pointer(0)
	defer lib.call("ucp_config_release", config)
	if here, err := lib.transports(); err == nil {
		if err := missing(c.Transports, here); err != nil {
			return nil, err
		}
	}
	alive := c.Alive
	if alive == 0 {
		alive = time.Second
	}
	options := [][2]string{
		{"KEEPALIVE_INTERVAL", fmt.Sprintf("%dms", max(alive.Milliseconds(), 1))},
		{"ATOMIC_MODE", "cpu"},                       // atomics of network cards and of processors do not see one another
		{"ALLOC_PRIO", "md:sysv,md:posix,md:*,mmap"}, // what is new and zeroed
	}
	if len(c.Transports) > 0 {
		options = append(options, [2]string{"TLS", strings.Join(append(slices.Clone(c.Transports), "self"), ",")})
	}
	if slices.Equal(c.Transports, []string{"tcp"}) {
		options = append(options, overTCP(cmp.Or(c.Machine, c.Size) > runtime.NumCPU())...)
	}
	for _, o := range options {
		name, value := cstring(o[0]), cstring(o[1])
		err := lib.status("ucp_config_modify", config, name.at(), value.at())
		name.free()
		value.free()
		if err != nil && o[0] == "TLS" {
			return nil, fmt.Errorf("ucx: transports %s: %w", o[1], err)
		}
	}
	const features = 2 | 8 | 16 | 64 // one-sided, 64-bit atomics, wake-up, active messages
	m.set(0, 1|1<<6)
	m.set(8, features)
	m.set(56, uintptr(c.Size))
	if err := lib.status("ucp_init_version", 1, least, m.at(), config, m.at()+512); err != nil {
		why := ""
		if len(c.Transports) > 0 {
			why = fmt.Sprintf(" with transports %s (ucx_info -d lists those of this machine)", strings.Join(c.Transports, ", "))
		}
		return nil, fmt.Errorf("ucx: start%s: %w", why, err)
	}
	w.context = m.pointer(512)
	clear(m.b)
	const serialized = 1
	m.set(0, 1)
	m.setU32(8, serialized)
	if err := lib.status("ucp_worker_create", w.context, m.at(), m.at()+512); err != nil {
		w.free()
		return nil, fmt.Errorf("ucx: %w", err)
	}
	w.handle = m.pointer(512)
	if err := lib.status("ucp_worker_get_efd", w.handle, m.at()); err != nil {
		w.free()
		return nil, fmt.Errorf("ucx: no transport can wake a sleeper: %w", err)
	}
	w.efd = int(int32(m.u32(0)))
	var err error
	if w.bell.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		w.free()
		return nil, fmt.Errorf("ucx: %w", err)
	}
	return w, nil
}

// overTCP are settings for sockets alone: buffers that hold several pieces of a message, so that the ends take fewer turns. UCX asks before
// it sends a long message, piece by piece; where ranks outnumber cores each turn waits for one, so messages up to 8 MiB are sent at once
// there. That takes a copy more: with a core for each rank it halves the bandwidth (2.1 against 5.0 GB/s, 2026-11-17). What the environment
// says stays.
func overTCP(crowded bool) (list [][2]string) {
	options := [][2]string{{"TCP_SNDBUF", "4m"}, {"TCP_RCVBUF", "4m"}}
	if crowded {
		options = append(options, [2]string{"RNDV_THRESH", "8m"})
	}
	for _, o := range options {
		if os.Getenv("UCX_"+o[0]) == "" {
			list = append(list, o)
		}
	}
	return list
}

// listen has messages told to a callback, with a number to know the worker by.
func (w *worker) listen(callback, id uintptr) error {
	m := page()
	defer m.free()
	m.set(0, 1|2|4|8)
	m.setU32(8, 0)
	m.setU32(12, 1) // whole messages
	m.set(16, callback)
	m.set(24, id)
	if err := w.lib.status("ucp_worker_set_am_recv_handler", w.handle, m.at()); err != nil {
		return fmt.Errorf("ucx: %w", err)
	}
	return nil
}

// address is where the worker is found.
func (w *worker) address() ([]byte, error) {
	m := page()
	defer m.free()
	if err := w.lib.status("ucp_worker_get_address", w.handle, m.at(), m.at()+8); err != nil {
		return nil, fmt.Errorf("ucx: %w", err)
	}
	b := append([]byte(nil), bytesAt(m.pointer(0), int(m.u64(8)))...)
	w.lib.call("ucp_worker_release_address", w.handle, m.pointer(0))
	return b, nil
}

// enter begins a call; it is an error if the endpoint is closed.
func (w *worker) enter() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return transport.ErrClosed
	}
	w.users.Add(1)
	return nil
}

func (w *worker) leave() { w.users.Done() }

// unlock gives the lock back, and wakes those that sleep if something has changed.
func (w *worker) unlock() {
	if w.moved {
		w.moved = false
		if w.bell.asleep {
			one := [8]byte{1}
			_, _ = unix.Write(w.bell.kick, one[:])
		}
		if w.bell.parked > 0 {
			w.bell.parked = 0
			close(w.bell.changed)
			w.bell.changed = make(chan struct{})
		}
	}
	w.mu.Unlock()
}

// progress lets UCX work, and then does what its callbacks left to be done; the caller holds the lock.
func (w *worker) progress(times uintptr) bool {
	n, _, _ := purego.SyscallN(w.lib.many, w.handle, w.lib.progress, times)
	if int32(n) == 0 && len(w.todo) == 0 {
		return false
	}
	w.moved = true
	w.settle()
	return true
}

// settle does what callbacks left, as nothing of UCX is called in one.
func (w *worker) settle() {
	for len(w.todo) > 0 {
		do := w.todo
		w.todo = nil
		for _, f := range do {
			f()
		}
	}
	w.swept()
	if len(w.flying) > 0 {
		rest := w.flying[:0]
		for _, s := range w.flying {
			if s.ended() {
				w.put(s)
			} else {
				rest = append(rest, s)
			}
		}
		clear(w.flying[len(rest):])
		w.flying = rest
	}
}

// later has something done once UCX has returned.
func (w *worker) later(f func()) { w.todo = append(w.todo, f) }

// forget leaves a request to itself.
func (w *worker) forget(s *slot) {
	if s.ended() {
		w.put(s)
	} else {
		w.flying = append(w.flying, s)
	}
}

// free gives everything back to UCX. Nothing may be called afterwards.
func (w *worker) free() {
	if w.handle != 0 {
		w.lib.call("ucp_worker_destroy", w.handle)
	}
	if w.context != 0 {
		w.lib.call("ucp_cleanup", w.context)
	}
	w.handle, w.context = 0, 0
	for _, m := range w.slots.chunks {
		m.free()
	}
	w.slots = slots{}
	if w.bell.kick >= 0 {
		unix.Close(w.bell.kick)
		w.bell.kick = -1
	}
}
