package xfer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
)

// conn is an authenticated connection with frames.
type conn struct {
	agent *Agent
	nc    net.Conn
	in    *auth.Key
	src   io.Reader       // nc, a buffer before it, or for slices the socket itself (whole)
	greet context.Context // while both sides greet: a deadline of the connection is an end then
	got   []byte          // hashes of the slice that comes

	wmu  sync.Mutex
	out  *auth.Key
	head [record.Size]byte
	tail [tailSize]byte
	made []byte // hashes of the slice that goes
	vec  [3][]byte
}

func (a *Agent) newConn(nc net.Conn, secret *auth.Secret, dialer bool) *conn {
	c := &conn{agent: a, nc: nc, src: nc}
	c.out, c.in = secret.Keys(dialer)
	a.mu.Lock()
	if a.closed {
		nc.Close()
	} else {
		a.conns[c] = struct{}{}
	}
	a.mu.Unlock()
	return c
}

// crosses reports whether the bytes go over a link that collectives use, too: not those between processes of a host.
func (c *conn) crosses() bool {
	nc := c.nc
	if s, ok := nc.(*ucxStream); ok {
		nc = s.Conn
	}
	_, unix := nc.(*net.UnixConn)
	return !unix
}

func (c *conn) close() {
	c.agent.mu.Lock()
	nc := c.nc
	delete(c.agent.conns, c)
	c.agent.mu.Unlock()
	nc.Close()
}

// send writes a frame. Its payload has a checksum.
func (c *conn) send(kind uint8, call, number uint64, payload []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	h := record.Header{Kind: kind, Length: uint32(len(payload)), Call: call, Number: number}
	if len(payload) > 0 {
		h.Sum = c.out.Piece(payload)
	}
	h.Put(&c.head, c.out)
	if len(payload) == 0 {
		_, err := c.nc.Write(c.head[:])
		return err
	}
	return c.write(c.head[:], payload)
}

func (c *conn) write(parts ...[]byte) error {
	v := net.Buffers(c.vec[:0])
	for _, p := range parts {
		if len(p) > 0 {
			v = append(v, p)
		}
	}
	_, err := v.WriteTo(c.nc)
	return err
}

// portion is how much of a slice goes to the socket at once. The processor's cache still holds it when it is hashed.
const portion = 256 << 10

// unsummed in a slice's header, in the place of a checksum: none follows its bytes. The header's own checksum covers it.
const unsummed = 1

// putSlice writes a slice. A portion is hashed when it is on its way, so that the other end works meanwhile; the last one before, as the
// checksum goes with it. The caller holds wmu.
func (c *conn) putSlice(call, i uint64, b []byte) error {
	h := record.Header{Kind: fData, Length: uint32(len(b)), Call: call, Number: i}
	if c.agent.cfg.NoSums {
		h.Sum = unsummed
		h.Put(&c.head, c.out)
		c.tail = [tailSize]byte{}
		return c.write(c.head[:], b, c.tail[:])
	}
	h.Put(&c.head, c.out)
	head := c.head[:]
	c.made = c.made[:0]
	size := portion
	if _, ok := c.nc.(*ucxStream); ok {
		size = sliceSize // each portion would be two messages that are waited for
	}
	for ; len(b) > size; b = b[size:] {
		if err := c.write(head, b[:size]); err != nil {
			return err
		}
		head = nil
		c.made = c.out.Blocks(c.made, b[:size])
	}
	c.made = c.out.Blocks(c.made, b)
	binary.LittleEndian.PutUint32(c.tail[:], c.out.Tail(c.made))
	return c.write(head, b, c.tail[:])
}

// patient is how long a frame that has begun may take once its request has ended: a peer that reads takes it.
const patient = 200 * time.Millisecond

// sendWhile is send that ends with the context, a moment later. Then the connection is lost, as half a frame is on it.
func (c *conn) sendWhile(ctx context.Context, kind uint8, call, number uint64, payload []byte) error {
	return c.while(ctx, func() error { return c.send(kind, call, number, payload) })
}

// while runs send, and interrupts it some time after ctx ends: a peer that reads slowly may finish, one that has
// stopped must not hold the connection for good. A send that was cut ends the connection, since half a message is on
// it.
func (c *conn) while(ctx context.Context, send func() error) error {
	var over atomic.Bool // whoever sets it first decides: it was sent, or it is cut
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(patient, func() {
			if !over.Swap(true) {
				writeEnd{c}.interrupt()
			}
		})
	})
	err := send()
	stop()
	if over.Swap(true) && err == nil {
		err = ctx.Err()
	}
	return err
}

