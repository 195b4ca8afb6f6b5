// Package rendezvous lets ranks find each other: rank 0 listens at a known address, the
// others connect, and every rank gets every other rank's data (Gather). The connections
// stay open: a lost one hints that a process died, and they spread messages to all
// (Tell).
package rendezvous

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/retry"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
)

// Config says where the rendezvous is and who comes.
type Config struct {
	Addr       string // host:port of rank 0, the same on all ranks
	Rank, Size int

	Token   string      // of the cluster; may be empty only where Addr is a loopback address
	NoToken bool        // an empty token is meant on any address
	Epoch   uint64      // of an elastic job, each of which has a token of its own; 0 for none
	TLS     *tls.Config // if set, both ends show certificates

	Listener net.Listener // rank 0: listen here instead of at Addr; closed with the rendezvous
	Log      *slog.Logger // what was turned away, once per kind; nil for silence

	// Lost is told of a rank whose process seems to have died: its connection
	// ended without a word of leave. Rank 0 sees all and tells the others; they
	// see rank 0 themselves. It must not block.
	Lost func(rank int, why error)
	// Heard is told what another rank told all. It must not block nor keep b.
	Heard func(from int, b []byte)
}

// Meeting is a meeting of ranks.
type Meeting struct {
	cfg   Config
	addr  string
	world [16]byte
	self  [8]byte // others than rank 0: which process this is
	tries uint64  // and how often it has dialed

	foreign string // rank 0: the host that it was to listen at, if it has no such address

	named bool // that the name of addr is not known was told

	gate *auth.Listener // rank 0
	ln   net.Listener

	gather sync.Mutex // one Gather at a time

	mu     sync.Mutex
	links  []*link // by rank; of others than rank 0 only links[0] is set
	came   []bool  // rank 0: by rank, whether it was here, if only for a while
	begun  bool
	closed bool
	broken error   // the first error that ended the rendezvous for gathering
	left   []error // by rank: why it is not here any more
	round  uint32
	blobs  [][]byte      // rank 0: of the round under way
	result [][]byte      // others: of the round under way
	wait   []int         // others: the ranks that were still missing when rank 0 last said so
	change chan struct{} // closed and replaced at every change

	words, wg sync.WaitGroup // frames under way; goroutines that serve and read
}

// long is how long ranks may take to come before the log hears of it.
var long = 5 * time.Second

// Between two attempts to come, or to listen, there is a pause that grows.
const firstPause, mostPause = 2 * time.Millisecond, 200 * time.Millisecond

