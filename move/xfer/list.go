package xfer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// List is a checked list of descriptors, of this agent's regions or of a peer's. One list serves many
// requests, each with some of its descriptors.
type List struct {
	agent    *Agent
	peer     *Peer // nil for own regions
	descs    []Desc
	disjoint bool               // no two of them overlap
	own      map[uint32]*Region // of own lists
	far      map[uint32]*Remote // of a peer's: as they were described when the list was prepared
	grant    uint64             // a lease that the owner gave beforehand; 0 for none

	asks chan struct{} // held by the request that asks for the lease

	mu       sync.Mutex
	lease    *hold // of a peer's list, from the first read on
	released bool
}

// Prepare checks descriptors of own regions (peer nil) or of a peer's.
func (a *Agent) Prepare(peer *Peer, descs []Desc) (*List, error) {
	return a.prepare(peer, descs, 0)
}

// find enters a region of the agent, or of its peer.
func (l *List) find(id uint32) (size int64, name string, err error) {
	if l.peer == nil {
		r, err := l.agent.region(id)
		if err != nil {
			return 0, "", err
		}
		l.own[id] = r
		return r.Size(), r.name, nil
	}
	r, err := l.peer.region(id)
	if err != nil {
		return 0, "", err
	}
	l.far[id] = r
	return r.Size, r.Name, nil
}

// PrepareGranted is Prepare for reading under a lease that the owner gave beforehand (Agent.Grant).
func (a *Agent) PrepareGranted(peer *Peer, descs []Desc, grant uint64) (*List, error) {
	return a.prepare(peer, descs, grant)
}

// prepare checks the pieces once, so that requests need not: each must lie in its region. A nil peer means regions of
// this agent. The list owns a copy of descs.
func (a *Agent) prepare(peer *Peer, descs []Desc, grant uint64) (*List, error) {
	l := &List{agent: a, peer: peer, descs: slices.Clone(descs), grant: grant, asks: make(chan struct{}, 1)}
	whose := a.id.Name
	if peer != nil {
		whose = peer.id.Name
	}
	if len(descs) == 0 || len(descs) > MaxDescs {
		return nil, fmt.Errorf("prepare a list of %s: %w: %d descriptors, want 1 to %d", whose, ErrLimit, len(descs), MaxDescs)
	}
	if peer == nil {
		l.own = map[uint32]*Region{}
	} else {
		l.far = map[uint32]*Remote{}
	}
	var size int64
	var name string
	for i, d := range descs {
		if i == 0 || d.Region != descs[i-1].Region {
			var err error
			if size, name, err = l.find(d.Region); err != nil {
				return nil, fmt.Errorf("prepare a list of %s: descriptor %d: %w", whose, i, err)
			}
		}
		if err := bounds(d, size); err != nil {
			return nil, fmt.Errorf("prepare a list of %s: descriptor %d of region %q: %w", whose, i, name, err)
		}
	}
	l.disjoint = overlap(l.descs) < 0
	return l, nil
}

// bounds checks a descriptor against the size of its region.
func bounds(d Desc, size int64) error {
	if d.Len <= 0 || d.Off < 0 || d.Off > size || d.Len > size-d.Off {
		return fmt.Errorf("%w: %d bytes at %d of %d", ErrBounds, d.Len, d.Off, size)
	}
	return nil
}

// memory reports whether an agent's list is all memory, of the host and of GPUs that make no copies at this moment.
func (l *List) memory(of *Agent) (host, device, ok bool) {
	ids := maps.Keys(l.own)
	if l.own == nil {
		ids = maps.Keys(l.far)
	}
	for id := range ids {
		g, err := of.region(id)
		if err != nil {
			return host, device, false
		}
		if g.mem != nil {
			host = true
			continue
		}
		d, ok := (&place{store: g.store}).device()
		if !ok || len(d.lanes) < lanes {
			return host, device, false
		}
		device = true
	}
	return host, device, true
}

// Len is the number of descriptors.
func (l *List) Len() int { return len(l.descs) }

// Release gives the list back, and the lease that reads of it had.
func (l *List) Release() {
	l.mu.Lock()
	h := l.lease
	l.lease, l.released = nil, true
	l.mu.Unlock()
	if h != nil {
		h.giveBack()
	}
}

