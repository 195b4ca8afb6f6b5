//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

const (
	looks    = 32                     // calls of progress in one call of C: one through purego takes longer than several of them
	lookTime = 100 * time.Microsecond // a wait looks for about this long before it sleeps
	idleTime = time.Millisecond       // and the keeper takes over after nobody has waited for this long
)

// waiter lets ranks wait: whoever waits makes progress, and sleeps on UCX's descriptor. It watches the processes of this
// machine, and has a keeper that makes progress when nobody waits.
type waiter struct {
	*inbox
	backoff wait.Backoff
	waits   atomic.Uint64 // how many have begun

	role    sync.Mutex // of sleeping on the descriptors
	fds     []unix.PollFd
	watched []int // the ranks of fds, from the third on

	patience time.Duration // Config.Patience

	ending atomic.Bool
	keeper sync.WaitGroup
	stop   chan struct{}
}

func newWaiter(b *inbox, ranks int) *waiter {
	w := &waiter{inbox: b, stop: make(chan struct{})}
	w.backoff.Ranks = ranks
	w.fds = []unix.PollFd{{Fd: int32(b.efd), Events: unix.POLLIN}, {Fd: int32(b.bell.kick), Events: unix.POLLIN}}
	return w
}

// attend watches a process of this machine for its end; false if it cannot be.
func (w *waiter) attend(rank, pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	w.fds = append(w.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	w.watched = append(w.watched, rank)
	return true
}

// await waits until done says so, which is asked with the lock held. It spins, yields, and then sleeps until UCX
// has something to do, asking stop as often as transport.Stop says.
func (w *waiter) await(stop transport.Stop, done func() (bool, error)) error {
	w.waits.Add(1)
	var since, slept time.Time
	for round := 0; ; round++ {
		w.mu.Lock()
		moved := w.progress(looks)
		ok, err := done()
		if !ok && err == nil && round > 0 {
			w.takeIn() // whoever sends it may be what this waits for
		}
		w.unlock()
		if ok || err != nil {
			if !slept.IsZero() {
				w.backoff.Slept(time.Since(slept))
			}
			return err
		}
		if moved {
			if round%64 == 63 { // what moves may be the end of a connection, again and again
				w.look()
				if stop != nil {
					if err := stop(); err != nil {
						return err
					}
				}
			}
			continue
		}
		if slept.IsZero() {
			now := time.Now()
			if since.IsZero() {
				since = now
			}
			if now.Sub(since) < w.backoff.LookFor(lookTime) {
				w.backoff.Yield() // unless others want the core: then it learns so, and sleeps sooner
				continue
			}
			slept = now
		}
		if stop != nil {
			if err := stop(); err != nil {
				return err
			}
		}
		w.sleep(wait.Slice, done)
	}
}

// sleep returns when something has changed, or after a while.
func (w *waiter) sleep(most time.Duration, done func() (bool, error)) {
	if !w.role.TryLock() {
		w.mu.Lock()
		if ok, err := done(); ok || err != nil {
			w.unlock()
			return
		}
		w.bell.parked++
		changed := w.bell.changed
		w.unlock()
		t := time.NewTimer(most)
		select {
		case <-changed:
		case <-t.C:
		}
		t.Stop()
		return
	}
	w.doze(most, done)
	w.role.Unlock()
	// Who parked meanwhile may take its turn.
	w.mu.Lock()
	w.moved = w.moved || w.bell.parked > 0
	w.unlock()
}

// doze arms the worker and sleeps on its descriptor; the caller has the role.
func (w *waiter) doze(most time.Duration, done func() (bool, error)) {
	w.mu.Lock()
	if done != nil {
		if ok, err := done(); ok || err != nil {
			w.unlock()
			return
		}
	}
	r, _, _ := purego.SyscallN(w.lib.arm, w.handle)
	if int32(r) != 0 { // busy: there is something to do, and there may be without end
		if n, err := unix.Poll(w.fds[2:], 0); err == nil && n > 0 {
			w.watch()
		}
		w.progress(looks)
		w.unlock()
		return
	}
	w.bell.asleep = true
	w.unlock()
	n, err := unix.Poll(w.fds, int(most/time.Millisecond))
	w.mu.Lock()
	w.bell.asleep = false
	if err == nil && n > 0 {
		if w.fds[1].Revents != 0 {
			var b [8]byte
			_, _ = unix.Read(w.bell.kick, b[:])
		}
		w.watch()
	}
	w.progress(looks)
	w.unlock()
}

// look notes the processes that have ended, if nobody sleeps for that.
func (w *waiter) look() {
	if len(w.watched) == 0 || !w.role.TryLock() {
		return
	}
	defer w.role.Unlock()
	if n, err := unix.Poll(w.fds[2:], 0); err == nil && n > 0 {
		w.mu.Lock()
		w.watch()
		w.unlock()
	}
}

// watch notes the processes that poll has seen end; the caller has the role and the lock.
func (w *waiter) watch() {
	for i := 2; i < len(w.fds); i++ {
		if w.fds[i].Fd >= 0 && w.fds[i].Revents != 0 {
			unix.Close(int(w.fds[i].Fd))
			w.fds[i].Fd = -1 // poll passes over it
			w.ended(w.watched[i-2])
		}
	}
}

// ended notes that the process of a rank of this machine is no more, once all that it sent has been looked at.
func (w *waiter) ended(rank int) {
	for i := 0; i < 1000 && w.progress(1); i++ {
	}
	p := w.peers[rank]
	p.ended = true
	w.lost(p, fmt.Sprintf("process %d ended", p.pid))
}

func (w *waiter) run() { w.keeper.Go(w.keep) }

// keep is the keeper: it makes progress when nobody else does.
func (w *waiter) keep() {
	seen := ^uint64(0)
	for tick := 0; !w.ending.Load(); tick++ {
		if now := w.waits.Load(); now != seen || !w.role.TryLock() {
			seen = now
			if tick%16 == 15 { // those that wait may never sleep, nor look
				w.look()
			}
			select {
			case <-w.stop:
				return
			case <-time.After(idleTime):
			}
			continue
		}
		w.mu.Lock()
		for i := 0; i < 64 && w.progress(1); i++ {
		}
		w.takeIn()
		w.unlock()
		if !w.ending.Load() {
			w.doze(time.Second, nil)
		}
		w.role.Unlock()
		w.mu.Lock()
		w.moved = w.moved || w.bell.parked > 0
		w.unlock()
	}
}

// patience is how long a peer may take to let go of memory that its user wants back, if the configuration does not say. Past it the
// connection is cut, and UCX may take as long to let go by itself.
const patience = time.Second

// reclaim waits until UCX is done with memory that the caller wants back: for a moment, and past it by cutting the
// connection with the peer, which ends everything that is under way with it. A process that has ended touches nothing
// any more, though UCX may not know.
func (w *waiter) reclaim(p *peer, s *slot) {
	for k := range 2 {
		if k == 1 {
			w.mu.Lock()
			w.lost(p, "it did not let go of a message that was given up")
			w.cut(p)
			w.unlock()
		}
		end := time.Now().Add(w.patience)
		gone := func() error {
			if time.Now().After(end) {
				return errGivenUp
			}
			return nil
		}
		if w.await(gone, func() (bool, error) { return s.ended() || p.ended, nil }) == nil {
			return
		}
	}
}

var errGivenUp = fmt.Errorf("given up")

// dismiss ends the keeper.
func (w *waiter) dismiss() {
	w.ending.Store(true)
	close(w.stop)
	w.mu.Lock()
	w.moved = true
	w.unlock()
	w.keeper.Wait()
}

// inattentive watches no process any more.
func (w *waiter) inattentive() {
	for i := 2; i < len(w.fds); i++ {
		if w.fds[i].Fd >= 0 {
			unix.Close(int(w.fds[i].Fd))
		}
	}
	w.fds = nil
}
