package xfer

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// landing is where the bytes of one request land: its destination, which slices of it are there, and the
// fence. After close has returned nothing lands any more.
type landing struct {
	view  view
	total int64
	ram   bool // all of it is memory
	still bool // the source stays as it is until the request is over: no lease on it may end meanwhile

	mu    sync.Mutex
	idle  sync.Cond
	inner int                  // those that write at this moment
	kicks map[interrupter]int  // whom to interrupt so that they leave
	have  []uint64             // slices that are there; nil where bytes do not come by slices
	busy  map[int]bool         // slices that come at this moment
	left  int                  // slices that are not
	bad   int                  // slices that came with a wrong checksum
	why   error                // closed, for this reason
	full  chan struct{}        // closed when all is there
	shut  chan struct{}        // closed with the fence
	sinks []landSink           // of storage that is written as a whole
	sync  map[*Region]struct{} // storage that must be made durable
	lands map[*Region][2]int64 // the range that it writes of each region
	moved atomic.Int64         // bytes that are there
	stop  atomic.Bool          // the fence is closing: those inside leave soon
	cause context.CancelFunc   // ends calls into storage
	ctx   context.Context      // of calls into storage
}

type landSink struct {
	Sink
	region *Region
}

// interrupter is a connection whose reader may be stuck in the middle of a slice.
type interrupter interface{ interrupt() }

// newLanding makes the destination of a request from own regions. epoch is that of the descriptions by which a peer writes; nil for
// own requests.
func newLanding(ctx context.Context, n int, desc func(i int) Desc, find func(uint32) (*Region, error), total int64, sliced bool,
	epoch func(uint32) uint64) (*landing, error) {
	l := &landing{total: total, full: make(chan struct{}), shut: make(chan struct{}), kicks: map[interrupter]int{},
		sync: map[*Region]struct{}{}, lands: map[*Region][2]int64{}}
	l.idle.L = &l.mu
	l.ctx, l.cause = context.WithCancel(context.WithoutCancel(ctx))
	if sliced {
		l.left = int((total + sliceSize - 1) / sliceSize)
		l.have = make([]uint64, (l.left+63)/64)
	}
	var err error
	l.view, err = viewOf(n, desc, func(id uint32) (*place, error) {
		r, err := find(id)
		if err != nil {
			return nil, err
		}
		p := &place{mem: r.mem, store: r.store, region: r}
		if w, ok := r.store.(Whole); ok {
			if err := wholly(n, desc, r); err != nil {
				return nil, err
			}
			s, err := w.Create(l.ctx)
			if err != nil {
				return nil, storageError(r, err)
			}
			p.sink = s
			l.sinks = append(l.sinks, landSink{s, r})
		} else if r.mem == nil {
			l.sync[r] = struct{}{}
		}
		return p, nil
	})
	if err == nil {
		l.ram = l.view.inMemory()
		var last *Region
		var span [2]int64
		for i := range l.view.parts {
			p := &l.view.parts[i]
			if r := p.at.region; r != last {
				if last != nil {
					l.lands[last] = span
				}
				var known bool
				if span, known = l.lands[r]; !known {
					span = [2]int64{p.off, p.off + p.n}
				}
				last = r
			}
			span = [2]int64{min(span[0], p.off), max(span[1], p.off+p.n)}
		}
		l.lands[last] = span
		for r := range l.lands {
			if err = r.watch(l); err != nil {
				break
			}
		}
		if err == nil && epoch != nil {
			err = l.reach(epoch) // what is reclaimed from now on closes it
		}
	}
	if err != nil {
		l.close(err)
		return nil, err
	}
	return l, nil
}

// reach says why the bytes cannot be written under descriptions of those epochs.
func (l *landing) reach(epoch func(uint32) uint64) error {
	for i := range l.view.parts {
		p := &l.view.parts[i]
		r := p.at.region
		r.mu.Lock()
		err := r.epochs.check(p.off, p.n, epoch(r.id))
		r.mu.Unlock()
		if err != nil {
			return fmt.Errorf("region %q: %w", r.name, err)
		}
	}
	return nil
}

// wholly refuses to write a part of what exists as a whole only.
func wholly(n int, desc func(i int) Desc, r *Region) error {
	sum := int64(0)
	for i := range n {
		if d := desc(i); d.Region == r.id {
			sum += d.Len
		}
	}
	if sum != r.Size() {
		return fmt.Errorf("region %q: %w: it is written as a whole, all %d bytes in one request; these are %d", r.name, ErrKind, r.Size(), sum)
	}
	return nil
}

// touches reports whether the request writes into a range.
func (l *landing) touches(r *Region, off, n int64) bool {
	span, ok := l.lands[r]
	return ok && span[0] < off+n && off < span[1]
}

// enter is called before bytes are written, with whom to interrupt if the fence closes meanwhile. It reports
// whether they may.
func (l *landing) enter(by interrupter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return false
	}
	l.inner++
	if by != nil {
		l.kicks[by]++
	}
	return true
}