// overlap gives the index of a descriptor that overlaps another, or -1.
func overlap(descs []Desc) int {
	ordered := true
	for i := 1; i < len(descs) && ordered; i++ {
		p, d := descs[i-1], descs[i]
		ordered = p.Region < d.Region || p.Region == d.Region && p.Off+p.Len <= d.Off
	}
	if ordered {
		return -1
	}
	order := make([]int, len(descs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(descs[a].Region, descs[b].Region), cmp.Compare(descs[a].Off, descs[b].Off))
	})
	for k := 1; k < len(order); k++ {
		p, d := descs[order[k-1]], descs[order[k]]
		if p.Region == d.Region && p.Off+p.Len > d.Off {
			return order[k]
		}
	}
	return -1
}

// pair is two runs of equal length, the local and the remote one.
type pair struct{ local, remote Desc }

// pairs joins descriptors of two lists, by index, nil for all, and those that go on where the last ended.
func pairs(op Op, local *List, li []int, remote *List, ri []int) ([]pair, int64, error) {
	n := len(li)
	if li == nil {
		n = local.Len()
	}
	m := len(ri)
	if ri == nil {
		m = remote.Len()
	}
	if n != m || n == 0 {
		return nil, 0, fmt.Errorf("%w: %d local and %d remote descriptors", ErrLength, n, m)
	}
	for _, s := range []struct {
		what  string
		list  *List
		index []int
		dest  bool
	}{{"local", local, li, op == Read}, {"remote", remote, ri, op == Write}} {
		if err := s.list.subset(s.index, s.dest); err != nil {
			return nil, 0, fmt.Errorf("%s list: %w", s.what, err)
		}
	}
	out := make([]pair, 0, n)
	total := int64(0)
	for i := range n {
		l, r := i, i
		if li != nil {
			l = li[i]
		}
		if ri != nil {
			r = ri[i]
		}
		p := pair{local.descs[l], remote.descs[r]}
		if p.local.Len != p.remote.Len {
			return nil, 0, fmt.Errorf("%w: pair %d: %d local bytes, %d remote", ErrLength, i, p.local.Len, p.remote.Len)
		}
		total += p.local.Len
		if k := len(out) - 1; k >= 0 && follows(out[k].local, p.local) && follows(out[k].remote, p.remote) {
			out[k].local.Len += p.local.Len
			out[k].remote.Len += p.local.Len
			continue
		}
		out = append(out, p)
	}
	if total > maxTransfer {
		return nil, 0, fmt.Errorf("%w: %d bytes in one request, at most %d", ErrLimit, total, int64(maxTransfer))
	}
	return out, total, nil
}

func follows(a, b Desc) bool { return a.Region == b.Region && a.Off+a.Len == b.Off }

// subset checks indices, and of a destination that no two of the descriptors overlap.
func (l *List) subset(index []int, dest bool) error {
	if index == nil {
		if dest && !l.disjoint {
			return fmt.Errorf("%w: descriptor %d", ErrOverlap, overlap(l.descs))
		}
		return nil
	}
	var seen []uint64
	if dest && l.disjoint {
		seen = make([]uint64, (len(l.descs)+63)/64)
	}
	for k, i := range index {
		if i < 0 || i >= len(l.descs) {
			return fmt.Errorf("%w: index %d is %d, the list has %d descriptors", ErrBounds, k, i, len(l.descs))
		}
		if seen != nil {
			if seen[i/64]&(1<<(i%64)) != 0 {
				return fmt.Errorf("%w: descriptor %d is named twice", ErrOverlap, i)
			}
			seen[i/64] |= 1 << (i % 64)
		}
	}
	if dest && !l.disjoint {
		some := make([]Desc, len(index))
		for k, i := range index {
			some[k] = l.descs[i]
		}
		if at := overlap(some); at >= 0 {
			return fmt.Errorf("%w: descriptor %d", ErrOverlap, index[at])
		}
	}
	return nil
}

// place is one end of a copy: memory, or storage that is asked for its bytes.
type place struct {
	mem    []byte
	store  Storage
	sink   Sink // if set, writes go there
	region *Region

	mu     sync.Mutex
	source Source // of storage that is read as a whole, from the first read on
	closed bool
}

// read copies from memory or from what the region is stored in. b is filled, or there is an error.
func (p *place) read(ctx context.Context, b []byte, off int64) error {
	if p.mem != nil {
		copy(b, p.mem[off:])
		return nil
	}
	w, ok := p.store.(Whole)
	if !ok {
		return storageError(p.region, p.store.ReadAt(ctx, b, off))
	}
	s, err := p.open(ctx, w)
	if err == nil {
		err = s.ReadAt(ctx, b, off)
	}
	return storageError(p.region, err)
}

