//go:build linux

package shm

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Arenas are passed as file descriptors over Unix sockets of abstract names,
// which no file system holds. Every rank listens under a random name that it
// tells the others by the Gather, and dials the first one, or, where not all see
// one another's processes, all of lower rank; on each
// connection both say a hello that begins with the secret the other told by the
// Gather, and carries the descriptor of the arena. Whoever runs as another user,
// or does not know the secret, is turned away and counted.

const (
	cardVersion = 2
	secretSize  = 16
	helloSize   = secretSize + 4 + 4 + 8 + 8 + 8
	maxName     = 100
)

// card is what a rank tells the others by the Gather.
type card struct {
	rank, size int
	host       string
	pids       string // the namespace that process numbers are of; empty if the system has no process descriptors
	name       string // of the socket, without the zero byte in front
	secret     [secretSize]byte
}

// put encodes a card: version, rank, size, secret, and three strings with their lengths.
func (c *card) put() []byte {
	b := []byte{cardVersion}
	b = binary.LittleEndian.AppendUint32(b, uint32(c.rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(c.size))
	b = append(b, c.secret[:]...)
	for _, s := range []string{c.name, c.host, c.pids} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	return b
}

// parseCard decodes what put wrote.
func parseCard(b []byte) (card, error) {
	var c card
	const fixed = 1 + 4 + 4 + secretSize
	if len(b) < fixed+3 {
		return c, fmt.Errorf("%d bytes, want %d at least", len(b), fixed+3)
	}
	if b[0] != cardVersion {
		return c, fmt.Errorf("version %d, want %d: all ranks must run the same program", b[0], cardVersion)
	}
	c.rank, c.size = int(int32(binary.LittleEndian.Uint32(b[1:]))), int(int32(binary.LittleEndian.Uint32(b[5:])))
	copy(c.secret[:], b[9:])
	rest := b[fixed:]
	for _, s := range []*string{&c.name, &c.host, &c.pids} {
		if len(rest) == 0 || len(rest)-1 < int(rest[0]) {
			return c, errors.New("ends within a string")
		}
		n := int(rest[0])
		*s, rest = string(rest[1:1+n]), rest[1+n:]
	}
	if len(rest) > 0 {
		return c, fmt.Errorf("%d bytes too many", len(rest))
	}
	return c, c.check()
}

// check refuses what no rank says of itself.
func (c *card) check() error {
	switch {
	case c.name == "" || len(c.name) > maxName:
		return fmt.Errorf("a socket name of %d bytes", len(c.name))
	case c.size < 1 || c.rank < 0 || c.rank >= c.size:
		return fmt.Errorf("rank %d of %d", c.rank, c.size)
	}
	return nil
}

// hello is said on a connection, with the descriptor of the arena beside it.
type hello struct {
	secret     [secretSize]byte // that the other side told
	rank, size int
	arena      uint64 // bytes
	word       uint64 // address of a word of the sender, to try whether it can be read
	value      uint64 // what it holds
}

func (h *hello) put() []byte {
	b := append(make([]byte, 0, helloSize), h.secret[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.size))
	b = binary.LittleEndian.AppendUint64(b, h.arena)
	b = binary.LittleEndian.AppendUint64(b, h.word)
	return binary.LittleEndian.AppendUint64(b, h.value)
}

func parseHello(b []byte) (hello, error) {
	var h hello
	if len(b) != helloSize {
		return h, fmt.Errorf("a hello of %d bytes, want %d", len(b), helloSize)
	}
	copy(h.secret[:], b)
	le := binary.LittleEndian
	h.rank, h.size = int(int32(le.Uint32(b[16:]))), int(int32(le.Uint32(b[20:])))
	h.arena, h.word, h.value = le.Uint64(b[24:]), le.Uint64(b[32:]), le.Uint64(b[40:])
	return h, nil
}

// met is a peer after the hellos.
type met struct {
	hello
	conn  *net.UnixConn // kept open if the other side or this one has no descriptor of the process; nil if the first rank told of it
	file  *os.File      // its arena
	pid   int           // in this process's namespace; 0 if it is not in it
	began uint64        // when the process began; 0 if it is watched by its socket
	pidfd int           // -1 if there is none
}

// close gives back what the peer was met with.
func (m *met) close() {
	if m == nil {
		return
	}
	if m.conn != nil {
		m.conn.Close()
	}
	if m.file != nil {
		m.file.Close()
	}
	if m.pidfd >= 0 {
		unix.Close(m.pidfd)
	}
}

// pass exchanges arenas with all other ranks.
type pass struct {
	me       card
	cards    []card
	mine     hello // secret is filled in for each peer
	file     *os.File
	listener *net.UnixListener
	refused  func()

	mu    sync.Mutex
	peers []*met
}

func newCard(rank, size int) (card, *net.UnixListener, error) {
	c := card{rank: rank, size: size, host: HostID(), pids: pidSpace(), name: "weft-" + rand.Text()}
	rand.Read(c.secret[:])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + c.name, Net: "unix"})
	if err != nil {
		return c, nil, fmt.Errorf("shm: listen for the other ranks: %w", err)
	}
	return c, l, nil
}