// Join comes to the rendezvous and returns once all ranks are there, or with an
// error once ctx ends.
func Join(ctx context.Context, cfg Config) (*Meeting, error) {
	r, err := meeting(cfg)
	if err == nil && !r.begun {
		err = r.join(ctx)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// meeting is a rendezvous that nobody has come to yet.
func meeting(cfg Config) (*Meeting, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size {
		return nil, fmt.Errorf("rank %d of %d: a rank is a number from 0 to size-1", cfg.Rank, cfg.Size)
	}
	if cfg.Size == 1 && cfg.Addr == "" && cfg.Listener == nil {
		r := &Meeting{cfg: cfg, links: make([]*link, 1), left: make([]error, 1), change: make(chan struct{}), begun: true}
		_, err := rand.Read(r.world[:])
		return r, err
	}
	addr := cfg.Addr
	if cfg.Listener != nil {
		addr = cfg.Listener.Addr().String()
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address of the rendezvous %q: %w (it is host:port, from MASTER_ADDR and MASTER_PORT)", addr, err)
	}
	if err := auth.CheckToken(cfg.Token, host, cfg.NoToken); err != nil {
		return nil, err
	}
	r := &Meeting{cfg: cfg, addr: addr, links: make([]*link, cfg.Size), left: make([]error, cfg.Size), came: make([]bool, cfg.Size),
		change: make(chan struct{})}
	_, err = rand.Read(r.self[:])
	return r, err
}

// join comes, and waits until all are there.
func (r *Meeting) join(ctx context.Context) (err error) {
	defer r.remind()()
	if r.cfg.Rank == 0 {
		err = r.host(ctx)
	} else {
		err = r.come(ctx)
	}
	if err != nil {
		r.Close()
	}
	return err
}

// remind tells the log once if it takes long until all are there: ranks may have
// been given an address that does not lead to rank 0.
func (r *Meeting) remind() (stop func()) {
	if r.cfg.Log == nil {
		return func() {}
	}
	start, addr := time.Now(), r.addr
	t := time.AfterFunc(long, func() {
		r.mu.Lock()
		wait := r.wait
		if r.cfg.Rank == 0 {
			wait = r.missing()
		} else if len(wait) == 0 {
			wait = []int{0}
		}
		r.mu.Unlock()
		r.cfg.Log.Warn("ranks have not all met yet", "rank", r.cfg.Rank, "waits_for", plural("rank", wait), "at", addr, "since", since(start))
	})
	return func() { t.Stop() }
}

// World is a number that rank 0 drew for this meeting, the same on all ranks.
func (r *Meeting) World() [16]byte { return r.world }

// Addr is where the rendezvous is.
func (r *Meeting) Addr() string { return r.addr }

// changed wakes those that wait for the rendezvous. The caller holds mu.
func (r *Meeting) changed() {
	close(r.change)
	r.change = make(chan struct{})
}

// until waits, with mu held, for cond to hold or ctx to end.
func (r *Meeting) until(ctx context.Context, cond func() bool) error {
	for !cond() {
		change := r.change
		r.mu.Unlock()
		select {
		case <-change:
			r.mu.Lock()
		case <-ctx.Done():
			r.mu.Lock()
			if cond() {
				return nil
			}
			return ctx.Err()
		}
	}
	return nil
}

// host is rank 0's way into the rendezvous.
func (r *Meeting) host(ctx context.Context) error {
	start := time.Now()
	if _, err := rand.Read(r.world[:]); err != nil {
		return err
	}
	if r.ln = r.cfg.Listener; r.ln == nil {
		ln, err := r.listen(ctx)
		if err != nil {
			return fmt.Errorf("rank 0 cannot listen at %s, which is to be an address of its host (MASTER_ADDR, MASTER_PORT): %w", r.addr, err)
		}
		r.ln = ln
		r.found(ln.Addr())
	}
	r.gate = &auth.Listener{
		Token: r.cfg.Token, Epoch: r.cfg.Epoch, TLS: r.cfg.TLS, Log: r.cfg.Log,
		Admit: r.admit,
		Enter: func(conn net.Conn, h auth.Hello) { r.enter(r.records(conn, &h.Secret, false), h) },
		Leave: r.turnBack,
	}
	r.wg.Go(func() { r.gate.Serve(r.ln) })
	return r.awaitAll(ctx, start)
}

// awaitAll lets ranks come until all are there, and tells those that are whom they wait for.
func (r *Meeting) awaitAll(ctx context.Context, start time.Time) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	r.mu.Lock()
	for {
		missing := r.missing()
		if r.broken == nil && len(missing) == 0 {
			r.begun = true
			links := slices.Clone(r.links)
			r.mu.Unlock()
			return r.spread(ctx, links, frame{kind: kindStart, body: r.world[:]})
		}
		err := r.broken
		change := r.change
		r.mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-change:
		case <-tick.C:
			// The others can then say themselves for whom they wait.
			r.mu.Lock()
			links := slices.Clone(r.links)
			r.mu.Unlock()
			_ = r.spread(ctx, links, frame{kind: kindWaiting, body: putRanks(missing)})
		case <-ctx.Done():
			r.mu.Lock()
			err := r.notAll(missing, start, r.ended(ctx))
			r.fail(err)
			r.mu.Unlock()
			return err
		}
		r.mu.Lock()
	}
}

// found takes in where rank 0 listens. If that is at all addresses of its host instead of the one that it was given, that one is not
// among them, and the others may not find it.
func (r *Meeting) found(at net.Addr) {
	host, _, _ := net.SplitHostPort(r.addr)
	if got, port, err := net.SplitHostPort(at.String()); err == nil && host != "" && net.ParseIP(got).IsUnspecified() &&
		!net.ParseIP(host).IsUnspecified() {
		r.addr, r.foreign = net.JoinHostPort(host, port), host
		return
	}
	r.addr = at.String()
}