// open gives the source of the request, the same one for all its reads.
func (p *place) open(ctx context.Context, w Whole) (Source, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, context.Canceled // the request is over
	}
	var err error
	if p.source == nil {
		p.source, err = w.Open(ctx)
	}
	return p.source, err
}

// close ends reading.
func (p *place) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed = true; p.source != nil {
		_ = p.source.Close()
	}
}

// places are the regions that a request reads, each opened once, however often the request is begun again after a lost connection.
type places map[uint32]*place

// of gives the place of a region.
func (p places) of(id uint32, find func() (*Region, error)) (*place, error) {
	r, err := find()
	if err != nil {
		return nil, err
	}
	at := p[id]
	if at == nil {
		at = &place{mem: r.mem, store: r.store, region: r}
		p[id] = at
	}
	return at, nil
}

func (p places) close() {
	for _, at := range p {
		at.close()
	}
}

func (p *place) write(ctx context.Context, b []byte, off int64) error {
	switch {
	case p.mem != nil:
		copy(p.mem[off:], b)
		return nil
	case p.sink != nil:
		return storageError(p.region, p.sink.WriteAt(ctx, b, off))
	}
	return storageError(p.region, p.store.WriteAt(ctx, b, off))
}

// depth is how many calls at once it takes.
func (p *place) depth() int {
	if p.mem != nil {
		return 1
	}
	return p.store.Depth()
}

// part is a run of bytes of a place.
type part struct {
	at     *place
	off, n int64
}

// view is one side of a request: the bytes of its parts, one after another.
type view struct {
	parts []part
	start []int64 // of each part, and the end; made by index
}

// index makes the view ready for each and bytes.
func (v *view) index() {
	if v.start != nil {
		return
	}
	v.start = make([]int64, len(v.parts)+1)
	for i, p := range v.parts {
		v.start[i+1] = v.start[i] + p.n
	}
}

// each calls f for the runs that make up n bytes from off on.
func (v *view) each(off, n int64, f func(p *place, off, n int64) error) error {
	i, found := slices.BinarySearch(v.start, off)
	if !found {
		i--
	}
	for n > 0 {
		in := off - v.start[i]
		k := min(n, v.parts[i].n-in)
		if err := f(v.parts[i].at, v.parts[i].off+in, k); err != nil {
			return err
		}
		off, n, i = off+k, n-k, i+1
	}
	return nil
}

// flat gives n bytes from off on as one piece of memory, nil if they are none.
func (v *view) flat(off, n int64) []byte {
	i, found := slices.BinarySearch(v.start, off)
	if !found {
		i--
	}
	p := v.parts[i]
	if in := off - v.start[i]; p.at.mem != nil && in+n <= p.n {
		return p.at.mem[p.off+in:][:n:n]
	}
	return nil
}

// together reports whether it is one run of memory.
func (v *view) together() bool { return len(v.parts) == 1 && v.parts[0].at.mem != nil }

// pulledFrom is the process of this host that all bytes are read out of by system calls; 0: they are not.
func (v *view) pulledFrom() (pid int) {
	var last *place
	for i := range v.parts {
		at := v.parts[i].at
		if at == last {
			continue
		}
		p, ok := at.store.(pulled)
		if !ok || at.mem != nil || pid != 0 && p.pid != pid {
			return 0
		}
		pid, last = p.pid, at
	}
	return pid
}

// inMemory reports whether all of it is memory.
func (v *view) inMemory() bool {
	var last *place
	for i := range v.parts {
		if at := v.parts[i].at; at != last {
			if at.mem == nil {
				return false
			}
			last = at
		}
	}
	return true
}

func (v *view) depth() int {
	d := 1
	var last *place
	for i := range v.parts {
		if at := v.parts[i].at; at != last {
			d, last = max(d, at.depth()), at
		}
	}
	return d
}

// viewOf makes a view of descriptors; find gives the place of a region.
func viewOf(n int, desc func(i int) Desc, find func(region uint32) (*place, error)) (view, error) {
	v := view{parts: make([]part, n)}
	known := map[uint32]*place{}
	var last *place
	var number uint32
	for i := range n {
		d := desc(i)
		if last == nil || d.Region != number {
			at := known[d.Region]
			if at == nil {
				var err error
				if at, err = find(d.Region); err != nil {
					return v, err
				}
				known[d.Region] = at
			}
			last, number = at, d.Region
		}
		v.parts[i] = part{last, d.Off, d.Len}
	}
	return v, nil
}
