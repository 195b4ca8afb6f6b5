//go:build linux

// Package verbs executes one-sided operations over separate connections.
//
// There is one connection per direction of a pair, made when the first operation is
// posted, so that an unreceived message never delays operations. A goroutine at the
// target executes and answers them one after another, which is the promised order.
//
//	resume   call: the poster's session    number: answers it has received
//	verb     call: length or operand       number: key    body: the new value of a compare and swap, or the first part of a write
//	answer   call: result                  number: of the operation    flags: status    body: the first part of what was read
//	more     body: the next part of at most 256 KiB
//
// A broken connection is replaced. It begins with resume; unanswered operations are resent. The target knows how many operations of the session it has executed, so it answers those
// again without executing them twice.
package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/retry"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/record"
)

const (
	portion = 256 << 10 // of data in a record

	unanswered = 1024 // operations that may be: the target remembers its last answers

	redialFirst = 5 * time.Millisecond
	redialMost  = 400 * time.Millisecond
)

const (
	verbWrite = 1 + iota
	verbRead
	verbSwap
	verbAdd
	verbNotify
	kindResume
	kindAnswer
	kindMore
)

const (
	statusDone = iota
	statusNoMemory
	statusOdd
)

var verbNames = [...]string{verbWrite: "write", verbRead: "read", verbSwap: "compare and swap", verbAdd: "fetch and add",
	verbNotify: "notify"}

// operation is one that was posted.
type operation struct {
	ticket transport.Ticket
	verb   uint8
	key    transport.Key
	a, b   uint64
	mem    []byte // source of a write, destination of a read
	was    *uint64
}

// Net is what the verbs need of their endpoint.
type Net interface {
	Dial(rank int) (*record.Conn, error) // a connection for verbs
	Alive(rank int) error
	Resumes() bool // a connection that breaks is made again, as long as the rank is alive
	Closed() bool
	Go(f func()) // starts a goroutine that the endpoint waits for
}

// Verbs are the operations of a rank, and its memory that peers may name.
type Verbs struct {
	net        Net
	rank, size int
	regions    regions
	named      func(k transport.Key, n int) ([]byte, error) // finds memory that is not in regions; may be nil

	ticket atomic.Uint64
	mu     sync.Mutex
	done   []transport.Completion
	to     map[int]*initiator
	from   map[int]*session
	served map[*record.Conn]struct{}
	closed bool
}

// session is what a target knows of the operations of a peer.
type session struct {
	mu   sync.Mutex // held by the goroutine that serves it
	id   uint64
	done uint64 // operations that were carried out
	last [unanswered]answer

	conn *record.Conn // under the lock of Verbs
}

// answer is one that was given.
type answer struct {
	status uint8
	result uint64
}

// initiator posts operations to one peer.
type initiator struct {
	v    *Verbs
	rank int
	id   uint64
	mu   sync.Mutex
	cond *sync.Cond
	wait []*operation // not sent yet
	sent []*operation // not answered yet, in order
	seen uint64       // answers that came
	err  error
	conn *record.Conn // nil while there is none

	landing bool // the reader puts what comes into the caller's memory: nothing is completed or sent again before it has ended
}

// land waits until no byte lands any more in memory of an operation. The connection is closed; the caller holds mu.
func (x *initiator) land() {
	for x.landing {
		x.cond.Wait()
	}
}

// New makes the verbs of a rank. named finds own memory whose keys others give; nil
// where the memory is got from Alloc.
func New(rank, size int, n Net, named func(k transport.Key, n int) ([]byte, error)) *Verbs {
	return &Verbs{net: n, rank: rank, size: size, named: named, regions: regions{byID: map[uint64]*region{}}, to: map[int]*initiator{},
		from: map[int]*session{}, served: map[*record.Conn]struct{}{}}
}

// finish tells Poll that an operation is complete.
func (v *Verbs) finish(peer int, o *operation, err error) {
	v.mu.Lock()
	v.done = append(v.done, transport.Completion{Ticket: o.ticket, Peer: peer, Err: err})
	v.mu.Unlock()
}

// Poll appends completions and notices.
func (v *Verbs) Poll(done []transport.Completion) []transport.Completion {
	v.mu.Lock()
	defer v.mu.Unlock()
	done = append(done, v.done...)
	clear(v.done)
	v.done = v.done[:0]
	return done
}

// Write puts src into memory of a peer.
func (v *Verbs) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return v.post(to, &operation{verb: verbWrite, key: dst, a: uint64(len(src)), mem: src})
}

// Read gets memory of a peer.
func (v *Verbs) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return v.post(from, &operation{verb: verbRead, key: src, a: uint64(len(dst)), mem: dst})
}