// next reads a header, and the payload of what is no slice.
func (c *conn) next(f *frame) error {
	var b [record.Size]byte
	if err := c.fill(b[:]); err != nil {
		return err
	}
	if err := f.parse(&b, c.in); err != nil {
		return err
	}
	if f.Kind == fData || f.Length == 0 {
		return nil
	}
	f.payload = make([]byte, f.Length)
	if err := c.fill(f.payload); err != nil {
		return err
	}
	if c.in.Piece(f.payload) != f.Sum {
		return auth.ErrAltered
	}
	return nil
}

// fill reads all of b; an interruption that was meant for another request does not count.
func (c *conn) fill(b []byte) error {
	_, err := c.fillUntil(b, nil, false)
	return err
}

// fillUntil is fill that stops, without an error, once the landing's fence closes. If it is to, it hashes what came, which the
// processor's cache still holds.
func (c *conn) fillUntil(b []byte, l *landing, hash bool) (n int, err error) {
	hashed := 0
	for n < len(b) {
		k, err := c.src.Read(b[n:])
		n += k
		if whole := n - n%auth.BlockSize; hash && (whole > hashed || n == len(b)) {
			if n == len(b) {
				whole = n
			}
			c.got = c.in.Blocks(c.got, b[hashed:whole])
			hashed = whole
		}
		if err == nil || n == len(b) {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if c.agent.base.Err() != nil || c.greet != nil && c.greet.Err() != nil {
				return n, err
			}
			_ = c.nc.SetReadDeadline(time.Time{})
			if l != nil && l.stop.Load() {
				return n, nil
			}
			continue
		}
		return n, err
	}
	return n, nil
}

