//go:build linux

package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// watch waits in one goroutine for the end of other processes, by their process
// descriptors, or by the sockets that were kept where there are none.
//
// Few ranks watch one another all. Many would need a descriptor for each pair: a rank watches those that are 1, 2, 4 and so on ranks
// behind it, and the next that lives for each of them that is gone. So the last that lives before a rank always watches it. Who
// sees an end tells all by a word of shared memory.
type watch struct {
	e  *Endpoint
	wg sync.WaitGroup

	closing atomic.Bool
	event   int // readable once closing is set
}

const (
	watchAll  = 9                      // ranks that watch one another all
	leftAfter = 500 * time.Millisecond // how often it is looked whether a rank has left that is watched: it watches nobody any more
)

// newWatch begins to watch the other processes, by descriptors that cannot be confused with a later process of the same
// number. A rank that is gone already is found by the watch.
func newWatch(e *Endpoint) (*watch, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("shm: watch the other ranks: %w", err)
	}
	w := &watch{e: e, event: event}
	ranks := w.targets()
	for _, r := range ranks {
		if err := e.peers[r].open(); err != nil && !errors.Is(err, unix.ESRCH) {
			unix.Close(event)
			return nil, fmt.Errorf("shm: watch rank %d: %w", r, err)
		}
	}
	w.wg.Go(w.run)
	return w, nil
}

// targets are the ranks whose processes are to be watched.
func (w *watch) targets() (ranks []int) {
	e := w.e
	gone := func(r int) bool { return e.gone[r].Load() != nil || e.Hub.Left(r) || e.ended(r).Load() != 0 }
	if e.size <= watchAll || slices.ContainsFunc(e.peers, func(m *met) bool { return m != nil && m.began == 0 }) {
		for r, m := range e.peers {
			if m != nil && e.gone[r].Load() == nil {
				ranks = append(ranks, r)
			}
		}
		return ranks
	}
	for far := 1; far < e.size; far *= 2 {
		r := (e.rank + far) % e.size
		for r != e.rank && (gone(r) || slices.Contains(ranks, r)) {
			r = (r + 1) % e.size
		}
		if r != e.rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// run reports each process once.
func (w *watch) run() {
	limit := -1
	if w.e.size > watchAll {
		limit = int(leftAfter / time.Millisecond)
	}
	for !w.closing.Load() {
		fds := []unix.PollFd{{Fd: int32(w.event), Events: unix.POLLIN}}
		ranks := []int{-1}
		again := false
		for _, r := range w.targets() {
			fd, err := w.e.peers[r].descriptor()
			switch {
			case errors.Is(err, unix.ESRCH):
				w.ended(r)
				again = true
			case err != nil: // too many files: it is tried again
				again = true
				time.Sleep(time.Millisecond)
			default:
				fds, ranks = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}), append(ranks, r)
			}
		}
		if again {
			continue
		}
		if _, err := unix.Poll(fds, limit); err != nil {
			if !errors.Is(err, unix.EINTR) {
				time.Sleep(time.Millisecond) // the kernel had no memory for it
			}
			continue
		}
		for i := 1; i < len(fds); i++ {
			if fds[i].Revents != 0 && !w.closing.Load() {
				w.ended(ranks[i])
			}
		}
	}
}

// ended tells all that a process has ended.
func (w *watch) ended(rank int) {
	w.e.lost(rank, w.e.peers[rank].why())
	w.e.ended(rank).Store(1)
}

// close ends the watch; the descriptors of the peers stay open.
func (w *watch) close() {
	w.closing.Store(true)
	one := [8]byte{1}
	_, _ = unix.Write(w.event, one[:])
	w.wg.Wait()
	unix.Close(w.event)
}

// why says what happened to a peer whose process has ended.
func (m *met) why() string {
	if m.pid > 0 {
		return fmt.Sprintf("process %d ended", m.pid)
	}
	return "its process ended"
}

// over reports whether reading the memory of the process failed because it ends. One without any has given it back, however long the
// rest takes on a busy host.
func (m *met) over(err error) bool { return errors.Is(err, unix.ESRCH) || m.ending() }

// ending reports whether the process is ending, which can be seen by failures
// before it has ended: its memory goes first. What goes wrong with a process
// that is not ending takes a tenth of a second longer.
func (m *met) ending() bool {
	own := met{conn: m.conn, pid: m.pid, began: m.began, pidfd: -1} // the watch may be opening or closing m's
	fd, err := own.descriptor()
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	if own.pidfd >= 0 {
		defer unix.Close(own.pidfd)
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 100)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(fds, 100)
	}
	return err == nil && n == 1
}

// open gets a descriptor of the process, if it is not watched by its socket; ESRCH if it has ended.
func (m *met) open() error {
	if m.pidfd >= 0 || m.began == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		return err
	}
	if began(m.pid) != m.began { // another process has its number now
		unix.Close(fd)
		return unix.ESRCH
	}
	m.pidfd = fd
	return nil
}

// descriptor is what becomes readable when the process has ended.
func (m *met) descriptor() (fd int, err error) {
	if m.began != 0 {
		err = m.open()
		return m.pidfd, err
	}
	raw, err := m.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(s uintptr) { fd = int(s) })
	}
	return fd, err
}
