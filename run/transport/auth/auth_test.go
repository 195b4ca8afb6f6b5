package auth

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/bounded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entrance is a listener that is open.
type entrance struct {
	*Listener
	addr    string
	entered chan Hello
	log     bytes.Buffer
	mu      sync.Mutex
}

func (e *entrance) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.Write(b)
}

func open(t *testing.T, change func(*Listener)) *entrance {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &entrance{addr: l.Addr().String(), entered: make(chan Hello, 10)}
	e.Listener = &Listener{Token: "right", Log: slog.New(slog.NewTextHandler(e, nil)),
		Admit: func(h Hello) error {
			if h.Rank == 13 {
				return errors.New("rank 13 is not wanted here")
			}
			return nil
		},
		Enter: func(c net.Conn, h Hello) { c.Close(); e.entered <- h },
	}
	if change != nil {
		change(e.Listener)
	}
	done := make(chan struct{})
	go func() { e.Serve(l); close(done) }()
	t.Cleanup(func() { l.Close(); e.Close(); <-done })
	return e
}

func (e *entrance) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// turnedAway waits until the listener has counted n of a kind, and nothing else.
func (e *entrance) turnedAway(t *testing.T, kind Kind, n uint64) {
	t.Helper()
	if !bounded.Holds(20*time.Second, func() bool { return e.counts[kind].Load() >= n }) {
		t.Fatalf("%s: %v", kind, e.Counters())
	}
	for k := range kinds {
		if c := e.counts[k].Load(); k != kind && c != 0 {
			t.Errorf("%d connections counted as %s", c, k)
		}
	}
	// What is counted is logged next, so it may be a moment until it is.
	bounded.Holds(20*time.Second, func() bool { return e.logged(kind) > 0 })
	if got := e.logged(kind); got != 1 {
		t.Errorf("%s: logged %d times", kind, got)
	}
}

// logged is how many lines of the log are about a kind.
func (e *entrance) logged(kind Kind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Count(e.log.String(), "kind="+kind.String())
}

func TestEnter(t *testing.T) {
	for _, token := range []string{"right", "", strings.Repeat("long", 1000)} {
		e := open(t, func(d *Listener) { d.Token = token })
		h := Hello{Purpose: Stream, Rank: 3, Size: 7, World: [16]byte{1, 2}, Extra: [16]byte{9}}
		var err error
		if h.Secret, err = Dial(e.dial(t), token, h); err != nil {
			t.Fatal(err)
		}
		if got := <-e.entered; got != h {
			t.Errorf("%+v entered, %+v dialed", got, h)
		}
	}
}

// TestStrangers sends what is not a hello; each is counted by its kind, logged
// once, and does not keep the next one out.
func TestStrangers(t *testing.T) {
	hello := func() []byte {
		var b [HelloSize]byte
		h := Hello{Purpose: Stream, Rank: 1, Size: 2}
		h.put(&b, [32]byte{})
		return b[:]
	}
	for _, c := range []struct {
		name string
		kind Kind
		send func(c net.Conn)
	}{
		{"port scan", Empty, func(c net.Conn) {}},
		{"HTTP probe", Garbage, func(c net.Conn) { _, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) }},
		{"2 GiB length field", Garbage, func(c net.Conn) { _, _ = c.Write(binary.BigEndian.AppendUint32(nil, 0x7fffffff)) }},
		{"TLS hello", TLS, func(c net.Conn) { _, _ = c.Write([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}) }},
		{"truncated hello", Truncated, func(c net.Conn) { _, _ = c.Write(hello()[:50]) }},
		{"no proof", Truncated, func(c net.Conn) { _, _ = c.Write(hello()) }},
		{"other version", Version, func(c net.Conn) {
			b := hello()
			b[7]++
			_, _ = c.Write(b)
		}},
		{"reserved bytes", Garbage, func(c net.Conn) {
			b := hello()
			b[20] = 1
			_, _ = c.Write(b)
		}},
		{"wrong token", Token, func(c net.Conn) {
			if _, err := Dial(c, "wrong", Hello{Purpose: Stream, Rank: 1, Size: 2}); !errors.Is(err, ErrToken) {
				t.Errorf("a wrong token gave %v", err)
			}
		}},
		{"other epoch of a place without one", Token, func(c net.Conn) {
			if _, err := Dial(c, "wrong", Hello{Purpose: Meet, Rank: 1, Size: 2, Epoch: 3}); !errors.Is(err, ErrToken) {
				t.Errorf("an epoch where there are none gave %v", err)
			}
		}},
		{"not wanted", Refused, func(c net.Conn) {
			_, err := Dial(c, "right", Hello{Purpose: Stream, Rank: 13, Size: 2})
			if r := (*Refusal)(nil); !errors.As(err, &r) || r.Why != "rank 13 is not wanted here" {
				t.Errorf("a refusal gave %v", err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := open(t, nil)
			for range 2 {
				conn := e.dial(t)
				c.send(conn)
				if c.kind == Garbage || c.kind == Version {
					// It is closed at once, without waiting for more.
					if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
						t.Errorf("read %d bytes, %v", n, err)
					}
				}
				conn.Close()
			}
			e.turnedAway(t, c.kind, 2)
			if _, err := Dial(e.dial(t), "right", Hello{Purpose: Meet, Rank: 1, Size: 2}); err != nil {
				t.Error(err)
			}
			<-e.entered
		})
	}
}

