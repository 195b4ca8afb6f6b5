package xfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/gpu"
)

// Device is memory of a GPU as storage. Copies from and to pinned memory go at once; other memory goes through a few pinned
// buffers.
type Device struct {
	gpu  gpu.Device
	at   gpu.Ptr
	size int64

	lanes chan *lane

	of     *Device // whose lanes these are, of memory of another process; nil for its own
	mu     sync.Mutex
	pinned [][]byte // by Pin
	all    []*lane
	shown  *Shown // to other processes
	hidden error  // why not
}

// lane is a queue of copies and a pinned buffer.
type lane struct {
	queue  gpu.Queue
	bounce []byte
}

const lanes = 2 // copies at once: one in each direction

// NewDevice makes size bytes of GPU memory from at on storage. The memory stays the caller's.
func NewDevice(d gpu.Device, at gpu.Ptr, size int64) (*Device, error) {
	if _, err := d.Segment(at, int(size)); err != nil {
		return nil, fmt.Errorf("GPU memory: %w: %w", ErrBounds, err)
	}
	x := &Device{gpu: d, at: at, size: size, lanes: make(chan *lane, lanes)}
	for range lanes {
		q, err := d.Queue()
		if err != nil {
			x.Close()
			return nil, fmt.Errorf("GPU memory: %w", err)
		}
		l := &lane{queue: q, bounce: alignedBuffer(ioSize)}
		if err := d.Register(l.bounce); err != nil {
			_ = q.Close()
			x.Close()
			return nil, fmt.Errorf("GPU memory: pin a buffer: %w", err)
		}
		x.all = append(x.all, l)
		x.lanes <- l
	}
	return x, nil
}

// Pin makes host memory fit for direct copies until the storage is closed. Memory that somebody else pinned is so already.
func (x *Device) Pin(b []byte) error {
	err := x.gpu.Register(b)
	switch {
	case err == nil:
		x.mu.Lock()
		x.pinned = append(x.pinned, b)
		x.mu.Unlock()
		return nil
	case errors.Is(err, gpu.ErrPinned) && x.gpu.Pinned(b):
		return nil
	}
	return fmt.Errorf("pin %d bytes: %w", len(b), err)
}

// Kind is GPU.
func (x *Device) Kind() Kind { return GPU }

// Size is the number of bytes.
func (x *Device) Size() int64 { return x.size }

// Depth is how many copies run at once.
func (x *Device) Depth() int { return lanes }

// Sync has nothing to do: a copy is waited for.
func (x *Device) Sync(context.Context) error { return nil }

// Close gives the queues and pinned buffers back, not the memory.
func (x *Device) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.all {
		_ = x.gpu.Unregister(l.bounce)
		_ = l.queue.Close()
	}
	for _, b := range x.pinned {
		_ = x.gpu.Unregister(b)
	}
	x.all, x.pinned = nil, nil
	return nil
}

// ReadAt copies out of the GPU.
func (x *Device) ReadAt(ctx context.Context, p []byte, off int64) error {
	return x.copies(ctx, p, func(l *lane, p []byte, at int64) error {
		return l.queue.Out(p, x.at+gpu.Ptr(off+at))
	}, false)
}

// WriteAt copies into the GPU.
func (x *Device) WriteAt(ctx context.Context, p []byte, off int64) error {
	return x.copies(ctx, p, func(l *lane, p []byte, at int64) error {
		return l.queue.In(x.at+gpu.Ptr(off+at), p)
	}, true)
}