// CompareSwap sets a word of a peer to new if it is old, and tells what it was.
func (v *Verbs) CompareSwap(to int, word transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	return v.post(to, &operation{verb: verbSwap, key: word, a: old, b: new, was: was})
}

// FetchAdd adds to a word of a peer, and tells what it was.
func (v *Verbs) FetchAdd(to int, word transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	return v.post(to, &operation{verb: verbAdd, key: word, a: add, was: was})
}

// Notify leaves a number with a peer.
func (v *Verbs) Notify(to int, value uint32) (transport.Ticket, error) {
	return v.post(to, &operation{verb: verbNotify, a: uint64(value)})
}

// post starts a one-sided operation and returns its ticket. A rank's own memory is used at once. Otherwise the
// operation joins the queue to that rank; errors from there on come with the ticket, not from here.
func (v *Verbs) post(to int, o *operation) (transport.Ticket, error) {
	if to < 0 || to >= v.size {
		return 0, fmt.Errorf("%s: rank %d of %d", verbNames[o.verb], to, v.size)
	}
	if err := v.net.Alive(to); err != nil {
		return 0, err
	}
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return 0, transport.ErrClosed
	}
	o.ticket = transport.Ticket(v.ticket.Add(1))
	if to == v.rank {
		v.mu.Unlock()
		v.own(o)
		return o.ticket, nil
	}
	x := v.to[to]
	if x == nil || x.failed() {
		x = &initiator{v: v, rank: to, id: rand.Uint64()}
		x.cond = sync.NewCond(&x.mu)
		v.to[to] = x
		v.net.Go(x.run)
	}
	v.mu.Unlock()
	x.mu.Lock()
	if x.err != nil {
		err := x.err
		x.mu.Unlock()
		v.finish(to, o, err)
		return o.ticket, nil
	}
	x.wait = append(x.wait, o)
	x.cond.Signal()
	x.mu.Unlock()
	return o.ticket, nil
}

// own carries out an operation of a rank on itself.
func (v *Verbs) own(o *operation) {
	var data []byte
	r, mem, status := v.target(o.verb, o.key, o.a)
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
		result := v.act(v.rank, o.verb, mem, o.a, o.b)
		if o.was != nil {
			*o.was = result
		}
		copy(o.mem[:len(data)], data)
	}
	v.finish(v.rank, o, o.problem(v.rank, status))
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
func (v *Verbs) target(verb uint8, key transport.Key, length uint64) (*region, []byte, uint8) {
	switch verb {
	case verbNotify:
		return nil, nil, statusDone
	case verbSwap, verbAdd:
		if key%8 != 0 {
			return nil, nil, statusOdd
		}
		length = 8
	}
	if v.named != nil {
		if length > maxRegion {
			return nil, nil, statusNoMemory
		}
		mem, err := v.named(key, int(length))
		if err != nil {
			return nil, nil, statusNoMemory
		}
		return nil, mem, statusDone
	}
	r, mem := v.at(key, length)
	if r == nil {
		return nil, nil, statusNoMemory
	}
	return r, mem, statusDone
}

