package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/transport"
)

// Kind is a reason for which a connection was turned away.
type Kind uint8

// The kinds of connections that are turned away.
const (
	Empty     Kind = iota // closed without a word: a port scan
	Silent                // open, but nothing or too little came
	Truncated             // closed within the handshake
	Garbage               // another protocol: an HTTP probe
	Version               // another version of this one
	Token                 // no or another token, or a replayed proof
	Refused               // right token, but not wanted: a rank twice, another size
	TLS                   // no or another certificate
	Crowded               // too many handshakes at once
	Epoch                 // of another epoch of the job, which has another token
	kinds
)

var kindNames = [kinds]string{"empty", "silent", "truncated", "garbage", "version", "token", "refused", "tls", "crowded", "epoch"}

func (k Kind) String() string { return kindNames[k] }

// turned is a connection that was turned away.
type turned struct {
	kind Kind
	why  string
	over bool // it came too late
}

func (t *turned) Error() string { return t.kind.String() + ": " + t.why }

// Over is why one is not let in that comes too late, as those do whose streams end one after another. It is told to the dialer, and is
// neither counted nor logged.
type Over string

func (o Over) Error() string { return string(o) }

// Listener admits connections that prove they know the token. Its fields are set before
// Serve.
type Listener struct {
	Token string
	Epoch uint64      // of the job whose ranks come here; 0 for none
	TLS   *tls.Config // if set, both ends show certificates
	Log   *slog.Logger
	// Admit judges one that has proven itself; the text of its error is told
	// to it. Enter gets the connection, which it owns, afterwards; Leave is
	// called instead if one was admitted and lost before it entered.
	Admit func(Hello) error
	Enter func(net.Conn, Hello)
	Leave func(Hello)

	counts [kinds]atomic.Uint64
	failed atomic.Pointer[error] // of the last Accept that did
	mu     sync.Mutex
	open   map[net.Conn]struct{} // within the handshake
	closed bool
	wg     sync.WaitGroup
}

// crowd is how many handshakes may be under way. Each holds a goroutine and a
// socket for at most Timeout; dialers that find the listener full try again.
const crowd = 1024

// Serve answers connections until the listener is closed.
func (l *Listener) Serve(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors or memory: what is open goes on, and a pause
			// lets some of it end.
			l.failed.Store(&err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		l.mu.Lock()
		full, closed := len(l.open) >= crowd, l.closed
		if !full && !closed {
			if l.open == nil {
				l.open = map[net.Conn]struct{}{}
			}
			l.open[conn] = struct{}{}
			l.wg.Add(1)
		}
		l.mu.Unlock()
		if full || closed {
			if full {
				l.count(&turned{kind: Crowded, why: "too many handshakes at once"}, conn.RemoteAddr())
			}
			conn.Close()
			continue
		}
		go l.greet(conn)
	}
}

// greet lets a connection in or turns it away, and counts why. Enter gets those that were let in, and owns them. A peer
// that Admit took and that fails before its verdict arrives is given to Leave.
func (l *Listener) greet(raw net.Conn) {
	defer l.wg.Done()
	conn, from := raw, raw.RemoteAddr()
	admitted := false
	h, err := func() (Hello, error) {
		if l.TLS != nil {
			ctx, cancel := context.WithTimeout(context.Background(), Timeout)
			defer cancel()
			t := tls.Server(raw, serverTLS(l.TLS))
			if err := t.HandshakeContext(ctx); err != nil {
				why := err.Error()
				if r, ok := errors.AsType[tls.RecordHeaderError](err); ok && r.RecordHeader[0] == magic[0] {
					why = "it has no TLS, and this end has: " + sameTLS
				}
				return Hello{}, &turned{kind: TLS, why: why}
			}
			conn = t
		}
		return answer(conn, l.Token, l.Epoch, func(h Hello) error {
			// Whoever is judged hears the verdict, also if that is why the listener is closed.
			l.mu.Lock()
			delete(l.open, raw)
			l.mu.Unlock()
			if err := l.Admit(h); err != nil {
				return err
			}
			admitted = true
			return nil
		})
	}()
	l.mu.Lock()
	delete(l.open, raw)
	l.mu.Unlock()
	if err != nil {
		defer conn.Close() // last, so that one that was turned away finds itself counted and its seat free
		if admitted && l.Leave != nil {
			l.Leave(h)
		}
		l.mu.Lock()
		closed := l.closed
		l.mu.Unlock()
		// After Close only those count that were judged; the others were turned away by it.
		if t, ok := errors.AsType[*turned](err); !closed || ok && t.kind == Refused {
			l.count(err, from)
		}
		return
	}
	l.Enter(conn, h)
}

func (l *Listener) count(err error, from net.Addr) {
	t, ok := errors.AsType[*turned](err)
	if !ok {
		t = &turned{kind: Truncated, why: err.Error()}
	}
	if t.over {
		return
	}
	if l.counts[t.kind].Add(1) == 1 && l.Log != nil {
		l.Log.Warn("connection turned away; more of this kind are only counted", "kind", t.kind.String(), "from", from.String(), "why", t.why)
	}
}

// Close ends the handshakes under way and waits for them; those that have proven
// themselves are told the verdict first. The listener is the caller's.
func (l *Listener) Close() {
	l.mu.Lock()
	l.closed = true
	for c := range l.open {
		c.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// Trouble says why connections could not be taken, in brackets, for those who miss
// somebody; nothing if they could.
func (l *Listener) Trouble() string {
	err := l.failed.Load()
	if err == nil {
		return ""
	}
	hint := ""
	if errors.Is(*err, syscall.EMFILE) {
		hint = "; raise ulimit -n"
	}
	return fmt.Sprintf(" (connections could not be accepted: %v%s)", *err, hint)
}

// Counters are how many connections were turned away, by kind.
func (l *Listener) Counters() []transport.Counter {
	out := make([]transport.Counter, kinds)
	for k := range kinds {
		out[k] = transport.Counter{Name: "hello." + k.String(), Value: l.counts[k].Load()}
	}
	return out
}

// serverTLS demands a certificate of the dialer.
func serverTLS(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.ClientAuth = tls.RequireAndVerifyClientCert
	if c.ClientCAs == nil {
		c.ClientCAs = c.RootCAs
	}
	return c
}

// Client is a dialed connection under TLS, if there is any, with the host's
// name or address as the name that the certificate must bear unless the
// configuration has another.
func Client(ctx context.Context, conn net.Conn, c *tls.Config, host string) (net.Conn, error) {
	if c == nil {
		return conn, nil
	}
	c = c.Clone()
	if c.ServerName == "" {
		c.ServerName = host
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	t := tls.Client(conn, c)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return t, nil
}