// copies makes the copies of p, direct or through a pinned buffer, and waits for each.
func (x *Device) copies(ctx context.Context, p []byte, one func(l *lane, p []byte, at int64) error, in bool) error {
	var l *lane
	select {
	case l = <-x.lanes:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { x.lanes <- l }()
	if x.gpu.Pinned(p) {
		if err := one(l, p, 0); err != nil {
			return err
		}
		return l.wait()
	}
	for at := int64(0); at < int64(len(p)); {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := l.bounce[:min(int64(len(l.bounce)), int64(len(p))-at)]
		if in {
			copy(b, p[at:])
		}
		if err := one(l, b, at); err != nil {
			return err
		}
		if err := l.wait(); err != nil {
			return err
		}
		if !in {
			copy(p[at:], b)
		}
		at += int64(len(b))
	}
	return nil
}

// wait waits for all that is queued. A copy that has begun is waited for to its end, so that nothing lands later.
func (l *lane) wait() error {
	n, err := l.queue.Mark()
	if err != nil {
		return err
	}
	return l.reach(n)
}

// spin is how long a wait for a GPU looks at its mark without a pause: copies inside a GPU take some ten microseconds, which is
// what giving the processor away and getting it back costs.
const spin = 100 * time.Microsecond

// reach waits for what was queued before a mark.
func (l *lane) reach(n uint64) error {
	began := time.Now()
	for looks := 1; ; looks++ {
		done, err := l.queue.Reached(n)
		if done || err != nil {
			return err
		}
		if looks%16 != 0 {
			continue
		}
		switch waited := time.Since(began); {
		case waited < spin:
		case waited < 10*spin:
			runtime.Gosched()
		default:
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// oneGPU is the storage whose queue can make all copies between two views: both are memory of one GPU, or one is and the
// other is pinned memory. nil if there is none.
func oneGPU(dst, src *view) *Device {
	var on *Device
	var lastD, lastS *place
	for i := range dst.parts {
		d, s := &dst.parts[i], &src.parts[i]
		if d.at == lastD && s.at == lastS {
			continue
		}
		lastD, lastS = d.at, s.at
		to, in := d.at.device()
		from, out := s.at.device()
		switch {
		case in && out && to.gpu == from.gpu:
		case in && s.at.mem != nil && to.gpu.Pinned(s.at.mem):
		case out && d.at.mem != nil && from.gpu.Pinned(d.at.mem):
			to = from
		default:
			return nil
		}
		if on != nil && on.gpu != to.gpu {
			return nil
		}
		if on == nil {
			on = to
		}
	}
	return on
}

// device is the GPU memory of a place, also inside storage that embeds it.
func (p *place) device() (*Device, bool) {
	d, ok := p.store.(interface{ device() *Device })
	if !ok {
		return nil, false
	}
	return d.device(), true
}

func (x *Device) device() *Device { return x }

// burst is how many bytes are queued before the fence is looked at again; two bursts are under way at most, which is
// how long a cancel waits.
const (
	burst       = 16 << 20  // between host and GPU: under a millisecond
	burstInside = 256 << 20 // inside a GPU
	burstCopies = 4096
)

// copyGPU queues all copies one after another and waits for them by bursts: a GPU that waits for a word of the host
// between two copies does neither.
func (l *landing) copyGPU(ctx context.Context, x *Device, src *view, gate func(n int64) error) (err error) {
	var q *lane
	select {
	case q = <-x.lanes:
	case <-ctx.Done():
		return ctx.Err()
	}
	idle := true // nothing is queued
	defer func() {
		// What is queued lands: it is waited for, whatever happened.
		if !idle {
			if e := q.wait(); err == nil {
				err = e
			}
		}
		x.lanes <- q
	}()
	var end uint64
	err = q.queue.Batch(func() error {
		err := l.queueGPU(ctx, q, src, gate, func() { idle = false })
		if err == nil {
			end, err = q.queue.Mark()
		}
		return err
	})
	if err == nil {
		err = q.reach(end)
	}
	if err != nil {
		return err
	}
	idle = true
	l.moved.Store(l.total)
	return nil
}

// queueGPU queues the copies. It tells busy before the first of them.
func (l *landing) queueGPU(ctx context.Context, q *lane, src *view, gate func(n int64) error, busy func()) error {
	var queued, copies, before int64
	var mark uint64
	most := int64(burst)
	for i := range l.view.parts {
		d, s := &l.view.parts[i], &src.parts[i]
		if d.at.mem == nil && s.at.mem == nil {
			most = burstInside
		}
		for at := int64(0); at < d.n; {
			if queued == 0 {
				if l.stop.Load() {
					return l.reason()
				}
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			n := min(d.n-at, most-queued)
			if err := gate(n); err != nil {
				return err
			}
			busy()
			if err := q.copy(d, s, at, n); err != nil {
				return storageError(d.at.region, err)
			}
			at, queued, copies = at+n, queued+n, copies+1
			if queued < most && copies < burstCopies {
				continue
			}
			next, err := q.queue.Mark()
			if err == nil && mark != 0 {
				err = q.reach(mark)
			}
			if err != nil {
				return storageError(d.at.region, err)
			}
			l.moved.Add(before)
			mark, before, queued, copies = next, queued, 0, 0
		}
	}
	return nil
}

// copy queues the copy of n bytes of two parts, of which a GPU has one at least.
func (q *lane) copy(d, s *part, at, n int64) error {
	to, in := d.at.device()
	from, out := s.at.device()
	switch {
	case in && out:
		return q.queue.Copy(to.at+gpu.Ptr(d.off+at), from.at+gpu.Ptr(s.off+at), int(n))
	case in:
		return q.queue.In(to.at+gpu.Ptr(d.off+at), s.at.mem[s.off+at:][:n])
	}
	return q.queue.Out(d.at.mem[d.off+at:][:n], from.at+gpu.Ptr(s.off+at))
}
