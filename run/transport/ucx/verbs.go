//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/weft-fabric/weft/run/transport"
)

// verbs are the one-sided operations of a rank on memory of others.
type verbs struct {
	*regions
	crowded  bool             // ranks outnumber cores
	ticket   transport.Ticket // the last
	running  []*op
	flushing []*peer
	parting  []parting
	done     []transport.Completion
}

// remote is what a rank knows of a region of another.
type remote struct {
	asked, known bool
	base         uint64
	n            int // of bytes; 0 if there is no such region
	rkey         uintptr
	using        int  // operations under way
	gone         bool // its owner freed it
}

// op is a posted operation.
type op struct {
	ticket transport.Ticket
	peer   *peer
	kind   uint8
	key    transport.Key
	b      []byte // memory of the caller
	was    *uint64
	value  uint64 // to add, to swap in, or the notice
	old    uint64
	s      *slot
	far    *remote
	flush  *slot // before a notice
}

const (
	opWrite = iota
	opRead
	opSwap
	opAdd
	opNotify
)

// learnKey takes a key that was asked for.
func (v *verbs) learnKey(p *peer, number, base uint64, packed []byte) {
	f := p.far[number]
	if f == nil || f.known {
		return
	}
	f.known = true
	if len(packed) > 8 {
		m := mapped(len(packed) + 8)
		defer m.free()
		copy(m.b[8:], packed[8:])
		if err := v.lib.status("ucp_ep_rkey_unpack", p.ep, m.at()+8, m.at()); err == nil {
			f.rkey, f.base, f.n = m.pointer(0), base, int(*(*uint64)(unsafe.Pointer(&packed[0])))
		}
	}
	if f.rkey == 0 {
		f.gone = true
		delete(p.far, number) // those that wait for it have it; the next asks again
	}
	v.issue(p)
}

// dropKey forgets a region that its owner has freed, and tells it so once nothing is under way there.
func (v *verbs) dropKey(p *peer, number uint64) {
	if f := p.far[number]; f != nil {
		f.gone = true
		if f.using > 0 {
			v.drain()
		}
		if f.using > 0 {
			v.parting = append(v.parting, parting{p, number, f})
			return
		}
		if f.rkey != 0 {
			v.lib.call("ucp_rkey_destroy", f.rkey)
			f.rkey = 0
		}
		delete(p.far, number)
	}
	v.control(p, header{kind: kindForgot, length: number}, nil)
}

// parting is a region that its owner has freed while operations were under way.
type parting struct {
	p      *peer
	number uint64
	f      *remote
}

// begin posts an operation.
func (v *verbs) begin(rank int, o *op) (transport.Ticket, error) {
	if rank < 0 || rank >= v.size {
		return 0, fmt.Errorf("ucx: rank %d; ranks are 0 to %d", rank, v.size-1)
	}
	if (o.kind == opSwap || o.kind == opAdd) && o.key%8 != 0 {
		return 0, fmt.Errorf("ucx: an atomic at key %#x: words are at multiples of 8", uint64(o.key))
	}
	if err := v.enter(); err != nil {
		return 0, err
	}
	defer v.leave()
	v.mu.Lock()
	defer v.unlock()
	v.ticket++
	o.ticket = v.ticket
	if rank == v.rank {
		err := v.alone(o)
		if err != nil {
			return 0, err
		}
		v.done = append(v.done, transport.Completion{Ticket: o.ticket, Peer: rank})
		return o.ticket, nil
	}
	o.peer = v.peers[rank]
	if g := o.peer.gone.Load(); g != nil {
		return 0, g
	}
	o.peer.ops = append(o.peer.ops, o)
	v.issue(o.peer)
	v.settle()
	return o.ticket, nil
}

// alone carries out an operation of a rank on itself.
func (v *verbs) alone(o *op) error {
	if o.kind == opNotify {
		v.done = append(v.done, transport.Completion{Peer: v.rank, Notice: uint32(o.value)})
		return nil
	}
	b, err := v.own(o.key, len(o.b))
	if err != nil {
		return err
	}
	switch o.kind {
	case opWrite:
		copy(b, o.b)
	case opRead:
		copy(o.b, b)
	case opAdd:
		*o.was = word(b).Add(o.value) - o.value
	case opSwap:
		for {
			v := word(b).Load()
			if v != o.old || word(b).CompareAndSwap(o.old, o.value) {
				*o.was = v
				break
			}
		}
	}
	return nil
}

func word(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[0])) }

// issue gives UCX what a peer's queue holds, as far as it may go; the caller holds the lock, outside of UCX.
func (v *verbs) issue(p *peer) {
	for len(p.ops) > 0 {
		o := p.ops[0]
		if !v.start(o) {
			return
		}
		p.ops[0] = nil
		if p.ops = p.ops[1:]; len(p.ops) == 0 {
			p.ops = nil
		}
	}
}