// enterSlice is enter for a slice. It waits for another that brings the same one: over a connection that was lost, which
// may leave other bytes than it should. It reports false, too, if the slice is there.
func (l *landing) enterSlice(i int, by interrupter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.busy[i] && l.why == nil {
		l.idle.Wait()
	}
	if l.why != nil || hasBit(l.have, i) {
		return false
	}
	if l.busy == nil {
		l.busy = map[int]bool{}
	}
	l.busy[i] = true
	l.inner++
	l.kicks[by]++
	return true
}

// leaveSlice is leave for a slice.
func (l *landing) leaveSlice(i int, by interrupter) {
	l.mu.Lock()
	delete(l.busy, i)
	l.idle.Broadcast()
	l.mu.Unlock()
	l.leave(by)
}

// leave is called when bytes were written.
func (l *landing) leave(by interrupter) {
	l.mu.Lock()
	l.inner--
	if by != nil {
		if l.kicks[by]--; l.kicks[by] == 0 {
			delete(l.kicks, by)
		}
	}
	if l.inner == 0 {
		l.idle.Broadcast()
	}
	l.mu.Unlock()
}

// close closes the fence for a reason, unless it is closed, and waits for those inside. Afterwards no
// byte lands. It reports whether it was this call that closed it.
func (l *landing) close(why error) bool {
	l.mu.Lock()
	if l.why != nil {
		for l.inner > 0 {
			l.idle.Wait()
		}
		l.mu.Unlock()
		return false
	}
	l.why = why
	l.stop.Store(true)
	close(l.shut)
	if l.cause != nil {
		l.cause()
	}
	for k := range l.kicks {
		k.interrupt()
	}
	for l.inner > 0 {
		l.idle.Wait()
	}
	l.mu.Unlock()
	for r := range l.lands {
		r.unwatch(l)
	}
	if why != errLanded {
		for _, s := range l.sinks {
			s.Abort()
		}
	}
	return true
}

// errLanded closes the fence of a request that is complete.
var errLanded = fmt.Errorf("landed")

// finish makes what has landed durable and closes the fence. Then it is landed.
func (l *landing) finish(ctx context.Context) error {
	if l.enter(nil) {
		err := l.settle(ctx)
		l.leave(nil)
		if err != nil {
			return err
		}
	}
	if l.close(errLanded) || l.reason() == errLanded {
		return nil
	}
	return l.reason()
}

// settle makes what has arrived durable: files and objects that are written as a whole appear, the others are synced.
// If one cannot appear, nothing counts as moved.
func (l *landing) settle(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	for _, s := range l.sinks {
		if err := s.Commit(ctx); err != nil {
			l.moved.Store(0) // all or nothing
			return storageError(s.region, err)
		}
	}
	for r := range l.sync {
		if err := r.store.Sync(ctx); err != nil {
			return storageError(r, err)
		}
	}
	return nil
}

func (l *landing) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// slice is the range of slice i.
func (l *landing) slice(i int) (off, n int64) {
	off = int64(i) * sliceSize
	return off, min(sliceSize, l.total-off)
}

// landed notes that a slice is there.
func (l *landing) landed(i int) {
	_, n := l.slice(i)
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, b := &l.have[i/64], uint64(1)<<(i%64); *w&b == 0 {
		*w |= b
		l.moved.Add(n)
		if l.left--; l.left == 0 {
			close(l.full)
		}
	}
}

// bitmap is which slices are there.
func (l *landing) bitmap() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]uint64(nil), l.have...)
}

// setBit, hasBit and countBits work on bitmaps of slices.
func hasBit(m []uint64, i int) bool { return i/64 < len(m) && m[i/64]&(1<<(i%64)) != 0 }