// act carries out what is not moving data.
func (v *Verbs) act(from int, verb uint8, mem []byte, a, b uint64) uint64 {
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
		v.mu.Lock()
		v.done = append(v.done, transport.Completion{Peer: from, Notice: uint32(a)})
		v.mu.Unlock()
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

// run connects when there is something to send, and sends it; again when the connection broke.
func (x *initiator) run() {
	pause, seen := time.Duration(0), uint64(0)
	for {
		x.mu.Lock()
		for len(x.wait) == 0 && x.err == nil {
			x.cond.Wait()
		}
		over := x.err != nil
		if x.seen != seen {
			pause, seen = 0, x.seen
		}
		x.mu.Unlock()
		if over {
			return
		}
		time.Sleep(pause) // after a connection that brought no answer
		pause = min(max(2*pause, redialFirst), redialMost)
		conn, err := x.connect()
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
		x.v.net.Go(func() { x.read(conn) })
		if err := x.write(conn); err != nil && !x.broke(conn, err) {
			return
		}
	}
}

// connect makes a connection and says where to go on.
func (x *initiator) connect() (*record.Conn, error) {
	for pauses := retry.Pause(redialFirst, redialMost); ; time.Sleep(pauses.Next()) {
		conn, err := x.v.net.Dial(x.rank)
		if err == nil {
			// Nobody reads answers meanwhile.
			if err = conn.Send(record.Header{Kind: kindResume, Call: x.id, Number: x.seen}, nil); err == nil {
				return conn, nil
			}
			conn.Close()
		}
		if gone := x.v.net.Alive(x.rank); gone != nil {
			return nil, gone
		}
		if !x.v.net.Resumes() || x.v.net.Closed() || x.failed() {
			return nil, err
		}
	}
}

// broke takes back what was not answered over a connection, to be sent again. It is false if the
// operations have failed.
func (x *initiator) broke(conn *record.Conn, err error) bool {
	conn.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.conn == conn {
		x.land()
	}
	if x.err != nil {
		return false
	}
	if x.conn != conn {
		return true
	}
	if !x.v.net.Resumes() || x.v.net.Closed() || x.v.net.Alive(x.rank) != nil || errors.Is(err, errNotAsked) {
		x.mu.Unlock()
		x.fail(err)
		x.mu.Lock()
		return false
	}
	x.conn = nil
	x.wait = append(x.sent, x.wait...)
	x.sent = nil
	x.cond.Broadcast()
	return true
}

// Renew lets the connection with a rank be made again, over a link that works.
func (v *Verbs) Renew(rank int) {
	v.mu.Lock()
	x := v.to[rank]
	v.mu.Unlock()
	if x == nil {
		return
	}
	x.mu.Lock()
	conn := x.conn
	x.mu.Unlock()
	if conn != nil {
		conn.Close() // which its reader finds out
	}
}

// write sends what is posted until the connection breaks.
func (x *initiator) write(conn *record.Conn) error {
	const batch = 64
	for {
		x.mu.Lock()
		for (len(x.wait) == 0 || len(x.sent) >= unanswered) && x.err == nil && x.conn == conn {
			x.cond.Wait()
		}
		if x.err != nil || x.conn != conn {
			x.mu.Unlock()
			return nil
		}
		n := min(len(x.wait), batch, unanswered-len(x.sent))
		ops := x.wait[:n:n]
		x.wait = x.wait[n:]
		x.sent = append(x.sent, ops...)
		x.mu.Unlock()
		for _, o := range ops {
			if err := o.put(conn); err != nil {
				return err
			}
		}
		if err := conn.Flush(); err != nil {
			return err
		}
	}
}

// put writes an operation to a connection.
func (o *operation) put(conn *record.Conn) error {
	h := record.Header{Kind: o.verb, Call: o.a, Number: uint64(o.key)}
	switch o.verb {
	case verbWrite:
		return putParts(conn, h, o.mem)
	case verbSwap:
		return conn.Put(h, binary.LittleEndian.AppendUint64(nil, o.b))
	}
	return conn.Put(h, nil)
}

// parts are copies of data for records: data are memory that somebody may write to while they are sent, and what has a checksum must not
// change.
var parts = sync.Pool{New: func() any { return new([portion]byte) }}

// putParts writes a record whose data may take several.
func putParts(conn *record.Conn, h record.Header, data []byte) error {
	part := parts.Get().(*[portion]byte)
	defer parts.Put(part)
	for {
		n := copy(part[:], data)
		if err := conn.Put(h, part[:n]); err != nil || n == len(data) {
			return err
		}
		h, data = record.Header{Kind: kindMore}, data[n:]
	}
}

// getParts reads the data of a record and those that follow it: as much as mem holds.
func getParts(conn *record.Conn, h record.Header, mem []byte) error {
	for {
		n := int(h.Length)
		if n > len(mem) || n != min(len(mem), portion) {
			return fmt.Errorf("%d bytes where %d belong", n, min(len(mem), portion))
		}
		if err := conn.Body(&h, mem[:n]); err != nil || n == len(mem) {
			return err
		}
		mem = mem[n:]
		if err := nextPart(conn, &h); err != nil {
			return err
		}
	}
}

// passParts reads over n bytes of data.
func passParts(conn *record.Conn, h record.Header, n uint64) error {
	for {
		if err := conn.Pass(&h); err != nil || uint64(h.Length) >= n {
			return err
		}
		n -= uint64(h.Length)
		if err := nextPart(conn, &h); err != nil {
			return err
		}
	}
}

func nextPart(conn *record.Conn, h *record.Header) error {
	if err := conn.Next(h); err != nil {
		return err
	}
	if h.Kind != kindMore || h.Length == 0 {
		return fmt.Errorf("a record of kind %d where data go on", h.Kind)
	}
	return nil
}

// errNotAsked is an answer that fits no operation.
var errNotAsked = errors.New("it answered what was not asked")

// read takes the answers.
func (x *initiator) read(conn *record.Conn) {
	for {
		if err := x.readOne(conn); err != nil {
			x.broke(conn, err)
			return
		}
	}
}

// readOne takes one answer. Answers come in the order of the operations, and one that was not asked for is an error.
// The lock is released while data lands in the caller's memory; until then landing keeps the operation from being
// completed or sent again.
func (x *initiator) readOne(conn *record.Conn) error {
	var h record.Header
	if err := conn.Next(&h); err != nil {
		return err
	}
	status := h.Flags
	x.mu.Lock()
	if x.conn != conn {
		x.mu.Unlock()
		return net.ErrClosed
	}
	if x.err != nil { // all have been told so
		x.mu.Unlock()
		return net.ErrClosed
	}
	if len(x.sent) == 0 || h.Kind != kindAnswer || h.Number != x.seen {
		x.mu.Unlock()
		return errNotAsked
	}
	o := x.sent[0]
	if o.verb == verbRead && status == statusDone {
		x.landing = true
		x.mu.Unlock()
		err := getParts(conn, h, o.mem)
		x.mu.Lock()
		x.landing = false
		x.cond.Broadcast()
		if err == nil && (x.err != nil || x.conn != conn) { // it failed, or will be answered again
			err = net.ErrClosed
		}
		if err != nil {
			x.mu.Unlock()
			return err
		}
	}
	if o.was != nil && status == statusDone {
		*o.was = h.Call
	}
	x.sent = x.sent[1:]
	if x.seen++; len(x.sent) == unanswered-1 {
		x.cond.Broadcast()
	}
	x.mu.Unlock()
	x.v.finish(x.rank, o, o.problem(x.rank, status))
	return nil
}

// why prefers what is known about the peer to what a socket says.
func (x *initiator) why(err error) error {
	if x.v.net.Closed() {
		return transport.ErrClosed
	}
	if gone := x.v.net.Alive(x.rank); gone != nil {
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
	if x.conn != nil {
		x.conn.Close()
	}
	x.cond.Broadcast()
	x.land()
	ops := append(x.sent, x.wait...)
	x.sent, x.wait = nil, nil
	x.mu.Unlock()
	for _, o := range ops {
		x.v.finish(x.rank, o, x.err)
	}
}

// Serve carries out what a peer posts.
func (v *Verbs) Serve(conn *record.Conn, rank int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		conn.Close()
		return
	}
	s := v.from[rank]
	if s == nil {
		s = &session{}
		v.from[rank] = s
	}
	if s.conn != nil {
		s.conn.Close() // the peer has given it up
	}
	s.conn = conn
	v.served[conn] = struct{}{}
	v.net.Go(func() {
		s.mu.Lock()
		v.agent(conn, rank, s)
		s.mu.Unlock()
		conn.Close()
		v.mu.Lock()
		delete(v.served, conn)
		v.mu.Unlock()
	})
}

// agent is the target's side of a connection.
func (v *Verbs) agent(conn *record.Conn, rank int, s *session) {
	var h record.Header
	if err := conn.Next(&h); err != nil || h.Kind != kindResume {
		return
	}
	if h.Call != s.id {
		s.id, s.done = h.Call, 0
	}
	at := h.Number // operations before the next one
	if at > s.done || s.done-at > unanswered {
		return
	}
	for {
		if !conn.Waits() && conn.Flush() != nil {
			return
		}
		if err := v.serveOne(conn, rank, s, at); err != nil {
			return
		}
		at++
	}
}

// serveOne carries out the next operation, or answers it again if it was carried out before.
func (v *Verbs) serveOne(conn *record.Conn, rank int, s *session, at uint64) error {
	var h record.Header
	if err := conn.Next(&h); err != nil {
		return err
	}
	verb := h.Kind
	if verb < verbWrite || verb > verbNotify {
		return fmt.Errorf("verb %d", verb)
	}
	again := at < s.done
	r, mem, status := v.target(verb, transport.Key(h.Number), h.Call)
	if r != nil {
		defer r.release()
	}
	b, err := operand(conn, h, mem, status == statusDone && !again)
	if err != nil {
		return err
	}
	said := &s.last[at%unanswered]
	if !again {
		*said = answer{status: status}
		if status == statusDone {
			said.result = v.act(rank, verb, mem, h.Call, b)
		}
		s.done++
	}
	if verb == verbRead && status != statusDone {
		said.status = status // the memory may have gone since
	}
	if verb != verbRead || said.status != statusDone {
		mem = nil
	}
	return putParts(conn, record.Header{Kind: kindAnswer, Flags: said.status, Call: said.result, Number: at}, mem)
}

// operand takes what comes with an operation: the data of a write into memory, or past it if it is not to change; and else a number.
func operand(conn *record.Conn, h record.Header, mem []byte, ok bool) (n uint64, err error) {
	switch {
	case h.Kind == verbWrite && !ok:
		return 0, passParts(conn, h, h.Call)
	case h.Kind == verbWrite && len(mem) != 8:
		return 0, getParts(conn, h, mem)
	case h.Kind != verbWrite && h.Length == 0:
		return 0, nil
	}
	var w [8]byte
	if err := getParts(conn, h, w[:]); err != nil {
		return 0, err
	}
	if h.Kind == verbWrite {
		putMemory(mem, w[:])
	}
	return binary.LittleEndian.Uint64(w[:]), nil
}

// Stop ends all operations.
func (v *Verbs) Stop() {
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