// start begins an operation; false if it has to wait.
func (v *verbs) start(o *op) bool {
	p := o.peer
	if g := p.gone.Load(); g != nil {
		v.complete(o, g)
		return true
	}
	if o.kind == opNotify {
		return v.notify(o)
	}
	number, off := uint64(o.key)>>offsetBits, int(uint64(o.key)&(1<<offsetBits-1))
	if o.far == nil {
		f := p.far[number]
		if f == nil {
			f = &remote{}
			p.far[number] = f
		}
		o.far = f
	}
	f := o.far
	if !f.known && !f.gone {
		if !f.asked {
			f.asked = true
			v.control(p, header{kind: kindAsk, length: number}, nil)
		}
		return false
	}
	switch {
	case f.gone || f.rkey == 0:
		v.complete(o, noRegion(o.key))
		return true
	case off > f.n || len(o.b) > f.n-off:
		v.complete(o, beyond(len(o.b), off, f.n))
		return true
	case len(o.b) == 0:
		v.complete(o, nil)
		return true
	}
	at := uintptr(f.base) + uintptr(off)
	s := v.slot(o.b)
	o.s = s
	f.using++
	if p.unflushed && o.kind == opWrite {
		purego.SyscallN(v.lib.fence, v.handle) // writes are seen in the order in which they were posted
	}
	switch o.kind {
	case opWrite:
		p.unflushed = true
		s.begin(v.lib.put, p.ep, address(o.b), uintptr(len(o.b)), at, f.rkey, s.params())
	case opRead:
		s.begin(v.lib.get, p.ep, address(o.b), uintptr(len(o.b)), at, f.rkey, s.params())
	default:
		s.param.mask |= attrDatatype | attrReply
		s.param.datatype, s.param.reply = contiguous8, uintptr(unsafe.Pointer(&s.reply))
		code := uintptr(0) // add
		s.operand = o.value
		if o.kind == opSwap {
			code = 2 // compare and swap
			s.operand, s.reply = o.old, o.value
		}
		p.unflushed = true
		s.begin(v.lib.atomic, p.ep, code, uintptr(unsafe.Pointer(&s.operand)), 1, at, f.rkey, s.params())
	}
	v.running = append(v.running, o)
	return true
}

// notify sends a notice once what was written before has arrived; false if it has to wait.
func (v *verbs) notify(o *op) bool {
	p := o.peer
	if o.flush == nil && p.unflushed {
		p.unflushed = false
		o.flush = v.slot(nil)
		o.flush.begin(v.lib.flush, p.ep, o.flush.params())
		v.flushing = append(v.flushing, p)
	}
	if o.flush != nil {
		if !o.flush.ended() {
			return false
		}
		status := o.flush.status.Load()
		v.put(o.flush)
		o.flush = nil
		if status < 0 { // what was written before may be missing: a notice would say that it is there
			v.lost(p, "UCX: "+v.lib.words(status))
			v.complete(o, p.gone.Load())
			return true
		}
	}
	o.s = v.post(p, header{kind: kindNotice, length: o.value}, nil)
	v.running = append(v.running, o)
	return true
}

// complete is the end of an operation.
func (v *verbs) complete(o *op, err error) {
	c := transport.Completion{Ticket: o.ticket, Err: err}
	if o.peer != nil {
		c.Peer = o.peer.rank
	}
	v.done = append(v.done, c)
	o.b, o.was = nil, nil
}

// drain ends operations that UCX is done with, and goes on with those that waited.
func (v *verbs) drain() {
	if len(v.running) > 0 {
		rest := v.running[:0]
		for _, o := range v.running {
			if !o.s.ended() {
				rest = append(rest, o)
				continue
			}
			var err error
			if status := o.s.status.Load(); status < 0 {
				if o.peer.gone.Load() == nil {
					v.lost(o.peer, "UCX: "+v.lib.words(status))
				}
				err = o.peer.gone.Load()
			} else if o.was != nil {
				*o.was = o.s.reply
			}
			if o.far != nil {
				o.far.using--
			}
			v.put(o.s)
			v.complete(o, err)
		}
		clear(v.running[len(rest):])
		v.running = rest
	}
	if len(v.flushing) > 0 {
		list := v.flushing
		v.flushing = nil
		for _, p := range list {
			if len(p.ops) > 0 && p.ops[0].flush != nil && !p.ops[0].flush.ended() {
				v.flushing = append(v.flushing, p)
				continue
			}
			v.issue(p)
		}
	}
	if len(v.parting) > 0 {
		list := v.parting
		v.parting = nil
		for _, x := range list {
			if x.f.using > 0 {
				v.parting = append(v.parting, x)
			} else {
				v.dropKey(x.p, x.number)
			}
		}
	}
}

// parted ends the operations of a rank that is gone, and lets go of what it held.
func (v *verbs) parted(p *peer) {
	v.issue(p)
	v.letGo(p)
}

// Write posts a write.
func (v *verbs) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return v.begin(to, &op{kind: opWrite, key: dst, b: src})
}

// Read posts a read.
func (v *verbs) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return v.begin(from, &op{kind: opRead, key: src, b: dst})
}

var eight [8]byte // as long as a word

// CompareSwap posts one.
func (v *verbs) CompareSwap(to int, at transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	return v.begin(to, &op{kind: opSwap, key: at, b: eight[:], old: old, value: new, was: was})
}

// FetchAdd posts one.
func (v *verbs) FetchAdd(to int, at transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	return v.begin(to, &op{kind: opAdd, key: at, b: eight[:], value: add, was: was})
}

// Notify leaves a number with a peer.
func (v *verbs) Notify(to int, value uint32) (transport.Ticket, error) {
	return v.begin(to, &op{kind: opNotify, value: uint64(value)})
}

// Poll lets UCX work and appends what has ended.
func (v *verbs) Poll(done []transport.Completion) []transport.Completion {
	if v.enter() != nil {
		return done
	}
	defer v.leave()
	v.mu.Lock()
	moved := v.progress(1)
	v.drain()
	done = append(done, v.done...)
	v.done = v.done[:0]
	v.settle()
	v.unlock()
	if !moved && v.crowded {
		runtime.Gosched()
	}
	return done
}

var _ transport.Verbs = (*verbs)(nil)