// notAll says which ranks did not come. Those that came and gave up waiting for them are not at fault. The caller holds mu.
func (r *Meeting) notAll(missing []int, start time.Time, why error) error {
	never := slices.DeleteFunc(slices.Clone(missing), func(i int) bool { return r.came[i] })
	note := ""
	if gone := slices.DeleteFunc(slices.Clone(missing), func(i int) bool { return !r.came[i] }); len(gone) > 0 {
		note = fmt.Sprintf("; %s came and left again", plural("rank", gone))
		if len(never) == 0 {
			return fmt.Errorf("%s of %d came to %s and left before all had met%s: %w", plural("rank", gone), r.cfg.Size, r.addr, r.away(), why)
		}
	}
	return fmt.Errorf("%s of %d did not come to %s within %s%s%s: %w", plural("rank", never), r.cfg.Size, r.addr, since(start), note,
		r.away(), why)
}

// Listen takes the address, or all of this host's where its own name leads to
// one that it does not have, as behind address translation.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		if _, port, e := net.SplitHostPort(addr); e == nil {
			return lc.Listen(ctx, "tcp", ":"+port)
		}
	}
	return ln, err
}

// listen is Listen once the name of the address is known: a name service may learn it seconds after its host is up.
func (r *Meeting) listen(ctx context.Context) (net.Listener, error) {
	for pauses := retry.Pause(firstPause, mostPause); ; {
		ln, err := Listen(ctx, r.addr)
		if err == nil || !unresolved(err) {
			return ln, err
		}
		r.unknown(err)
		if pauses.Wait(ctx) != nil {
			return nil, fmt.Errorf("its name was not known until the time was over: %w", err)
		}
	}
}

// unresolved reports an address whose name is not known. It may be soon: in Kubernetes a name appears when its pod is ready.
func unresolved(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && (dns.IsNotFound || dns.IsTemporary || dns.IsTimeout)
}

// unknown tells the log once that a name is waited for.
func (r *Meeting) unknown(err error) {
	if r.cfg.Log == nil || r.named {
		return
	}
	r.named = true
	r.cfg.Log.Warn("the name of the rendezvous is not known yet: waiting for it until the join limit",
		"rank", r.cfg.Rank, "at", r.addr, "error", err,
		"fix", "if it has no such name, give its address: --master-addr, or MASTER_ADDR")
}

// away says who came and was turned away, and why others may not have come.
func (r *Meeting) away() string {
	if r.foreign != "" {
		return fmt.Sprintf(" (%s is no address of rank 0's host: set MASTER_ADDR to one, or let %s lead there)",
			r.foreign, r.foreign) + r.turned()
	}
	return r.turned()
}

// turned is the end of an error: how many connections were turned away, by reason. A rank that seems to be missing is
// often one with another token or another TLS setting.
func (r *Meeting) turned() string {
	var kinds []string
	for _, c := range r.gate.Counters() {
		if c.Value > 0 {
			kinds = append(kinds, fmt.Sprintf("%s %d", c.Name, c.Value))
		}
	}
	if len(kinds) == 0 {
		return r.gate.Trouble()
	}
	hint := ""
	if slices.ContainsFunc(kinds, func(k string) bool { return strings.HasPrefix(k, "hello.tls ") }) {
		hint = ": give all ranks the same WEFT_TLS"
	}
	return " (turned away: " + strings.Join(kinds, ", ") + hint + ")" + r.gate.Trouble()
}

// missing are the ranks that are not here; the caller holds mu.
func (r *Meeting) missing() []int {
	var out []int
	for i, l := range r.links {
		if i > 0 && (l == nil || !l.in) {
			out = append(out, i)
		}
	}
	return out
}

