// Package wait lets ranks wait for one another through memory that they share,
// between goroutines and between processes alike: it spins briefly, gives the
// processor away a few times where ranks outnumber cores, and sleeps in the
// kernel (futex) from then on. Nothing has to be cleaned up after a waiter that
// was killed.
package wait

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// unpaused is how many looks are made without a pause.
const unpaused = 512

// Slice is how long a wait sleeps at most before it asks again whether to stop.
const Slice = 10 * time.Millisecond

// Flag is a number that grows, and whether somebody sleeps until it does. It
// fills a cache line, so that the flags of two ranks never share one. The zero
// value is a flag at 0; it may lie in memory shared with other processes.
type Flag struct {
	value    atomic.Uint64 // the futex is its lower half
	sleepers atomic.Uint32 // too large by those that were killed asleep: it costs a system call, nothing else
	_        uint32
	words    [2]atomic.Uint64 // RaiseWith's
	_        [32]byte
}

// At makes a flag of 64 bytes of shared memory at a multiple of 8.
func At(b []byte) *Flag {
	return (*Flag)(unsafe.Pointer(&b[:64][0])) // checks the length without reading a byte that is another's
}

// Own asks for the line of a flag that will be raised soon, so that raising it need
// not wait until other cores have given their copies up.
func (f *Flag) Own() { own(unsafe.Pointer(f)) }

// Fetch asks for the line of a flag that was probably raised and will be waited for
// soon.
func (f *Flag) Fetch() { fetch(unsafe.Pointer(f)) }

// Load is the flag's number.
func (f *Flag) Load() uint64 { return f.value.Load() }

// Set is Post where nobody can sleep for the flag.
func (f *Flag) Set(v uint64) { release(&f.value, v) }

// Post raises the flag to v and wakes whoever sleeps for it. Only one rank
// posts a flag, or it is raised by Add.
func (f *Flag) Post(v uint64) {
	f.value.Store(v) // a full barrier on every processor Go knows, so the sleepers below are not read before it
	if f.sleepers.Load() != 0 {
		f.Wake()
	}
}

// Raise is Post without waking anybody yet: Settle must follow. Post waits until
// the store has reached the other cores, 0.1 us and more; a rank that raises a flag and
// then looks at those of others has that time for free.
func (f *Flag) Raise(v uint64, w *Waiter) {
	release(&f.value, v)
	w.raised, w.apart = f, nil
}

// Sleepers counts those that sleep for any of some flags, in a line of its own.
// A flag's own count lies in the flag's line, which is at another core by the
// time that Settle looks at it: it takes 80 ns to come back, where raising a flag
// and seeing another one raised takes 160 in all (two Xeon cores, 2026-11-15). A
// count apart changes only when somebody goes to sleep, so every core keeps it.
type Sleepers struct {
	count atomic.Uint32
	_     [60]byte
}

// SleepersAt makes a count of 64 bytes of shared memory at a multiple of 4.
func SleepersAt(b []byte) *Sleepers { return (*Sleepers)(unsafe.Pointer(&b[:64][0])) }

// RaiseFor is Raise of a flag whose sleepers are counted apart: those of WaitAs.
func (f *Flag) RaiseFor(v uint64, s *Sleepers, w *Waiter) {
	release(&f.value, v)
	w.raised, w.apart = f, s
}

// RaiseWith is RaiseFor with the two words behind the flag's own, which others may
// read at any time: a rank that sees the flag sees them.
func (f *Flag) RaiseWith(v, first, second uint64, s *Sleepers, w *Waiter) {
	releaseWith(f, v, first, second)
	w.raised, w.apart = f, s
}

// RaiseNow is RaiseWith for a caller that settles the flag without a waiter.
func (f *Flag) RaiseNow(v, first, second uint64, s *Sleepers) Raised {
	releaseWith(f, v, first, second)
	return Raised{f, &s.count}
}