// TestVerdictAtTheClose closes the listener while one is judged that is the reason for
// it: that one is told so.
func TestVerdictAtTheClose(t *testing.T) {
	closed := make(chan struct{})
	e := open(t, func(d *Listener) {
		d.Admit = func(Hello) error {
			go func() { d.Close(); close(closed) }()
			for shut := false; !shut; runtime.Gosched() {
				d.mu.Lock()
				shut = d.closed
				d.mu.Unlock()
			}
			return errors.New("all is over because of you")
		}
	})
	_, err := Dial(e.dial(t), "right", Hello{Purpose: Meet, Rank: 1, Size: 2})
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Why != "all is over because of you" {
		t.Errorf("the one that was judged heard %v", err)
	}
	<-closed
	e.turnedAway(t, Refused, 1)
}

// TestReplay records a handshake that succeeds, and says the same again.
func TestReplay(t *testing.T) {
	e := open(t, nil)
	a, b := net.Pipe()
	var said bytes.Buffer
	conn := e.dial(t)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.MultiWriter(conn, &said), b) })
	wg.Go(func() { _, _ = io.Copy(b, conn); b.Close() })
	// The listener may have closed it before the dialer is done with it.
	if _, err := Dial(a, "right", Hello{Purpose: Stream, Rank: 1, Size: 2}); err != nil && err != io.ErrClosedPipe {
		t.Fatal(err)
	}
	<-e.entered
	a.Close()
	wg.Wait()
	again := e.dial(t)
	if _, err := again.Write(said.Bytes()); err != nil {
		t.Fatal(err)
	}
	e.turnedAway(t, Token, 1)
	select {
	case h := <-e.entered:
		t.Errorf("%+v entered by a replay", h)
	default:
	}
}

// TestReflection answers a dialer with its own words: the roles differ, so it
// does not take them for a listener's.
func TestReflection(t *testing.T) {
	a, b := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		hello, proof := make([]byte, HelloSize), make([]byte, proofSize)
		_, _ = io.ReadFull(b, hello)
		_, _ = b.Write(hello[:challengeSize])
		_, _ = io.ReadFull(b, proof)
		_, _ = b.Write(append(make([]byte, verdictSize-proofSize), proof...))
		b.Close()
	})
	if _, err := Dial(a, "right", Hello{Purpose: Stream, Rank: 1, Size: 2}); !errors.Is(err, ErrToken) {
		t.Errorf("got %v", err)
	}
	a.Close()
	wg.Wait()
}

// certificates makes an authority and one certificate of it.
func certificates(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weft"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool}
}

func TestTLS(t *testing.T) {
	mine := certificates(t)
	e := open(t, func(d *Listener) { d.TLS = mine })
	try := func(c *tls.Config) error {
		conn, err := Client(context.Background(), e.dial(t), c, "127.0.0.1")
		if err == nil {
			_, err = Dial(conn, "right", Hello{Purpose: Stream, Rank: 1, Size: 2})
		}
		return err
	}
	if err := try(mine); err != nil {
		t.Fatal(err)
	}
	<-e.entered
	if try(&tls.Config{RootCAs: mine.RootCAs}) == nil {
		t.Error("entered without a certificate")
	}
	other := certificates(t)
	other.RootCAs = mine.RootCAs
	if try(other) == nil {
		t.Error("entered with a certificate of another authority")
	}
	e.turnedAway(t, TLS, 2)
}