// admit judges a rank that knows the token. While the rendezvous fills up, one that
// does not fit is a launch gone wrong, and rank 0 fails with the same words.
func (r *Meeting) admit(h auth.Hello) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	switch {
	case h.Purpose != auth.Meet:
		return fmt.Errorf("%s is a rendezvous, not rank %d's data port", r.addr, r.cfg.Rank)
	case r.closed:
		return errors.New("the rendezvous is closed")
	case h.Size != r.cfg.Size:
		err = fmt.Errorf("rank %d says there are %d ranks, rank 0 says %d", h.Rank, h.Size, r.cfg.Size)
	case h.Rank < 1 || h.Rank >= r.cfg.Size:
		err = fmt.Errorf("rank %d is not one of those that come to rank 0, 1 to %d", h.Rank, r.cfg.Size-1)
	case r.links[h.Rank] != nil && r.links[h.Rank].by.process() == visitOf(h).process():
		return r.again(h)
	case r.links[h.Rank] != nil:
		err = fmt.Errorf("two processes came to %s as rank %d: each needs a rank of its own (RANK), or one of an earlier start still runs",
			r.addr, h.Rank)
	case r.begun:
		return fmt.Errorf("rank %d was here before and left", h.Rank)
	}
	if err != nil {
		if !r.begun && r.broken == nil {
			r.fail(err)
		}
		return err
	}
	r.links[h.Rank] = &link{by: visitOf(h)}
	return nil
}

// again judges a process that is here already and dials once more: it lost its connection before this end noticed, and before
// it heard that all are there. The new one takes the place of the old one. The caller holds mu.
func (r *Meeting) again(h auth.Hello) error {
	was, by := r.links[h.Rank], visitOf(h)
	if by.attempt() <= was.by.attempt() {
		return fmt.Errorf("rank %d has dialed again since", h.Rank)
	}
	if was.conn != nil {
		was.conn.Close()
	}
	r.links[h.Rank] = &link{by: by}
	r.changed()
	return nil
}

// turnBack forgets a rank that was admitted and lost its connection before it entered.
func (r *Meeting) turnBack(h auth.Hello) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.links[h.Rank]; l != nil && l.by == visitOf(h) {
		r.links[h.Rank] = nil
		if r.begun {
			r.left[h.Rank] = errors.New("connection lost while it came in again")
		}
		r.changed()
	}
}

// enter makes a rank that was admitted a member.
func (r *Meeting) enter(conn *record.Conn, h auth.Hello) {
	rank := h.Rank
	r.mu.Lock()
	if r.closed || r.links[rank] == nil || r.links[rank].by != visitOf(h) {
		r.mu.Unlock()
		conn.Close()
		return
	}
	l := &link{conn: conn, in: true, by: visitOf(h)} // not the one of admit: spread may look at it now, without the lock
	r.links[rank], r.came[rank] = l, true
	r.wg.Add(1)
	r.changed()
	broken, begun := r.broken, r.begun
	r.mu.Unlock()
	if begun { // its first connection did not bring it the word
		_ = l.send(frame{kind: kindStart, body: r.world[:]}, time.Now().Add(writeTime))
	}
	if broken != nil {
		_ = l.send(failed(r.cfg.Rank, broken), time.Now().Add(writeTime))
	}
	go r.read(l, rank)
}

// come is the others' way into the rendezvous.
func (r *Meeting) come(ctx context.Context) error {
	start, pauses := time.Now(), retry.Pause(firstPause, mostPause)
	var last error
	for {
		err := r.visit(ctx)
		if err == nil {
			return nil
		}
		// What the end of the time did to the last attempt says less than the attempt before.
		if end, ok := ctx.Deadline(); last == nil || ctx.Err() == nil && (!ok || time.Now().Before(end)) {
			last = err
		}
		if permanent(err) {
			return fmt.Errorf("rank %d at %s: %w", r.cfg.Rank, r.addr, err)
		}
		if unresolved(err) {
			r.unknown(err)
		}
		if pauses.Wait(ctx) != nil {
			return r.tooLate(ctx, start, last)
		}
	}
}