// Settle wakes whoever sleeps for the flag that was raised, if one was. Waits do
// so before they stop spinning.
func (w *Waiter) Settle() {
	if w.raised != nil {
		atomic.AddUint32(&w.fence, 1) // the flag is seen by all before its sleepers are looked at
		w.Raised().Settled()
	}
}

// Raised is a flag that was raised whose sleepers are to be woken.
type Raised struct {
	flag  *Flag
	count *atomic.Uint32
}

// Raised gives the flag that was raised, if one was, to a caller that settles it in place of
// the waiter.
func (w *Waiter) Raised() Raised {
	r := Raised{flag: w.raised}
	if r.flag != nil {
		r.count = &r.flag.sleepers
		if w.apart != nil {
			r.count = &w.apart.count
		}
		w.raised = nil
	}
	return r
}

// Settled is Settle for a caller that has changed something else atomically since the flag
// was raised, a mutex for example.
func (r Raised) Settled() {
	if r.flag != nil && r.count.Load() != 0 {
		r.flag.Wake()
	}
}

// Release stores a word that may lie in shared memory so that a rank that sees it sees
// all that was stored before, without waiting until anybody can.
func Release(word *atomic.Uint64, v uint64) { release(word, v) }

// ReleaseAll stores src in dst a word at once, so that those who look at dst meanwhile, with sync/atomic, see each word as it was
// or as it is. Both are whole words, and dst lies at a multiple of eight.
func ReleaseAll(dst, src []byte) {
	for ; len(src) > 0; dst, src = dst[8:], src[8:] {
		release((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(dst))), binary.NativeEndian.Uint64(src))
	}
}

// Add raises the flag by d and says to what.
func (f *Flag) Add(d uint64) uint64 {
	v := f.value.Add(d)
	if f.sleepers.Load() != 0 {
		f.Wake()
	}
	return v
}

// Wake makes sleepers look again, and ask whether to stop.
func (f *Flag) Wake() { futexWake(f.word()) }

// word is what the kernel compares: the lower half of the number, so a sleep
// could only be missed if the flag was raised by 2^32 in between.
func (f *Flag) word() *uint32 {
	const lower = 4 * (1 - little)
	return (*uint32)(unsafe.Add(unsafe.Pointer(&f.value), lower))
}

// Waiter says how to wait. One that raises flags belongs to one goroutine at a time.
type Waiter struct {
	// Spin is how many times to look before doing anything else. A look is
	// about a nanosecond; after the first 512 of them the processor pauses
	// between looks, which on Intel since Skylake takes some 140 cycles each.
	Spin int
	// Yield is how many times to give the processor away, once each look, before sleeping.
	Yield int
	// Local means that those who are waited for are goroutines of this process:
	// the processor is given to them rather than to another process.
	Local bool
	// Meanwhile, if it is set, is called between two looks once spinning has not helped,
	// unless other ranks or processes want the core. It does something else, without
	// waiting, and says whether there was anything to do.
	Meanwhile func() bool
	// Late, if it is set, is called once in a wait that takes longer than some
	// 5 us or than Spin, before the processor is given away.
	Late func()

	// backoff is nil for waits that learn nothing. Copies of a waiter share it.
	backoff *Backoff

	raised *Flag     // not settled yet
	apart  *Sleepers // those for it, if they are counted apart
	fence  uint32    // of no meaning but to be written atomically
}

// Nap sleeps for about d, 50 us and more. time.Sleep is not for that: in a program that does nothing else it takes a millisecond.
func Nap(d time.Duration) {
	var word uint32
	futexWait(&word, 0, d)
}

