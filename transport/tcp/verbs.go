//go:build linux

package tcp

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/transport"
)

// One-sided operations have a connection of their own for each direction of a
// pair, made when the first is posted, so that a message that nobody wants yet
// never holds them back. A goroutine of the target carries them out one after
// another, and answers each: that is the order which the verbs promise.
//
//	request  u8 verb, 7 zero, u64 key, u64 length or operand, u64 operand, then the data of a write
//	answer   u8 status, 7 zero, u64 result, then the data of a read
const (
	requestSize = 32
	answerSize  = 16
)

const (
	verbWrite = 1 + iota
	verbRead
	verbSwap
	verbAdd
	verbNotify
)

const (
	statusDone = iota
	statusNoMemory
	statusOdd
)

var verbNames = [...]string{verbWrite: "write", verbRead: "read", verbSwap: "compare and swap", verbAdd: "fetch and add", verbNotify: "notify"}

// operation is one that was posted.
type operation struct {
	ticket transport.Ticket
	verb   uint8
	key    transport.Key
	a, b   uint64
	mem    []byte // source of a write, destination of a read
	was    *uint64
}

// verbs is what an endpoint knows of its operations.
type verbs struct {
	ticket atomic.Uint64
	mu     sync.Mutex
	done   []transport.Completion
	to     map[int]*initiator
	served map[net.Conn]struct{}
	closed bool
}

// initiator posts operations to one peer.
type initiator struct {
	e    *Endpoint
	rank int
	mu   sync.Mutex
	cond *sync.Cond
	wait []*operation // not sent yet
	sent []*operation // not answered yet, in order
	err  error
	conn net.Conn
}

func (e *Endpoint) startVerbs() {
	e.verbs.to, e.verbs.served = map[int]*initiator{}, map[net.Conn]struct{}{}
	e.regions.byID = map[uint64]*region{}
}

// finish tells Poll that an operation is complete.
func (e *Endpoint) finish(peer int, o *operation, err error) {
	e.verbs.mu.Lock()
	e.verbs.done = append(e.verbs.done, transport.Completion{Ticket: o.ticket, Peer: peer, Err: err})
	e.verbs.mu.Unlock()
}

// Poll appends completions and notices.
func (e *Endpoint) Poll(done []transport.Completion) []transport.Completion {
	v := &e.verbs
	v.mu.Lock()
	defer v.mu.Unlock()
	done = append(done, v.done...)
	clear(v.done)
	v.done = v.done[:0]
	return done
}

// Write puts src into memory of a peer.
func (e *Endpoint) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return e.doPost(to, &operation{verb: verbWrite, key: dst, a: uint64(len(src)), mem: src})
}

// Read gets memory of a peer.
func (e *Endpoint) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return e.doPost(from, &operation{verb: verbRead, key: src, a: uint64(len(dst)), mem: dst})
}

// CompareSwap sets a word of a peer to new if it is old, and tells what it was.
func (e *Endpoint) CompareSwap(to int, word transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	return e.doPost(to, &operation{verb: verbSwap, key: word, a: old, b: new, was: was})
}

// FetchAdd adds to a word of a peer, and tells what it was.
func (e *Endpoint) FetchAdd(to int, word transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	return e.doPost(to, &operation{verb: verbAdd, key: word, a: add, was: was})
}

// Notify leaves a number with a peer.
func (e *Endpoint) Notify(to int, value uint32) (transport.Ticket, error) {
	return e.doPost(to, &operation{verb: verbNotify, a: uint64(value)})
}

func (e *Endpoint) doPost(to int, o *operation) (transport.Ticket, error) {
	if to < 0 || to >= e.cfg.Size {
		return 0, fmt.Errorf("%s: rank %d of %d", verbNames[o.verb], to, e.cfg.Size)
	}
	if err := e.peers[to].alive(); err != nil {
		return 0, err
	}
	v := &e.verbs
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return 0, transport.ErrClosed
	}
	o.ticket = transport.Ticket(v.ticket.Add(1))
	if to == e.cfg.Rank {
		v.mu.Unlock()
		e.own(o)
		return o.ticket, nil
	}
	x := v.to[to]
	if x == nil || x.failed() {
		x = &initiator{e: e, rank: to}
		x.cond = sync.NewCond(&x.mu)
		v.to[to] = x
		e.wg.Go(x.run)
	}
	v.mu.Unlock()
	x.mu.Lock()
	if x.err != nil {
		err := x.err
		x.mu.Unlock()
		e.finish(to, o, err)
		return o.ticket, nil
	}
	x.wait = append(x.wait, o)
	x.cond.Signal()
	x.mu.Unlock()
	return o.ticket, nil
}