// tooLate says what the time passed with: rank 0 told for whom it waits, or was never reached.
func (r *Meeting) tooLate(ctx context.Context, start time.Time, last error) error {
	r.mu.Lock()
	wait := r.wait
	r.mu.Unlock()
	if len(wait) > 0 {
		return fmt.Errorf("rank %d waited for %s of %d at %s for %s: %w", r.cfg.Rank, plural("rank", wait), r.cfg.Size, r.addr, since(start),
			ctx.Err())
	}
	return fmt.Errorf("rank %d tried to reach rank 0 at %s for %s: %w", r.cfg.Rank, r.addr, since(start), last)
}

// records are those of a connection. Their checksums are keyed unless it is under TLS or there is no token.
func (r *Meeting) records(conn net.Conn, secret *auth.Secret, dialer bool) *record.Conn {
	if r.cfg.TLS != nil || r.cfg.Token == "" {
		secret = nil
	}
	return record.New(conn, secret, dialer, 4<<10)
}

// visit is one attempt to come in.
func (r *Meeting) visit(ctx context.Context) error {
	line := auth.Line{Addr: r.addr, TLS: r.cfg.TLS, Token: r.cfg.Token}
	line.Control = small
	r.tries++
	conn, secret, err := line.Connect(ctx, auth.Hello{Purpose: auth.Meet, Rank: r.cfg.Rank, Size: r.cfg.Size,
		Epoch: r.cfg.Epoch, Extra: newVisit(r.self, r.tries)})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	l := &link{conn: r.records(conn, &secret, true), in: true}
	for {
		f, err := l.receive()
		if err != nil {
			stop()
			conn.Close()
			return err
		}
		switch f.kind {
		case kindWaiting:
			r.mu.Lock()
			r.wait = getRanks(f.body, r.cfg.Size)
			r.changed()
			r.mu.Unlock()
		case kindFail:
			stop()
			conn.Close()
			return told(f)
		case kindStart:
			if !stop() {
				return ctx.Err()
			}
			copy(r.world[:], f.body)
			r.mu.Lock()
			r.links[0], r.begun = l, true
			r.wg.Add(1)
			r.mu.Unlock()
			go r.read(l, 0)
			return nil
		}
	}
}

// ended says how a context ended. One that was cancelled is context.Canceled here and, as a failure, on other ranks: these did not run
// out of time.
func (r *Meeting) ended(ctx context.Context) error {
	if !errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return &failure{fmt.Sprintf("rank %d gave up: %v", r.cfg.Rank, context.Cause(ctx)), true}
}

// failure is an error that rank 0 told.
type failure struct {
	why      string
	canceled bool // a rank gave up
}

func (f *failure) Error() string { return f.why }

func (f *failure) Is(target error) bool { return f.canceled && target == context.Canceled }

// told is the failure that failed put into a frame.
func told(f frame) *failure { return &failure{string(f.body), f.round != 0} }

func failed(rank int, err error) frame {
	text := err.Error()
	return frame{kind: kindFail, rank: uint32(rank), round: uint32(boolInt(errors.Is(err, context.Canceled))),
		body: []byte(text[:min(len(text), maxWord)])}
}

// permanent tells the errors that trying again does not mend. Ranks of an earlier epoch may still be about to leave an address.
func permanent(err error) bool {
	if other, ok := errors.AsType[*auth.OtherEpoch](err); ok {
		return other.Late()
	}
	if errors.Is(err, auth.ErrToken) {
		return true
	}
	var (
		refusal  *auth.Refusal
		stranger *auth.Stranger
		told     *failure
		cert     *tls.CertificateVerificationError
		op       *net.OpError
	)
	return errors.As(err, &refusal) || errors.As(err, &stranger) || errors.As(err, &told) ||
		errors.As(err, &cert) || (errors.As(err, &op) && op.Op == "remote error") // an alert of TLS
}

// plural names up to eight ranks.
func plural(noun string, ranks []int) string {
	const most = 8
	words := make([]string, 0, most+1)
	for i, x := range ranks {
		if i == most {
			words = append(words, fmt.Sprintf("and %d more", len(ranks)-most))
			break
		}
		words = append(words, fmt.Sprint(x))
	}
	if len(ranks) > 1 {
		noun += "s"
	}
	return noun + " " + strings.Join(words, ", ")
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

var _ transport.Gather = (*Meeting)(nil).Gather