func TestCheckToken(t *testing.T) {
	for _, c := range []struct {
		token, host string
		open, ok    bool
	}{
		{"", "127.0.0.1", false, true}, {"", "::1", false, true}, {"", "localhost", false, true},
		{"", "10.0.0.1", false, false}, {"", "", false, false}, {"", "0.0.0.0", false, false}, {"", "node1", false, false},
		{"", "10.0.0.1", true, true}, {"x", "10.0.0.1", false, true},
	} {
		err := CheckToken(c.token, c.host, c.open)
		if (err == nil) != c.ok || (err != nil && !strings.Contains(err.Error(), "WEFT_TOKEN")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// FuzzHello says anything to a listener: it never enters without the token, and
// what is a hello is read as it was written.
func FuzzHello(f *testing.F) {
	var b [HelloSize]byte
	h := Hello{Purpose: Stream, Rank: 1, Size: 2}
	h.put(&b, [32]byte{5})
	f.Add(b[:])
	f.Add(append(b[:], make([]byte, proofSize)...))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		if len(said) >= HelloSize {
			raw := [HelloSize]byte(said[:HelloSize])
			if h, err := parse(&raw); err == nil {
				var again [HelloSize]byte
				h.put(&again, [32]byte(raw[56:88]))
				if again != raw {
					t.Fatalf("%x was read as %+v", raw, h)
				}
			}
		}
		a, b := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = b.Write(said); b.Close() })
		wg.Go(func() { _, _ = io.Copy(io.Discard, b) })
		if _, err := answer(a, "token", 0, func(Hello) error { return nil }); err == nil {
			t.Fatal("entered without the token")
		}
		a.Close()
		wg.Wait()
	})
}

// poor is a listener of a process that has no descriptor left.
type poor struct {
	net.Listener
	asked chan struct{}
}

func (l *poor) Accept() (net.Conn, error) {
	select {
	case l.asked <- struct{}{}:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	default:
		return nil, net.ErrClosed
	}
}

// watched is a listener that gives out one connection and notes, when that is closed, how many were turned away by then.
type watched struct {
	net.Listener
	gate    *Listener
	counted chan uint64
	given   bool
}

type watchedConn struct {
	net.Conn
	l *watched
}

func (l *watched) Accept() (net.Conn, error) {
	if l.given {
		return nil, net.ErrClosed
	}
	l.given = true
	c, err := l.Listener.Accept()
	return watchedConn{c, l}, err
}

func (c watchedConn) Close() error {
	var n uint64
	for k := range kinds {
		n += c.l.gate.counts[k].Load()
	}
	c.l.counted <- n
	return c.Conn.Close()
}

// A connection is counted before it is closed: who sees the end of it finds it in the counters.
func TestCountedBeforeClosed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, change := range map[string]func(*Listener){
		"garbage": func(*Listener) {},
		"crowd": func(l *Listener) {
			l.open = map[net.Conn]struct{}{}
			for range crowd {
				l.open[&net.TCPConn{}] = struct{}{}
			}
		},
	} {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		l := &Listener{Token: "right"}
		change(l)
		w := &watched{Listener: ln, gate: l, counted: make(chan uint64, 1)}
		l.Serve(w)
		if n := <-w.counted; n != 1 {
			t.Errorf("%s: %d counted when the connection was closed, want 1", name, n)
		}
		c.Close()
		l.wg.Wait()
	}
}

func TestTroubleIsTold(t *testing.T) {
	d := &Listener{}
	if s := d.Trouble(); s != "" {
		t.Errorf("before anything happened: %q", s)
	}
	d.Serve(&poor{asked: make(chan struct{}, 1)})
	if s := d.Trouble(); !strings.Contains(s, "too many open files; raise ulimit -n") {
		t.Errorf("said %q", s)
	}
}
