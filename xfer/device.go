package xfer

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/gpu"
)

// Device is memory of a GPU as storage. Copies from and to memory that Pin was told go at once; other memory goes
// through a few pinned buffers.
type Device struct {
	gpu  gpu.Device
	at   gpu.Ptr
	size int64

	lanes chan *lane

	mu     sync.Mutex
	pinned [][]byte
	all    []*lane
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

// Pin makes host memory fit for direct copies until the storage is closed.
func (x *Device) Pin(b []byte) error {
	if err := x.gpu.Register(b); err != nil {
		return fmt.Errorf("pin %d bytes: %w", len(b), err)
	}
	x.mu.Lock()
	x.pinned = append(x.pinned, b)
	x.mu.Unlock()
	return nil
}

func (x *Device) isPinned(p []byte) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range x.pinned {
		base := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		if at >= base && at+uintptr(len(p)) <= base+uintptr(len(b)) {
			return true
		}
	}
	return false
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
	if x.isPinned(p) {
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
	for spins := 0; ; spins++ {
		done, err := l.queue.Reached(n)
		if done || err != nil {
			return err
		}
		if spins < 1000 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// copyFrom copies inside the GPU, or between GPUs.
func (x *Device) copyFrom(ctx context.Context, to int64, from *Device, off, n int64) error {
	var l *lane
	select {
	case l = <-x.lanes:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { x.lanes <- l }()
	if err := l.queue.Copy(x.at+gpu.Ptr(to), from.at+gpu.Ptr(off), int(n)); err != nil {
		return err
	}
	return l.wait()
}

// sameGPU reports whether two places are memory of one device of this process.
func sameGPU(a, b *place) (to, from *Device, ok bool) {
	to, ok1 := a.store.(*Device)
	from, ok2 := b.store.(*Device)
	return to, from, ok1 && ok2 && to.gpu == from.gpu
}

func onGPU(a, b *place) bool {
	_, _, ok := sameGPU(a, b)
	return ok
}