// own carries out an operation of a rank on itself.
func (e *Endpoint) own(o *operation) {
	var data []byte
	r, mem, status := e.target(o.verb, o.key, o.a)
	if r != nil {
		defer r.release()
	}
	if status == statusDone {
		switch o.verb {
		case verbWrite:
			putMemory(mem, o.mem)
		case verbRead:
			data = mem
		}
		result := e.act(e.cfg.Rank, o.verb, mem, o.a, o.b)
		if o.was != nil {
			*o.was = result
		}
		copy(o.mem[:len(data)], data)
	}
	e.finish(e.cfg.Rank, o, o.problem(e.cfg.Rank, status))
}

// putMemory writes into registered memory. A word at its place is written at once,
// as its owner may be looking at it.
func putMemory(dst, src []byte) {
	if len(src) == 8 && uintptr(unsafe.Pointer(&dst[0]))%8 == 0 {
		(*atomic.Uint64)(unsafe.Pointer(&dst[0])).Store(binary.NativeEndian.Uint64(src))
		return
	}
	copy(dst, src)
}

// target is the memory that an operation is on.
func (e *Endpoint) target(verb uint8, key transport.Key, length uint64) (*region, []byte, uint8) {
	switch verb {
	case verbNotify:
		return nil, nil, statusDone
	case verbSwap, verbAdd:
		if key%8 != 0 {
			return nil, nil, statusOdd
		}
		length = 8
	}
	r, mem := e.at(key, length)
	if r == nil {
		return nil, nil, statusNoMemory
	}
	return r, mem, statusDone
}

// act carries out what is not moving data.
func (e *Endpoint) act(from int, verb uint8, mem []byte, a, b uint64) uint64 {
	switch verb {
	case verbSwap:
		w := (*atomic.Uint64)(unsafe.Pointer(&mem[0]))
		for {
			was := w.Load()
			if was != a || w.CompareAndSwap(a, b) {
				return was
			}
		}
	case verbAdd:
		return (*atomic.Uint64)(unsafe.Pointer(&mem[0])).Add(a) - a
	case verbNotify:
		e.verbs.mu.Lock()
		e.verbs.done = append(e.verbs.done, transport.Completion{Peer: from, Notice: uint32(a)})
		e.verbs.mu.Unlock()
	}
	return 0
}

// problem is a status in words.
func (o *operation) problem(rank int, status uint8) error {
	n := len(o.mem)
	if o.verb == verbSwap || o.verb == verbAdd {
		n = 8
	}
	switch status {
	case statusDone:
		return nil
	case statusOdd:
		return fmt.Errorf("%s at key %#x of rank %d: words lie at multiples of 8", verbNames[o.verb], uint64(o.key), rank)
	}
	return fmt.Errorf("%s of %d bytes at key %#x of rank %d: it has no such memory", verbNames[o.verb], n, uint64(o.key), rank)
}

func (x *initiator) failed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err != nil
}

// run connects, then sends what is posted.
func (x *initiator) run() {
	conn, err := x.dial()
	if err != nil {
		x.fail(fmt.Errorf("rank %d cannot be reached for one-sided operations: %w", x.rank, err))
		return
	}
	x.mu.Lock()
	if x.err != nil {
		x.mu.Unlock()
		conn.Close()
		return
	}
	x.conn = conn
	x.mu.Unlock()
	x.e.wg.Go(x.read)
	const batch = 64
	var heads [batch][requestSize]byte
	for {
		x.mu.Lock()
		for len(x.wait) == 0 && x.err == nil {
			x.cond.Wait()
		}
		if x.err != nil {
			x.mu.Unlock()
			return
		}
		n := min(len(x.wait), batch)
		ops := x.wait[:n:n]
		x.wait = x.wait[n:]
		x.sent = append(x.sent, ops...)
		x.mu.Unlock()
		bufs := make(net.Buffers, 0, 2*n)
		for i, o := range ops {
			h := heads[i][:]
			h[0] = o.verb
			binary.LittleEndian.PutUint64(h[8:], uint64(o.key))
			binary.LittleEndian.PutUint64(h[16:], o.a)
			binary.LittleEndian.PutUint64(h[24:], o.b)
			bufs = append(bufs, h)
			if o.verb == verbWrite && len(o.mem) > 0 {
				bufs = append(bufs, o.mem)
			}
		}
		if _, err := bufs.WriteTo(conn); err != nil {
			x.fail(err)
			return
		}
	}
}