func countBits(m []uint64) int {
	n := 0
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// copyFrom fills the destination from another view, by steps between which it looks at the fence. gate is asked
// before each step.
func (l *landing) copyFrom(ctx context.Context, src *view, gate func(n int64) error) error {
	if !l.enter(nil) {
		return l.reason()
	}
	defer l.leave(nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	l.moved.Store(0) // all of it, also when the last attempt ended with a lost connection
	if l.ram && src.inMemory() {
		return l.copySteps(ctx, gate, func(off, n int64) error {
			l.copyStep(src, off, n)
			return nil
		})
	}
	if pid := src.pulledFrom(); l.ram && pid > 0 {
		return l.copySteps(ctx, gate, func(off, n int64) error { return l.pullStep(pid, src, off, n) })
	}
	// An object that lies in memory as a whole is sent from there.
	if t, ok := l.view.parts[0].at.sink.(taker); ok && l.still && len(l.view.parts) == 1 && len(src.parts) == 1 && src.parts[0].at.mem != nil {
		if err := gate(l.total); err != nil {
			return err
		}
		t.take(src.parts[0].at.mem[src.parts[0].off:][:l.total:l.total])
		l.moved.Store(l.total)
		return nil
	}
	if d := oneGPU(&l.view, src); d != nil {
		return l.copyGPU(ctx, d, src, gate)
	}
	return l.copyStorage(ctx, src, gate)
}

// taker is a sink that can be given all bytes at once. They stay as they are until it has committed or aborted.
type taker interface{ take(b []byte) }

// copiers is how many goroutines copy memory: one core alone does not use all of the memory's rate.
func copiers(total int64) int {
	return int(max(1, min(total/(2*stepSize), 4, int64(runtime.GOMAXPROCS(0)))))
}

// copySteps copies by steps that several goroutines take in turn. One that is late finds nothing left.
func (l *landing) copySteps(ctx context.Context, gate func(n int64) error, step func(off, n int64) error) error {
	l.view.index()
	var at atomic.Int64
	work := func() error {
		for {
			off := at.Add(stepSize) - stepSize
			if off >= l.total {
				return nil
			}
			if l.stop.Load() {
				return l.reason()
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(stepSize, l.total-off)
			if err := gate(n); err != nil {
				return err
			}
			if err := step(off, n); err != nil {
				return err
			}
			l.moved.Add(n)
		}
	}
	errs := make([]error, copiers(l.total))
	var wg sync.WaitGroup
	for k := range errs[1:] {
		wg.Go(func() { errs[1+k] = work() })
	}
	errs[0] = work()
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// copyStep copies n bytes from off on.
func (l *landing) copyStep(src *view, off, n int64) {
	l.each(src, off, n, func(to []byte, s *part, in int64) { copy(to, s.at.mem[s.off+in:]) })
}

// pullStep reads n bytes from off on out of another process, many parts with one system call.
func (l *landing) pullStep(pid int, src *view, off, n int64) error {
	var spans []pullSpan
	l.each(src, off, n, func(to []byte, s *part, in int64) {
		spans = append(spans, pullSpan{s.at.store.(pulled).addr + uintptr(s.off+in), to})
	})
	return storageError(nil, pullSpans(pid, spans))
}

// each calls f with the pieces of n bytes from off on: memory of the destination, and where in a part of the source its bytes
// are. The parts of both views have the same lengths.
func (l *landing) each(src *view, off, n int64, f func(to []byte, s *part, in int64)) {
	i, found := slices.BinarySearch(l.view.start, off)
	if !found {
		i--
	}
	in := off - l.view.start[i]
	for n > 0 {
		d, s := &l.view.parts[i], &src.parts[i]
		k := min(n, d.n-in)
		f(d.at.mem[d.off+in:][:k], s, in)
		n, in, i = n-k, 0, i+1
	}
}

// pieces of storage that one call carries; a request to a store carries more where it goes straight to or from memory.
const (
	ioSize     = 1 << 20
	objectSize = 8 << 20
)

// piece is how much of a copy between two places one call carries.
func piece(d, s *place) int64 {
	if s.mem == nil && s.store.Kind() == Object && d.mem != nil {
		return objectSize
	}
	return ioSize
}

// copyStorage copies with as many calls at once as the storage likes.
func (l *landing) copyStorage(ctx context.Context, src *view, gate func(n int64) error) error {
	type job struct {
		d, s   *place
		do, so int64
		n      int64
	}
	var mu sync.Mutex
	i, at := 0, int64(0)
	next := func() (job, bool) {
		mu.Lock()
		defer mu.Unlock()
		for i < len(l.view.parts) {
			d, s := &l.view.parts[i], &src.parts[i]
			if at == d.n {
				i, at = i+1, 0
				continue
			}
			n := min(d.n-at, piece(d.at, s.at))
			j := job{d.at, s.at, d.off + at, s.off + at, n}
			at += n
			return j, true
		}
		return job{}, false
	}
	depth := max(l.view.depth(), src.depth())
	var first error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work := func() {
		var bounce []byte
		for ctx.Err() == nil && !l.stop.Load() {
			j, ok := next()
			if !ok {
				break
			}
			err := gate(j.n)
			switch {
			case err != nil:
			case j.d.mem != nil:
				err = j.s.read(ctx, j.d.mem[j.do:][:j.n], j.so)
			case j.s.mem != nil:
				err = j.d.write(ctx, j.s.mem[j.so:][:j.n], j.do)
			default:
				if bounce == nil {
					bounce = getBuffer()
				}
				if err = j.s.read(ctx, bounce[:j.n], j.so); err == nil {
					err = j.d.write(ctx, bounce[:j.n], j.do)
				}
			}
			if err != nil {
				mu.Lock()
				if first == nil {
					first = err
				}
				mu.Unlock()
				cancel()
				break
			}
			l.moved.Add(j.n)
		}
		if bounce != nil {
			putBuffer(bounce)
		}
	}
	var wg sync.WaitGroup
	for range depth - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	if l.stop.Load() {
		return l.reason()
	}
	if first == nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return first
}
