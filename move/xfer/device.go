package xfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

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

// spin is how long a brief copy takes (Transfer.Now). A wait for a GPU looks at its mark ten times as long without a pause: copies inside
// a GPU take up to half a millisecond, and a program in another language gets the processor back after 30 us only, as the goroutine has
// a thread of its own.
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
		if time.Since(began) > 10*spin {
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
	burst       = 16 << 20 // between host and GPU: under a millisecond
	burstInside = 1 << 30  // inside a GPU: half a millisecond
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
		err := l.queueFaster(ctx, x, q, src, gate, func() { idle = false })
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

// queueFaster queues the copies: by a kernel where that is faster and the driver can compile it, else one by one.
func (l *landing) queueFaster(ctx context.Context, x *Device, q *lane, src *view, gate func(n int64) error, busy func()) error {
	if l.inPieces(src) {
		queued := false
		err := l.queuePieces(ctx, x, q, src, gate, func() {
			queued = true
			busy()
		})
		if queued || !errors.Is(err, gpu.ErrNoJIT) {
			return err
		}
	}
	return l.queueGPU(ctx, q, src, gate, busy)
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

// A kernel that copies many pieces takes 30 us for 16 MiB on an H200, a call of the driver for each piece 3.5 us. So pieces go by the
// kernel that are shorter on average than the GPU copies in that time. It gets long ones in parts, so that all its threads have work.
const (
	fewPieces   = 8
	pieceHost   = 128 << 10 // from or to memory of the host
	pieceInside = 1 << 20
	piecePart   = 64 << 10
)

// inPieces reports whether a kernel copies faster than calls of the driver.
func (l *landing) inPieces(src *view) bool {
	most := int64(pieceInside)
	for i := range l.view.parts {
		if l.view.parts[i].at.mem != nil || src.parts[i].at.mem != nil {
			most = pieceHost
			break
		}
	}
	n := int64(len(l.view.parts))
	return n >= fewPieces && l.total/n < most
}

// queuePieces queues the copies as kernels, each for a table of pieces. It tells busy before the first of them. An error before that is
// gpu.ErrNoJIT, perhaps.
func (l *landing) queuePieces(ctx context.Context, x *Device, q *lane, src *view, gate func(n int64) error, busy func()) error {
	t := &pieceTable{l: l, q: q, gate: gate, busy: busy, ctx: ctx}
	half := len(q.bounce) / 2
	for i := range t.rooms {
		t.rooms[i] = unsafe.Slice((*gpu.Piece)(unsafe.Pointer(&q.bounce[i*half])), burstCopies)
	}
	see := seer{x: x}
	for i := range l.view.parts {
		d, s := &l.view.parts[i], &src.parts[i]
		to, err := see.at(0, d)
		if err != nil {
			return storageError(d.at.region, err)
		}
		from, err := see.at(1, s)
		if err != nil {
			return storageError(s.at.region, err)
		}
		if d.at.mem != nil || s.at.mem != nil {
			t.host = true
		}
		for at := int64(0); at < d.n; at += piecePart {
			if err := t.add(to+gpu.Ptr(at), from+gpu.Ptr(at), min(d.n-at, piecePart)); err != nil {
				return err
			}
		}
	}
	return t.launch()
}

// seer finds where a kernel sees parts of the destination (0) and the source (1).
type seer struct {
	x    *Device
	last [2]*place
	base [2]gpu.Ptr
}

// at is a part's address as the GPU sees it. The last one on each side is remembered: parts of one region follow one
// another.
func (s *seer) at(side int, p *part) (gpu.Ptr, error) {
	if p.at != s.last[side] {
		base, err := gpu.Ptr(0), error(nil)
		if d, ok := p.at.device(); ok {
			base = d.at
		} else {
			base, err = s.x.gpu.Seen(p.at.mem)
		}
		if err != nil {
			return 0, err
		}
		s.last[side], s.base[side] = p.at, base
	}
	return s.base[side] + gpu.Ptr(p.off), nil
}

// pieceTable is the table of the next kernel. There are two, in turn, and two kernels under way at most.
type pieceTable struct {
	l    *landing
	q    *lane
	gate func(n int64) error
	busy func()
	ctx  context.Context
	host bool // memory of the host is among the pieces

	rooms  [2][]gpu.Piece
	turn   int
	count  int
	queued int64 // bytes of this table
	before int64 // of the last one
	mark   uint64
}

func (t *pieceTable) add(to, from gpu.Ptr, n int64) error {
	t.rooms[t.turn][t.count] = gpu.Piece{Dst: to, Src: from, Bytes: uint64(n)}
	t.count, t.queued = t.count+1, t.queued+n
	if t.count < burstCopies && (!t.host || t.queued < burst) {
		return nil
	}
	return t.launch()
}

// launch queues the copies of the table, and waits for those of the one before, whose room is next.
func (t *pieceTable) launch() error {
	if t.count == 0 {
		return nil
	}
	if t.l.stop.Load() {
		return t.l.reason()
	}
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if err := t.gate(t.queued); err != nil {
		return err
	}
	region := t.l.view.parts[0].at.region
	if err := t.q.queue.Pieces(t.rooms[t.turn][:t.count]); err != nil {
		return storageError(region, err)
	}
	t.busy()
	next, err := t.q.queue.Mark()
	if err == nil && t.mark != 0 {
		err = t.q.reach(t.mark)
	}
	if err != nil {
		return storageError(region, err)
	}
	t.l.moved.Add(t.before)
	t.mark, t.before, t.queued, t.count, t.turn = next, t.queued, 0, 0, 1-t.turn
	return nil
}