// errMet ends the exchange once all have been met.
var errMet = errors.New("all met")

// run meets every other rank. On an error all that was met is given back.
func (p *pass) run(ctx context.Context) ([]*met, error) {
	p.peers = make([]*met, p.me.size)
	together := p.together()
	var err error
	if together && p.me.rank > 0 {
		if err = p.dial(ctx, 0); err == nil {
			err = p.takeRound(ctx)
		} else {
			err = fmt.Errorf("shm: rank %d meets rank 0: %w", p.me.rank, err)
		}
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
	} else if err = p.meetAll(ctx); err == nil && together {
		err = p.handRound(ctx)
	}
	if err == nil {
		return p.peers, nil
	}
	for _, m := range p.peers {
		m.close()
	}
	return nil, fmt.Errorf("shm: rank %d met %d of %d others: %w", p.me.rank, p.me.size-1-p.missing(), p.me.size-1, err)
}

// meetAll meets those of higher rank, which dial, and dials the others.
func (p *pass) meetAll(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = p.listener.SetDeadline(time.Now()) })
	defer stop()
	look := func() {
		if p.missing() == 0 {
			cancel(errMet)
		}
	}
	look()

	var wg sync.WaitGroup
	for r := range p.me.rank {
		wg.Go(func() {
			if err := p.dial(ctx, r); err != nil {
				cancel(fmt.Errorf("shm: rank %d meets rank %d: %w", p.me.rank, r, err))
			}
			look()
		})
	}
	for ctx.Err() == nil {
		conn, err := p.listener.AcceptUnix()
		if err != nil {
			cancel(fmt.Errorf("shm: rank %d waits for the others: %w", p.me.rank, err))
			break
		}
		wg.Go(func() {
			ended, stranger := p.answer(ctx, conn)
			if ended != nil {
				cancel(fmt.Errorf("shm: rank %d meets %w", p.me.rank, ended))
			}
			if stranger != nil {
				p.refused()
			}
			look()
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != errMet {
		return err
	}
	return nil
}

// missing counts the ranks not met.
func (p *pass) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for r, m := range p.peers {
		if m == nil && r != p.me.rank {
			n++
		}
	}
	return n
}

// endWith ends what goes on on a connection when a context does. Once what it returns was called, nothing of that is left on the
// connection: the context ends as soon as all have met, and those who have met go on with theirs.
func endWith(ctx context.Context, conn *net.UnixConn) (over func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = conn.SetDeadline(time.Now())
	})
	return func() {
		if !stop() {
			<-ended
			_ = conn.SetDeadline(time.Time{})
		}
	}
}

// dial meets one rank: it checks that the process is of this user, begins to watch it, and exchanges files and names.
// Each step relies on the one before.
func (p *pass) dial(ctx context.Context, r int) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", "@"+p.cards[r].name)
	if err != nil {
		return err
	}
	conn := c.(*net.UnixConn)
	defer endWith(ctx, conn)()
	m := &met{conn: conn, pidfd: -1}
	err = m.credentials()
	if err == nil {
		err = p.watch(m, r)
	}
	if err == nil {
		err = p.say(conn, r)
	}
	if err == nil {
		err = p.hear(m)
	}
	if err == nil && m.rank != r {
		err = fmt.Errorf("the socket of rank %d is answered by rank %d", r, m.rank)
	}
	return p.keep(m, err)
}