// discard reads over n bytes.
func (c *conn) discard(n int) error {
	b := getBuffer()
	defer putBuffer(b)
	for n > 0 {
		k := min(n, len(b))
		if err := c.fill(b[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// readEnd and writeEnd interrupt one direction of a connection. A frame that is not written to its end ends
// the session.
type (
	readEnd  struct{ *conn }
	writeEnd struct{ *conn }
)

func (e readEnd) interrupt()  { _ = e.nc.SetReadDeadline(time.Unix(1, 0)) }
func (e writeEnd) interrupt() { _ = e.nc.SetWriteDeadline(time.Unix(1, 0)) }

// slice takes a slice that has come: into its place, or nowhere. again is told of one with a wrong checksum.
func (c *conn) slice(f *frame, l *landing, again func(call, i uint64) error) error {
	i := int(f.Number)
	if l == nil || l.have == nil || f.Number >= uint64(len(l.have)*64) {
		return c.discard(int(f.Length) + tailSize)
	}
	off, n := l.slice(i)
	if n != int64(f.Length) {
		return fmt.Errorf("slice %d of request %d has %d bytes, want %d", i, f.Call, f.Length, n)
	}
	sums := f.Sum != unsummed
	if !sums && !c.agent.cfg.NoSums {
		l.close(fmt.Errorf("slices come without checksums (%w), and agent %s wants them: set NoSums (--no-checksums) at both ends or at none",
			ErrSum, c.agent.id.Name))
		return c.discard(int(f.Length) + tailSize)
	}
	if !l.enterSlice(i, readEnd{c}) {
		return c.discard(int(f.Length) + tailSize)
	}
	dst := l.view.flat(off, n)
	direct := dst != nil
	if !direct {
		dst = getBuffer()[:n]
	}
	leave := func() {
		l.leaveSlice(i, readEnd{c})
		if !direct {
			putBuffer(dst)
		}
	}
	c.got = c.got[:0]
	k, err := c.fillUntil(dst, l, sums)
	var tail [tailSize]byte
	if err == nil && k == len(dst) {
		var more int
		more, err = c.fillUntil(tail[:], l, false)
		k += more
	}
	switch {
	case err != nil:
		leave()
		return err
	case k < len(dst)+tailSize: // the fence closed
		leave()
		return c.discard(len(dst) + tailSize - k)
	case sums && c.in.Tail(c.got) != binary.LittleEndian.Uint32(tail[:]):
		leave()
		return again(f.Call, f.Number)
	case direct:
		l.landed(i)
		leave()
		return nil
	}
	put := func() {
		rest := dst
		err := l.view.each(off, n, func(p *place, at, k int64) error {
			b := rest[:k]
			rest = rest[k:]
			return p.write(l.ctx, b, at)
		})
		if err == nil {
			l.landed(i)
		}
		leave()
		if err != nil {
			l.close(err)
		}
	}
	// Storage may hang; nobody else's slices wait behind it.
	if l.ram {
		put()
		return nil
	}
	select { // at most cap(io) at once; the socket waits when the storage does
	case c.agent.gate.io <- struct{}{}:
	case <-l.shut:
		leave()
		return nil
	}
	c.agent.wg.Go(func() {
		put()
		<-c.agent.gate.io
	})
	return nil
}

// buffers of ioSize bytes, at a page's beginning.
var buffers = sync.Pool{New: func() any {
	b := alignedBuffer(ioSize)
	return &b
}}

func getBuffer() []byte  { return (*buffers.Get().(*[]byte))[:ioSize] }
func putBuffer(b []byte) { b = b[:ioSize]; buffers.Put(&b) }

// linkKey is a peer and the network by which it is reached.
type linkKey struct {
	id      ID
	network string // "unix", "tcp", "ucx", or "ask" for what Meet asks over tcp
}

// link is the way to a peer: one session after another.
type link struct {
	agent   *Agent
	peer    *Peer
	network string
	turn    chan struct{} // whoever dials holds it

	mu     sync.Mutex
	now    *session
	closed error
}

func (p *Peer) link(network string) *link {
	a := p.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	k := linkKey{p.id, network}
	l := a.links[k]
	if l == nil {
		l = &link{agent: a, peer: p, network: network, turn: make(chan struct{}, 1)}
		a.links[k] = l
	}
	return l
}

// meets reports whether there is a session with the peer by that network.
func (p *Peer) meets(network string) bool {
	p.agent.mu.Lock()
	l := p.agent.links[linkKey{p.id, network}]
	p.agent.mu.Unlock()
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now != nil && !l.now.isLost() && l.closed == nil
}

func (l *link) close(why error) {
	l.mu.Lock()
	l.closed = why
	s := l.now
	l.mu.Unlock()
	if s != nil {
		s.lose(why)
	}
}

// get is the session, a new one if the last was lost.
func (l *link) get(ctx context.Context) (*session, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := l.peer.check(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	s, closed := l.now, l.closed
	l.mu.Unlock()
	if closed != nil {
		return nil, closed
	}
	if s != nil && !s.isLost() {
		return s, nil
	}
	began := time.Now()
	for {
		s, err := l.dial(ctx)
		if err == nil {
			l.mu.Lock()
			l.now = s
			l.mu.Unlock()
			return s, nil
		}
		// A host that refuses, and a socket that is no more, say that the process is. An answer, whatever it
		// says, is final. Else it is a link that may come back.
		switch {
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
			return nil, fmt.Errorf("agent %s: %w: nothing listens at %v", l.peer.id.Name, ErrGone, l.where())
		case Code(err) != 0 && !errors.Is(err, ErrLost), ctx.Err() != nil, time.Since(began) > outage:
			return nil, err
		}
		if l.agent.cfg.Log != nil {
			l.agent.cfg.Log.Warn("connection to an agent failed", "agent", l.peer.id.Name, "why", err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (l *link) where() []string {
	if l.socket() == "unix" {
		return []string{l.peer.local}
	}
	return l.peer.addrs
}

// socket is the kind of sockets that its ends meet by.
func (l *link) socket() string {
	if l.network == "ucx" && l.peer.sameHost() {
		return "unix"
	}
	if l.network == "unix" {
		return "unix"
	}
	return "tcp"
}

// dial makes a session: a connection for control to the first address that answers, and streams to all.
func (l *link) dial(ctx context.Context) (*session, error) {
	s := &session{link: l, agent: l.agent, peer: l.peer, name: newSession(), lost: make(chan struct{}), calls: map[uint64]chan frame{},
		reads: map[uint64]*landing{}, sends: map[uint64]func(int){}}
	var err error
	addrs := l.where()
	first := -1
	for i, addr := range addrs {
		c, e := l.connect(ctx, s, addr, -1)
		if e == nil {
			s.control, first = c, i
			break
		}
		// That nothing listens counts only where nothing listens anywhere.
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			err = e
		}
	}
	if first < 0 {
		if err == nil {
			err = fmt.Errorf("agent %s: %w: it has no address", l.peer.id.Name, ErrPath)
		}
		return nil, err
	}
	s.control.src = bufio.NewReaderSize(s.control.nc, 64<<10)
	n := 0
	for i, addr := range addrs {
		count := l.agent.cfg.Streams
		if i == first {
			count++ // one for those in a hurry
		}
		switch {
		case l.network == "ask":
			count = 0
		case l.network == "ucx": // it chooses by itself what it takes
			if count = 0; i == first {
				count = 1
			}
		}
		for range count {
			c, err := l.connect(ctx, s, addr, n)
			if err != nil {
				if n == 0 || errors.Is(err, ErrStale) {
					s.lose(err)
					return nil, err
				}
				if l.agent.cfg.Log != nil {
					l.agent.cfg.Log.Warn("an address of an agent carries nothing", "agent", l.peer.id.Name, "address", addr, "why", err)
				}
				break
			}
			s.streams = append(s.streams, c)
			n++
		}
	}
	l.agent.wg.Go(s.readControl)
	for _, c := range s.streams {
		l.agent.wg.Go(func() { s.readStream(c) })
	}
	return s, nil
}

// connect makes one connection of a session.
func (l *link) connect(ctx context.Context, s *session, addr string, stream int) (*conn, error) {
	a := l.agent
	ctx, cancel := context.WithTimeout(ctx, auth.Timeout)
	defer cancel()
	line := auth.Line{Network: l.socket(), Addr: addr, Token: a.cfg.Token}
	if line.Network == "tcp" {
		line.TLS = a.cfg.TLS
	}
	nc, secret, err := line.Connect(ctx, auth.Hello{Purpose: auth.Move, Size: 1})
	if errors.Is(err, auth.ErrToken) {
		err = ErrToken
	}
	var c *conn
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
		c, err = l.greet(ctx, s, nc, &secret, stream)
		if !stop() && err == nil {
			err = ctx.Err() // the connection has a time limit that is over
		}
		if err != nil {
			nc.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("agent %s at %s: %w", l.peer.id.Name, addr, err)
	}
	if a.base.Err() != nil {
		c.close()
		return nil, ErrClosed
	}
	return c, nil
}

// greet says on a new connection what it is for.
func (l *link) greet(ctx context.Context, s *session, nc net.Conn, secret *auth.Secret, stream int) (*conn, error) {
	a := l.agent
	c := a.newConn(nc, secret, true)
	c.greet = ctx
	h := hello{from: a.id, to: l.peer.id, session: s.name, stream: stream, pid: os.Getpid()}
	shares := stream < 0 && l.network == "unix" && a.share != nil
	if shares {
		h.flags |= helloShares
		h.slots, _ = a.share.Offset(a.slotMem)
	}
	switch l.network {
	case "ask":
		h.flags |= helloAsk
	case "ucx":
		h.flags |= helloUCX
	}
	over := stream >= 0 && l.network == "ucx"
	if err := c.send(fHello, uint64(wordAddress(a.word)), *a.word, h.put()); err != nil {
		c.close()
		return nil, err
	}
	if shares {
		if err := sendFile(nc, a.share.File()); err != nil {
			c.close()
			return nil, err
		}
	}
	var f frame
	if err := c.next(&f); err != nil {
		c.close()
		return nil, err
	}
	err := welcomed(&f)
	if err == nil && over {
		if err = c.overUCX(ctx, 0); err == nil {
			if err = c.next(&f); err == nil {
				err = welcomed(&f)
			}
		}
	}
	if err != nil {
		c.close()
		return nil, err
	}
	if stream < 0 {
		if err := s.welcome(nc, &f); err != nil {
			c.close()
			return nil, err
		}
	}
	c.greet = nil
	return c, nil
}

// welcomed says why a frame is no welcome.
func welcomed(f *frame) error {
	switch f.Kind {
	case fWelcome:
		return nil
	case fFail:
		_, err := parseFail(f.payload)
		return err
	}
	return fmt.Errorf("it answered with a frame of kind %d", f.Kind)
}
