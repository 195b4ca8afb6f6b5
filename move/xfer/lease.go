package xfer

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// lease is the right of a peer to read, as the owner keeps it.
type lease struct {
	agent  *Agent
	id     uint64
	descs  []Desc // joined and in order
	slot   int    // of the agent's table, which processes of this host read; -1 for none
	revoke func() // asks for it back

	mu     sync.Mutex
	idle   sync.Cond
	holder ID
	until  time.Time
	users  map[interrupter]int // those that send out of it at this moment
	inner  int
	how    string // it ended; empty until then
	ended  chan struct{}
	timer  *time.Timer
	asked  bool
}

// The table of leases in shared memory: a reader of another process looks there after it has copied.
type leaseSlot struct {
	id    atomic.Uint64 // 0 for none
	until atomic.Int64  // by the clock of this host that all its processes share
}

const leaseSlots = 1 << 16

func slotsOf(mem []byte) *[leaseSlots]leaseSlot {
	return (*[leaseSlots]leaseSlot)(unsafe.Pointer(unsafe.SliceData(mem)))
}

// tableAt is the table of leases in mapped memory.
func tableAt(mem []byte, at uint64) (*[leaseSlots]leaseSlot, error) {
	if at%8 != 0 || at > uint64(len(mem)) || uint64(len(mem))-at < uint64(slotBytes) {
		return nil, fmt.Errorf("its table of leases is at %d of %d bytes", at, len(mem))
	}
	return slotsOf(mem[at:]), nil
}

const slotBytes = leaseSlots * int(unsafe.Sizeof(leaseSlot{}))

// joined is descriptors in order, those that touch as one.
func joined(descs []Desc) []Desc {
	out := slices.Clone(descs)
	slices.SortFunc(out, func(a, b Desc) int {
		if a.Region != b.Region {
			return int(int64(a.Region) - int64(b.Region))
		}
		switch {
		case a.Off < b.Off:
			return -1
		case a.Off > b.Off:
			return 1
		}
		return 0
	})
	k := 0
	for _, d := range out[1:] {
		if l := &out[k]; l.Region == d.Region && d.Off <= l.Off+l.Len {
			l.Len = max(l.Len, d.Off+d.Len-l.Off)
			continue
		}
		k++
		out[k] = d
	}
	return out[:k+1]
}

// grant gives a lease on own regions. The holder's name is empty if whoever comes first with the number takes it.
// epoch is that of the description of a region by which the holder came.
func (a *Agent) grant(holder ID, descs []Desc, ttl time.Duration, epoch func(region uint32) uint64) (*lease, error) {
	l := &lease{agent: a, descs: joined(descs), holder: holder, until: time.Now().Add(ttl), users: map[interrupter]int{},
		ended: make(chan struct{}), slot: -1}
	l.idle.L = &l.mu
	l.revoke = l.ask
	regions := map[uint32]*Region{}
	for _, d := range descs { // as they came: joined ones may hide what is out of bounds
		r := regions[d.Region]
		if r == nil {
			var err error
			if r, err = a.region(d.Region); err != nil {
				return nil, err
			}
			if r.access&MayRead == 0 {
				return nil, fmt.Errorf("region %q: %w: it may not be read", r.name, ErrAccess)
			}
			regions[d.Region] = r
		}
		if err := bounds(d, r.Size()); err != nil {
			return nil, fmt.Errorf("region %q: %w", r.name, err)
		}
	}
	a.mu.Lock()
	a.lastLease++
	l.id = a.lastLease
	if a.slots != nil {
		if l.slot = a.takeSlot(l.id, ttl); l.slot < 0 {
			a.mu.Unlock()
			return nil, fmt.Errorf("%w: %d leases are given; release lists that are not needed", ErrLimit, leaseSlots)
		}
	}
	a.leases[l.id] = l
	a.mu.Unlock()
	l.mu.Lock()
	l.timer = time.AfterFunc(ttl+leaseGrace, l.expire)
	l.mu.Unlock()
	for _, r := range regions {
		if err := r.admit(l, epoch(r.id)); err != nil {
			l.end("it was refused")
			return nil, err
		}
	}
	return l, nil
}