// dial tries the rails in order.
func (x *initiator) dial() (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(x.e.ctx, dialTime)
	defer cancel()
	for _, p := range x.e.pairsWith(x.rank) {
		conn, err = x.e.dialOnce(ctx, x.rank, lane{uint32(p[0]), uint32(p[1]), 0, laneVerbs})
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// read takes the answers.
func (x *initiator) read() {
	in := bufio.NewReaderSize(x.conn, 64<<10)
	var h [answerSize]byte
	for {
		if _, err := io.ReadFull(in, h[:]); err != nil {
			x.fail(err)
			return
		}
		x.mu.Lock()
		if len(x.sent) == 0 {
			x.mu.Unlock()
			x.fail(fmt.Errorf("rank %d answered what was not asked", x.rank))
			return
		}
		o := x.sent[0]
		x.sent = x.sent[1:]
		x.mu.Unlock()
		if o.verb == verbRead && h[0] == statusDone {
			if _, err := io.ReadFull(in, o.mem); err != nil {
				x.e.finish(x.rank, o, x.why(err))
				x.fail(err)
				return
			}
		}
		if o.was != nil && h[0] == statusDone {
			*o.was = binary.LittleEndian.Uint64(h[8:])
		}
		x.e.finish(x.rank, o, o.problem(x.rank, h[0]))
	}
}

// why prefers what is known about the peer to what a socket says.
func (x *initiator) why(err error) error {
	if x.e.closed.Load() {
		return transport.ErrClosed
	}
	if gone := x.e.peers[x.rank].alive(); gone != nil {
		return gone
	}
	return fmt.Errorf("one-sided operations with rank %d: %w", x.rank, err)
}

// fail completes everything that was posted, with an error.
func (x *initiator) fail(err error) {
	x.mu.Lock()
	if x.err != nil {
		x.mu.Unlock()
		return
	}
	x.err = x.why(err)
	ops := append(x.sent, x.wait...)
	x.sent, x.wait = nil, nil
	if x.conn != nil {
		x.conn.Close()
	}
	x.cond.Broadcast()
	x.mu.Unlock()
	for _, o := range ops {
		x.e.finish(x.rank, o, x.err)
	}
}

// serveVerbs carries out what a peer posts.
func (e *Endpoint) serveVerbs(conn net.Conn, rank int) {
	v := &e.verbs
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		conn.Close()
		return
	}
	v.served[conn] = struct{}{}
	e.wg.Go(func() {
		e.agent(conn, rank)
		conn.Close()
		v.mu.Lock()
		delete(v.served, conn)
		v.mu.Unlock()
	})
	v.mu.Unlock()
}

// agent is the target's side of a connection.
func (e *Endpoint) agent(conn net.Conn, rank int) {
	in, out := bufio.NewReaderSize(conn, 64<<10), bufio.NewWriterSize(conn, 64<<10)
	var h [requestSize]byte
	var ans [answerSize]byte
	for {
		if in.Buffered() < requestSize && out.Flush() != nil {
			return
		}
		if _, err := io.ReadFull(in, h[:]); err != nil {
			return
		}
		le := binary.LittleEndian
		verb, key, a, b := h[0], transport.Key(le.Uint64(h[8:])), le.Uint64(h[16:]), le.Uint64(h[24:])
		if verb < verbWrite || verb > verbNotify {
			return
		}
		r, mem, status := e.target(verb, key, a)
		err := func() error {
			if r != nil {
				defer r.release()
			}
			if verb == verbWrite {
				if err := take(in, mem, a, status == statusDone); err != nil {
					return err
				}
			}
			clear(ans[:])
			ans[0] = status
			if status == statusDone {
				le.PutUint64(ans[8:], e.act(rank, verb, mem, a, b))
			}
			if _, err := out.Write(ans[:]); err != nil {
				return err
			}
			if verb == verbRead && status == statusDone {
				_, err := out.Write(mem)
				return err
			}
			return nil
		}()
		if err != nil {
			return
		}
	}
}

// take reads the n bytes of a write into memory, or past it if there is none.
func take(in *bufio.Reader, mem []byte, n uint64, ok bool) error {
	if !ok {
		if n > 1<<62 {
			return fmt.Errorf("write of %d bytes", n)
		}
		_, err := io.CopyN(io.Discard, in, int64(n))
		return err
	}
	if n == 8 {
		var w [8]byte
		if _, err := io.ReadFull(in, w[:]); err != nil {
			return err
		}
		putMemory(mem, w[:])
		return nil
	}
	_, err := io.ReadFull(in, mem)
	return err
}

// stopVerbs ends all operations.
func (e *Endpoint) stopVerbs() {
	v := &e.verbs
	v.mu.Lock()
	v.closed = true
	var xs []*initiator
	for _, x := range v.to {
		xs = append(xs, x)
	}
	for c := range v.served {
		c.Close()
	}
	v.mu.Unlock()
	for _, x := range xs {
		x.fail(transport.ErrClosed)
	}
}