// answer meets a rank that dialed. Ended is an error of a rank that gave the
// secret but whose process is no more; whoever else fails is a stranger.
func (p *pass) answer(ctx context.Context, conn *net.UnixConn) (ended, stranger error) {
	defer endWith(ctx, conn)()
	m := &met{conn: conn, pidfd: -1}
	err := m.credentials()
	if err == nil {
		err = p.hear(m)
	}
	if err == nil && m.rank <= p.me.rank {
		err = fmt.Errorf("rank %d does not dial rank %d", m.rank, p.me.rank)
	}
	if err == nil {
		ended = p.watch(m, m.rank)
	}
	if err == nil && ended == nil {
		err = p.say(conn, m.rank)
	}
	if ended != nil {
		m.close()
		return fmt.Errorf("rank %d: %w", m.rank, ended), nil
	}
	return nil, p.keep(m, err)
}

func (p *pass) say(conn *net.UnixConn, to int) error {
	h := p.mine
	h.secret = p.cards[to].secret
	_, _, err := conn.WriteMsgUnix(h.put(), unix.UnixRights(int(p.file.Fd())), nil)
	return err
}

// hear reads a hello and its descriptor, which must have the secret.
func (p *pass) hear(m *met) error {
	b, oob := make([]byte, helloSize+1), make([]byte, unix.CmsgSpace(4*8))
	n, on, _, _, err := m.conn.ReadMsgUnix(b, oob)
	if err != nil {
		return err
	}
	fds, err := rights(oob[:on])
	if err != nil {
		return err
	}
	h, err := parseHello(b[:n])
	switch {
	case err != nil:
	case h.secret != p.me.secret:
		err = errors.New("wrong secret")
	case h.size != p.me.size || h.rank < 0 || h.rank >= h.size:
		err = fmt.Errorf("rank %d of %d", h.rank, h.size)
	case len(fds) != 1:
		err = fmt.Errorf("%d descriptors, want 1", len(fds))
	default:
		m.hello, m.file = h, os.NewFile(uintptr(fds[0]), "weft arena of a peer")
		return m.check()
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return err
}

// check makes sure that a descriptor is an arena of the size said and stays so.
func (m *met) check() error {
	st, err := m.file.Stat()
	if err != nil {
		return err
	}
	seals, err := unix.FcntlInt(m.file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || uint64(st.Size()) != m.arena {
		return fmt.Errorf("not an arena of %d bytes", m.arena)
	}
	return nil
}

// credentials finds the process at the other end; it must be of the same user, or root.
func (m *met) credentials() error {
	raw, err := m.conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil || err != nil {
		return errors.Join(e, err)
	}
	if uid := uint32(os.Geteuid()); cred.Uid != uid && cred.Uid != 0 {
		return fmt.Errorf("a process of user %d, want %d", cred.Uid, uid)
	}
	m.pid = int(cred.Pid)
	return nil
}

// watch makes sure that the process at the other end can be told from others with its number later. That process has not
// heard this rank yet and waits for it, so the number is still its own; once it
// has, it may do its work and end before this rank gets to run again.
func (p *pass) watch(m *met, rank int) error {
	if !p.watched(rank) {
		return nil
	}
	if m.began = began(m.pid); m.began == 0 {
		return fmt.Errorf("process %d: %w", m.pid, unix.ESRCH)
	}
	return nil
}

// keep notes a peer, or gives it back if it was met with an error.
func (p *pass) keep(m *met, err error) error {
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.peers[m.rank] == nil {
			p.peers[m.rank] = m
			return nil
		}
		err = fmt.Errorf("rank %d said hello twice", m.rank)
	}
	m.close()
	return err
}

// watched reports whether a peer and this rank can watch each other's process.
// Both must come to the same answer, as otherwise one would close the socket
// that the other one watches.
func (p *pass) watched(rank int) bool {
	return p.me.pids != "" && p.me.pids == p.cards[rank].pids
}

// pidSpace names the namespace that this process's number is of, or nothing
// where processes cannot be watched.
func pidSpace() string {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return ""
	}
	unix.Close(fd)
	space, _ := os.Readlink("/proc/self/ns/pid")
	return space
}

// rights are the descriptors that came with a message.
func rights(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, m := range messages {
		got, err := unix.ParseUnixRights(&m)
		if err == nil {
			fds = append(fds, got...)
		}
	}
	return fds, nil
}