// admit notes a lease, which Reclaim then awaits, unless the bytes are out of reach of a description of that epoch.
func (r *Region) admit(l *lease, epoch uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return fmt.Errorf("region %q: %w", r.name, ErrWithdrawn)
	}
	if err := r.reach(l.descs, epoch); err != nil {
		return err
	}
	r.leases[l] = struct{}{}
	return nil
}

// takeSlot enters a number into the table of leases; -1 if that is full. The caller holds mu.
func (a *Agent) takeSlot(id uint64, ttl time.Duration) int {
	for i := range leaseSlots {
		if at := (a.nextSlot + i) % leaseSlots; a.slots[at].id.Load() == 0 {
			a.slots[at].until.Store(hostClock() + int64(ttl))
			a.slots[at].id.Store(id)
			a.nextSlot = at + 1
			return at
		}
	}
	return -1
}

// stands is asked after bytes were copied out of mapped memory: were they the owner's to give until now?
func (t *leaseSlot) stands(id uint64) error {
	afterReads()
	switch {
	case t.id.Load() != id:
		return fmt.Errorf("%w: its owner took the memory back while it was read", ErrLease)
	case hostClock() > t.until.Load():
		return fmt.Errorf("%w: it ended while the memory was read", ErrLease)
	}
	return nil
}

// renew makes the lease last ttl from now on.
func (l *lease) renew(ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.how != "" || l.asked {
		return l.errOver()
	}
	l.until = time.Now().Add(ttl)
	l.timer.Reset(ttl + leaseGrace)
	if l.slot >= 0 {
		l.agent.slots[l.slot].until.Store(hostClock() + int64(ttl))
	}
	return nil
}

// errOver says why it cannot be used. The caller holds mu.
func (l *lease) errOver() error {
	switch {
	case l.asked:
		return fmt.Errorf("%w: %w", ErrLease, ErrWithdrawn)
	case l.how != "":
		return fmt.Errorf("%w: %s", ErrLease, l.how)
	}
	return fmt.Errorf("%w: it ended %s ago", ErrLease, time.Since(l.until).Round(time.Millisecond))
}

// expire ends a lease that nobody renewed.
func (l *lease) expire() {
	l.mu.Lock()
	left := time.Until(l.until.Add(leaseGrace))
	if left > 0 && l.how == "" {
		l.timer.Reset(left)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.end("it expired")
}

// end ends the lease, interrupts those that send out of it, and waits for them.
func (l *lease) end(how string) {
	a := l.agent
	l.mu.Lock()
	if l.how != "" {
		l.mu.Unlock()
		return
	}
	l.how = how
	l.timer.Stop()
	if l.slot >= 0 {
		a.slots[l.slot].id.Store(0)
	}
	for u := range l.users {
		u.interrupt()
	}
	for l.inner > 0 {
		l.idle.Wait()
	}
	l.mu.Unlock()
	holder := l.holderID()
	a.mu.Lock()
	delete(a.leases, l.id)
	g := a.guests[holder]
	a.mu.Unlock()
	if g != nil {
		g.mu.Lock()
		delete(g.leases, l)
		g.mu.Unlock()
	}
	for _, d := range l.descs {
		if r := a.known(d.Region); r != nil {
			r.mu.Lock()
			delete(r.leases, l)
			r.mu.Unlock()
		}
	}
	close(l.ended)
}

// use is called before bytes are sent out of the lease; by is interrupted if it ends meanwhile.
func (l *lease) use(by interrupter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Over a socket nobody can be late: what is sent is what is there now. So a lease that is asked back serves
	// what it has begun.
	if l.how != "" || time.Now().After(l.until) {
		return l.errOver()
	}
	l.inner++
	if by != nil {
		l.users[by]++
	}
	return nil
}

func (l *lease) unuse(by interrupter) {
	l.mu.Lock()
	l.inner--
	if by != nil {
		if l.users[by]--; l.users[by] == 0 {
			delete(l.users, by)
		}
	}
	if l.inner == 0 {
		l.idle.Broadcast()
	}
	l.mu.Unlock()
}

// ask asks the holder to give the lease back; one that nobody took is over at once.
func (l *lease) ask() {
	l.mu.Lock()
	l.asked = true
	holder := l.holder
	l.mu.Unlock()
	if holder.Name == "" || !l.agent.tellHolder(holder, l.id) {
		l.end("withdrawn")
	}
}

// over waits until the lease has ended.
func (l *lease) over(ctx context.Context) error {
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *lease) holderName() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder.Name
}

