//go:build linux

package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// watch waits in one goroutine for the end of other processes, by their process
// descriptors, or by the sockets that were kept where there are none.
type watch struct {
	peers []*met
	ended func(rank int, why string)
	wg    sync.WaitGroup

	closing atomic.Bool
	event   int // readable once closing is set
}

func newWatch(peers []*met, ended func(rank int, why string)) (*watch, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("shm: watch the other ranks: %w", err)
	}
	w := &watch{peers: peers, ended: ended, event: event}
	fds := []unix.PollFd{{Fd: int32(event), Events: unix.POLLIN}}
	ranks := []int{-1}
	for r, m := range peers {
		if m == nil {
			continue
		}
		fd, err := m.descriptor()
		if err != nil {
			unix.Close(event)
			return nil, fmt.Errorf("shm: watch rank %d: %w", r, err)
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		ranks = append(ranks, r)
	}
	w.wg.Go(func() { w.run(fds, ranks) })
	return w, nil
}

// run reports each process once.
func (w *watch) run(fds []unix.PollFd, ranks []int) {
	for {
		_, err := unix.Poll(fds, -1)
		if w.closing.Load() {
			return
		}
		if err != nil {
			if !errors.Is(err, unix.EINTR) {
				time.Sleep(time.Millisecond) // the kernel had no memory for it
			}
			continue
		}
		for i := 1; i < len(fds); i++ {
			if fds[i].Fd < 0 || fds[i].Revents == 0 {
				continue
			}
			fds[i].Fd = -1 // poll passes over it
			w.ended(ranks[i], w.peers[ranks[i]].why())
		}
	}
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

// ending reports whether the process is ending, which can be seen by failures
// before it has ended: its memory goes first. What goes wrong with a process
// that is not ending takes a tenth of a second longer.
func (m *met) ending() bool {
	fd, err := m.descriptor()
	if err != nil {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 100)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(fds, 100)
	}
	return err == nil && n == 1
}

// descriptor is what becomes readable when the process has ended.
func (m *met) descriptor() (fd int, err error) {
	if m.pidfd >= 0 {
		return m.pidfd, nil
	}
	raw, err := m.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(s uintptr) { fd = int(s) })
	}
	return fd, err
}