// For gives the waiter for a number of ranks on this machine, which are goroutines
// of this process if local is set. With a core for everybody, looking for up to some
// 150 us is best: a sleep and its wake-up cost 5 us and more, and where processors
// are virtual and halt, 50; ranks that sleep in turns, each being late for it in the
// next operation, would do so for ever. With fewer cores every look that is not the
// last takes time from the rank that is waited for.
func For(ranks int, local bool) *Waiter {
	cores := runtime.NumCPU()
	if local {
		cores = runtime.GOMAXPROCS(0)
	}
	if ranks <= cores {
		return &Waiter{Spin: 1 << 10, Yield: 300, Local: local, backoff: &Backoff{Ranks: ranks}}
	}
	return &Waiter{Spin: 20, Yield: 200, Local: local, backoff: &Backoff{Ranks: ranks}}
}

// keepsFor is how many looks with pauses take about as long as a yield.
const keepsFor = 6

// GiveWay yields, and says whether it did: not where yields take long.
func (w *Waiter) GiveWay() bool {
	switch {
	case w.Local:
		runtime.Gosched()
	case w.backoff == nil:
		osYield()
	default:
		return w.backoff.Yield() > 0
	}
	return true
}

// Works does something else meanwhile, and says whether there was anything to do.
func (w *Waiter) Works() bool {
	return w.Meanwhile != nil && (w.backoff == nil || !w.backoff.crowded() && !w.backoff.Wanted()) && w.Meanwhile()
}

// Wait returns once the flag is at least v, or with what stop says. Stop is
// asked before the first sleep and after every one, so at least every Slice.
func (f *Flag) Wait(v uint64, w *Waiter, stop func() error) error {
	if f.value.Load() >= v {
		return nil
	}
	return f.wait(v, &f.sleepers, w, stop)
}

// Soon is Wait that gives up before it yields or sleeps, after some 20 us at most. Without look it does not wait at all.
func (f *Flag) Soon(v uint64, w *Waiter, look bool) bool {
	if f.value.Load() >= v {
		return true
	}
	first := min(w.Spin, unpaused)
	if !look || spin(&f.value, v, first) {
		return look
	}
	w.Settle()
	return pause(&f.value, v, min(w.Spin-first, pausesSoon))
}

// pausesSoon are about as many as take 20 us.
const pausesSoon = 256

// WaitAs is Wait among those that are counted apart.
func (f *Flag) WaitAs(v uint64, s *Sleepers, w *Waiter, stop func() error) error {
	if f.value.Load() >= v {
		return nil
	}
	return f.wait(v, &s.count, w, stop)
}

// look yields until the flag is at least v, or until it is time to sleep.
func (w *Waiter) look(f *Flag, v uint64) bool {
	yields := w.Yield
	if w.backoff != nil {
		yields <<= w.backoff.patience.Load()
	}
	for range yields {
		if w.backoff != nil && w.backoff.Wanted() {
			return !w.backoff.crowded() && pause(&f.value, v, pausesOfMoment)
		}
		if !w.Works() && !w.GiveWay() && pause(&f.value, v, keepsFor) || f.value.Load() >= v {
			return true
		}
	}
	return false
}

// pausesOfMoment are about as many as take a moment (backoff.go).
const pausesOfMoment = 2048

func (f *Flag) wait(v uint64, sleepers *atomic.Uint32, w *Waiter, stop func() error) error {
	first := min(w.Spin, unpaused)
	if spin(&f.value, v, first) {
		return nil
	}
	w.Settle()
	if w.Late != nil {
		if pause(&f.value, v, min(w.Spin-first, 64)) {
			return nil
		}
		w.Late()
	}
	if pause(&f.value, v, w.Spin-first) {
		return nil
	}
	if w.look(f, v) {
		return nil
	}
	slept := time.Now()
	for {
		if stop != nil {
			if err := stop(); err != nil {
				if f.value.Load() >= v {
					return nil
				}
				return err
			}
		}
		sleepers.Add(1)
		now := f.value.Load()
		if now < v {
			futexWait(f.word(), uint32(now), Slice)
		}
		sleepers.Add(^uint32(0))
		if f.value.Load() >= v {
			if w.backoff != nil {
				w.backoff.Slept(time.Since(slept))
			}
			return nil
		}
	}
}
