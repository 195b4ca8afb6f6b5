package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
)

// Queue is a goroutine that works in order.
type Queue struct {
	d      *Device
	stream gpu.Stream

	mu     sync.Mutex
	some   sync.Cond
	work   []func() error
	queued uint64 // what was given a number
	done   uint64
	err    error
	closed bool
	over   chan struct{}

	notes, stamps, stamped uint64
	noted                  map[uint64]bool
}

// Queue makes a queue.
func (d *Device) Queue() (gpu.Queue, error) { return d.UserQueue(), nil }

// UserQueue makes a queue that Stream names.
func (d *Device) UserQueue() *Queue {
	q := &Queue{d: d, noted: map[uint64]bool{}, over: make(chan struct{})}
	q.some.L = &q.mu
	d.mu.Lock()
	d.lastID++
	q.stream = d.lastID
	d.streams[q.stream] = q
	d.mu.Unlock()
	go q.run()
	return q
}

// Stream is the number by which Note and Hold of other queues know it.
func (q *Queue) Stream() gpu.Stream { return q.stream }

// run does the work in order, as a stream does. After an error the rest is counted as done but not carried out, so that
// waiters do not hang.
func (q *Queue) run() {
	defer close(q.over)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.work) == 0 && !q.closed {
			q.some.Wait()
		}
		if len(q.work) == 0 {
			return
		}
		do := q.work[0]
		q.work = q.work[1:]
		if q.err == nil {
			q.mu.Unlock()
			err := do()
			q.mu.Lock()
			q.err = err
		}
		q.done++
		q.some.Broadcast()
	}
}

// add queues work.
func (q *Queue) add(do func() error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return fmt.Errorf("a closed queue of a software GPU")
	}
	q.work = append(q.work, do)
	q.queued++
	q.some.Broadcast()
	return q.err
}

// In copies from the host.
func (q *Queue) In(dst gpu.Ptr, src []byte) error {
	return q.add(func() error {
		b, err := q.d.Bytes(dst, len(src))
		copy(b, src)
		return err
	})
}

// Out copies to the host.
func (q *Queue) Out(dst []byte, src gpu.Ptr) error {
	return q.add(func() error {
		b, err := q.d.Bytes(src, len(dst))
		copy(dst, b)
		return err
	})
}

// Copy copies inside.
func (q *Queue) Copy(dst, src gpu.Ptr, n int) error {
	return q.add(func() error {
		to, err := q.d.Bytes(dst, n)
		if err != nil {
			return err
		}
		from, err := q.d.Bytes(src, n)
		copy(to, from)
		return err
	})
}

// Pieces runs the kernel that copies them.
func (q *Queue) Pieces(list []gpu.Piece) error {
	return q.add(func() error { return q.d.pieces(list) })
}

// Batch has nothing to save.
func (q *Queue) Batch(f func() error) error { return f() }

// Reduce runs a kernel.
func (q *Queue) Reduce(r *gpu.Reduction) error {
	if err := r.Check(ptx.Most); err != nil {
		return err
	}
	return q.add(func() error { return q.d.reduce(r) })
}

// Mark numbers what is queued.
func (q *Queue) Mark() (uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued, q.err
}

// Reached reports whether that is done.
func (q *Queue) Reached(mark uint64) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.done >= mark, q.err
}

// find gives the queue of a number.
func (q *Queue) find(s gpu.Stream) (*Queue, error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if other := q.d.streams[s]; other != nil {
		return other, nil
	}
	return nil, fmt.Errorf("no stream %d of a software GPU", s)
}

// Idle reports whether another queue has nothing to do.
func (q *Queue) Idle(s gpu.Stream) (bool, error) {
	other, err := q.find(s)
	if err != nil {
		return false, err
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	return other.done == other.queued, other.err
}

// Note numbers what is queued on another queue.
func (q *Queue) Note(s gpu.Stream) (uint64, error) {
	other, err := q.find(s)
	if err != nil {
		return 0, err
	}
	q.mu.Lock()
	q.notes++
	n := q.notes
	q.mu.Unlock()
	return n, other.add(func() error {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.noted[n] = true
		q.some.Broadcast()
		return nil
	})
}

// After waits for that.
func (q *Queue) After(note uint64) error {
	return q.add(func() error {
		q.mu.Lock()
		defer q.mu.Unlock()
		for !q.noted[note] {
			q.some.Wait()
		}
		delete(q.noted, note)
		return nil
	})
}

// Stamp numbers what is queued here.
func (q *Queue) Stamp() (uint64, error) {
	q.mu.Lock()
	q.stamps++
	n := q.stamps
	q.mu.Unlock()
	return n, q.add(func() error {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.stamped = n
		q.some.Broadcast()
		return nil
	})
}

// Follow makes another queue wait.
func (q *Queue) Follow(s gpu.Stream, stamp uint64) error {
	other, err := q.find(s)
	if err != nil {
		return err
	}
	return other.add(func() error {
		q.mu.Lock()
		defer q.mu.Unlock()
		for q.stamped < stamp && q.err == nil {
			q.some.Wait()
		}
		return nil
	})
}

// Posts says that words can be waited for.
func (q *Queue) Posts() bool { return !q.d.mute }

// Post writes a word.
func (q *Queue) Post(word *uint32, n uint32) error {
	return q.add(func() error {
		atomic.StoreUint32(word, n)
		return nil
	})
}

// Await waits for a word.
func (q *Queue) Await(word *uint32, n uint32) error {
	return q.add(func() error {
		for int32(atomic.LoadUint32(word)-n) < 0 {
			time.Sleep(20 * time.Microsecond)
		}
		return nil
	})
}

// Close ends the queue once its work is done.
func (q *Queue) Close() error {
	q.d.mu.Lock()
	delete(q.d.streams, q.stream)
	q.d.mu.Unlock()
	q.mu.Lock()
	q.closed = true
	q.some.Broadcast()
	q.mu.Unlock()
	<-q.over
	return nil
}