// touches reports whether the lease covers bytes of a range.
func (l *lease) touches(region uint32, off, n int64) bool {
	for _, d := range l.descs {
		if d.Region == region && d.Off < off+n && off < d.Off+d.Len {
			return true
		}
	}
	return false
}

// covers reports whether all of a descriptor is under the lease.
func (l *lease) covers(d Desc) bool {
	i, _ := slices.BinarySearchFunc(l.descs, d, func(e, t Desc) int {
		if e.Region != t.Region {
			return int(int64(e.Region) - int64(t.Region))
		}
		if e.Off+e.Len <= t.Off {
			return -1
		}
		return 0
	})
	if i == len(l.descs) {
		return false
	}
	e := l.descs[i]
	return e.Region == d.Region && e.Off <= d.Off && d.Off+d.Len <= e.Off+e.Len
}

// Grant is a lease that the owner gave before its reader asked: blocks that a peer will fetch stay as they are
// until it gives them back, or the time is over.
type Grant struct{ l *lease }

// Grant gives a lease on bytes of own regions to whoever prepares a list with its number (PrepareGranted). Bytes that were
// reclaimed are published first.
func (a *Agent) Grant(descs []Desc, ttl time.Duration) (*Grant, error) {
	if len(descs) == 0 || ttl <= 0 {
		return nil, fmt.Errorf("grant of %d descriptors for %s: want one and a time at least", len(descs), ttl)
	}
	l, err := a.grant(ID{}, descs, ttl, func(uint32) uint64 { return math.MaxUint64 }) // the owner knows what it grants
	if err != nil {
		return nil, fmt.Errorf("grant: %w", err)
	}
	return &Grant{l}, nil
}

// Number is what the reader is told.
func (g *Grant) Number() uint64 { return g.l.id }

// Over is closed when the reader gave the bytes back, or the time is over.
func (g *Grant) Over() <-chan struct{} { return g.l.ended }

// How says how the grant ended: "returned", "it expired", "withdrawn" or "the reader is gone"; empty until then.
func (g *Grant) How() string {
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	return g.l.how
}

// Revoke ends the grant, and waits for a reader at work as Region.Reclaim does.
func (g *Grant) Revoke(ctx context.Context) error {
	g.l.revoke()
	return g.l.over(ctx)
}

// hold is a lease as its reader keeps it.
type hold struct {
	id     uint64
	ttl    time.Duration
	slot   int // of the owner's table; -1 for none
	renew  func(ctx context.Context) error
	giveIt func() // tells the owner

	mu    sync.Mutex
	until time.Time // by our clock, never later than by the owner's
	users int
	asked bool // the owner wants it back, or the list was released
	given bool
}

// use is called before a read; it renews what is half over.
func (h *hold) use(ctx context.Context) error {
	h.mu.Lock()
	if h.asked {
		h.mu.Unlock()
		return fmt.Errorf("%w: %w", ErrLease, ErrWithdrawn)
	}
	h.users++
	stale := time.Until(h.until) < h.ttl/2
	h.mu.Unlock()
	if !stale {
		return nil
	}
	began := time.Now()
	err := h.renew(ctx)
	if err == nil {
		h.mu.Lock()
		h.until = began.Add(h.ttl)
		h.mu.Unlock()
		return nil
	}
	h.unuse()
	return err
}

// valid looks at the owner's table of leases, as the present session has it mapped, after bytes were copied.
func (h *hold) valid(table *[leaseSlots]leaseSlot) error {
	if table == nil || h.slot < 0 {
		return fmt.Errorf("%w: the owner's table of leases cannot be read", ErrLease)
	}
	return table[h.slot].stands(h.id)
}

func (h *hold) unuse() {
	h.mu.Lock()
	h.users--
	give := h.asked && h.users == 0 && !h.given
	h.given = h.given || give
	h.mu.Unlock()
	if give {
		h.giveIt()
	}
}

// giveBack gives the lease back once nobody reads under it.
func (h *hold) giveBack() {
	h.mu.Lock()
	h.asked = true
	give := h.users == 0 && !h.given
	h.given = h.given || give
	h.mu.Unlock()
	if give {
		h.giveIt()
	}
}
