//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"fmt"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/wait"
)

const (
	looks    = 32                     // calls of progress in one call of C: one through purego takes longer than several of them
	lookTime = 100 * time.Microsecond // a wait looks for about this long before it sleeps
	idleTime = time.Millisecond       // and the keeper takes over after nobody has waited for this long
)

// unlock gives the lock back, and wakes those that sleep if something has changed.
func (e *Endpoint) unlock() {
	if e.moved {
		e.moved = false
		if e.asleep {
			one := [8]byte{1}
			_, _ = unix.Write(e.kick, one[:])
		}
		if e.parked > 0 {
			e.parked = 0
			close(e.changed)
			e.changed = make(chan struct{})
		}
	}
	e.mu.Unlock()
}

// progress lets UCX work, and then does what its callbacks left to be done; the caller holds the lock.
func (e *Endpoint) progress(times uintptr) bool {
	n, _, _ := purego.SyscallN(e.lib.many, e.worker, e.lib.progress, times)
	if int32(n) == 0 && len(e.todo) == 0 {
		return false
	}
	e.moved = true
	e.settle()
	return true
}

// settle does what callbacks left, as nothing of UCX is called in one.
func (e *Endpoint) settle() {
	for len(e.todo) > 0 {
		do := e.todo
		e.todo = nil
		for _, f := range do {
			f()
		}
	}
	e.sweep()
	if len(e.flying) > 0 {
		rest := e.flying[:0]
		for _, s := range e.flying {
			if s.ended() {
				e.put(s)
			} else {
				rest = append(rest, s)
			}
		}
		clear(e.flying[len(rest):])
		e.flying = rest
	}
}

// later has something done once UCX has returned.
func (e *Endpoint) later(f func()) { e.todo = append(e.todo, f) }

// forget leaves a request to itself.
func (e *Endpoint) forget(s *slot) {
	if s.ended() {
		e.put(s)
	} else {
		e.flying = append(e.flying, s)
	}
}

// await waits until done says so, which is asked with the lock held. It spins, yields, and then sleeps until UCX
// has something to do, asking stop as often as transport.Stop says.
func (e *Endpoint) await(stop transport.Stop, done func() (bool, error)) error {
	e.waits.Add(1)
	var since, slept time.Time
	for round := 0; ; round++ {
		e.mu.Lock()
		moved := e.progress(looks)
		ok, err := done()
		if !ok && err == nil && round > 0 {
			e.takeIn() // whoever sends it may be what this waits for
		}
		e.unlock()
		if ok || err != nil {
			if !slept.IsZero() {
				e.backoff.Slept(time.Since(slept))
			}
			return err
		}
		if moved {
			if round%64 == 63 { // what moves may be the end of a connection, again and again
				e.look()
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
			if now.Sub(since) < e.backoff.LookFor(lookTime) {
				e.backoff.Yield() // unless others want the core: then it learns so, and sleeps sooner
				continue
			}
			slept = now
		}
		if stop != nil {
			if err := stop(); err != nil {
				return err
			}
		}
		e.sleep(wait.Slice, done)
	}
}

// sleep returns when something has changed, or after a while.
func (e *Endpoint) sleep(most time.Duration, done func() (bool, error)) {
	if !e.role.TryLock() {
		e.mu.Lock()
		if ok, err := done(); ok || err != nil {
			e.unlock()
			return
		}
		e.parked++
		changed := e.changed
		e.unlock()
		t := time.NewTimer(most)
		select {
		case <-changed:
		case <-t.C:
		}
		t.Stop()
		return
	}
	e.doze(most, done)
	e.role.Unlock()
	// Who parked meanwhile may take its turn.
	e.mu.Lock()
	e.moved = e.moved || e.parked > 0
	e.unlock()
}

// doze arms the worker and sleeps on its descriptor; the caller has the role.
func (e *Endpoint) doze(most time.Duration, done func() (bool, error)) {
	e.mu.Lock()
	if done != nil {
		if ok, err := done(); ok || err != nil {
			e.unlock()
			return
		}
	}
	r, _, _ := purego.SyscallN(e.lib.arm, e.worker)
	if int32(r) != 0 { // busy: there is something to do, and there may be without end
		if n, err := unix.Poll(e.fds[2:], 0); err == nil && n > 0 {
			e.watch()
		}
		e.progress(looks)
		e.unlock()
		return
	}
	e.asleep = true
	e.unlock()
	n, err := unix.Poll(e.fds, int(most/time.Millisecond))
	e.mu.Lock()
	e.asleep = false
	if err == nil && n > 0 {
		if e.fds[1].Revents != 0 {
			var b [8]byte
			_, _ = unix.Read(e.kick, b[:])
		}
		e.watch()
	}
	e.progress(looks)
	e.unlock()
}

// look notes the processes that have ended, if nobody sleeps for that.
func (e *Endpoint) look() {
	if len(e.watched) == 0 || !e.role.TryLock() {
		return
	}
	defer e.role.Unlock()
	if n, err := unix.Poll(e.fds[2:], 0); err == nil && n > 0 {
		e.mu.Lock()
		e.watch()
		e.unlock()
	}
}

// watch notes the processes that poll has seen end; the caller has the role and the lock.
func (e *Endpoint) watch() {
	for i := 2; i < len(e.fds); i++ {
		if e.fds[i].Fd >= 0 && e.fds[i].Revents != 0 {
			unix.Close(int(e.fds[i].Fd))
			e.fds[i].Fd = -1 // poll passes over it
			e.ended(e.watched[i-2])
		}
	}
}

// ended notes that the process of a rank of this machine is no more, once all that it sent has been looked at.
func (e *Endpoint) ended(rank int) {
	for i := 0; i < 1000 && e.progress(1); i++ {
	}
	p := e.peers[rank]
	p.ended = true
	e.lost(p, fmt.Sprintf("process %d ended", p.pid))
}

// keep is the keeper: it makes progress when nobody else does.
func (e *Endpoint) keep() {
	seen := ^uint64(0)
	for tick := 0; !e.ending.Load(); tick++ {
		if now := e.waits.Load(); now != seen || !e.role.TryLock() {
			seen = now
			if tick%16 == 15 { // those that wait may never sleep, nor look
				e.look()
			}
			select {
			case <-e.stopKeeper:
				return
			case <-time.After(idleTime):
			}
			continue
		}
		e.mu.Lock()
		for i := 0; i < 64 && e.progress(1); i++ {
		}
		e.takeIn()
		e.unlock()
		if !e.ending.Load() {
			e.doze(time.Second, nil)
		}
		e.role.Unlock()
		e.mu.Lock()
		e.moved = e.moved || e.parked > 0
		e.unlock()
	}
}

// patience is how long a peer may take to let go of memory that its user wants back. Past it the connection is cut.
const patience = time.Second

// reclaim waits until UCX is done with memory that the caller wants back: for a moment, and past it by cutting the
// connection with the peer, which ends everything that is under way with it. A process that has ended touches nothing
// any more, though UCX may not know.
func (e *Endpoint) reclaim(p *peer, s *slot) {
	for k := range 2 {
		if k == 1 {
			e.mu.Lock()
			e.lost(p, "it did not let go of a message that was given up")
			e.cut(p)
			e.unlock()
		}
		end := time.Now().Add(patience)
		gone := func() error {
			if time.Now().After(end) {
				return errGivenUp
			}
			return nil
		}
		if e.await(gone, func() (bool, error) { return s.ended() || p.ended, nil }) == nil {
			return
		}
	}
}

var errGivenUp = fmt.Errorf("given up")
