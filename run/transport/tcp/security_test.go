//go:build linux

package tcp

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
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// exchange sends messages both ways between two endpoints and checks them.
func exchange(es []*Endpoint, comm uint32, sizes []int, between func()) error {
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for rank, e := range es {
		wg.Go(func() {
			errs[rank] = func() error {
				p, err := e.Port(transport.Group{ID: comm, Epoch: 1, Members: []int{0, 1}})
				if err != nil {
					return err
				}
				defer p.Close()
				for k, n := range sizes {
					p.Begin(transport.Call{Epoch: 1, Comm: comm, Seq: uint64(k + 1)}, patience())
					out, in, want := make([]byte, n), make([]byte, n), make([]byte, n)
					fillRandom(out, uint64(2*k+rank))
					fillRandom(want, uint64(2*k+1-rank))
					p.Expect(1-rank, 0, in)
					if rank == 0 && between != nil {
						between()
					}
					if err := p.Send(1-rank, 0, out); err != nil {
						return err
					}
					if err := p.Recv(1-rank, 0, in); err != nil {
						return err
					}
					if !bytes.Equal(in, want) {
						return errors.New("wrong bytes")
					}
				}
				// Nobody leaves before the other has everything.
				p.Begin(transport.Call{Epoch: 1, Comm: comm, Seq: 1 << 40}, patience())
				if err := p.Send(1-rank, 0, nil); err != nil {
					return err
				}
				return p.Recv(1-rank, 0, nil)
			}()
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestGarbage talks nonsense to the data port while two ranks work.
func TestGarbage(t *testing.T) {
	es := endpoints(t, 2, func(c *Config) { c.Epoch = 5 })
	addr := es[1].wire.Address()
	words := map[string]func(c net.Conn){
		"hello.empty":     func(c net.Conn) {},
		"hello.garbage":   func(c net.Conn) { _, _ = c.Write([]byte("GET /metrics HTTP/1.1\r\n\r\n")) },
		"hello.truncated": func(c net.Conn) { _, _ = c.Write([]byte{0x89, 'w', 'e', 'f', 't'}) },
		"hello.token": func(c net.Conn) {
			if _, err := auth.Dial(c, "guess", auth.Hello{Purpose: auth.Stream, Rank: 0, Size: 2, World: es[0].wire.World()}); !errors.Is(err,
				auth.ErrToken) {
				t.Errorf("wrong token: %v", err)
			}
		},
		"hello.epoch": func(c net.Conn) { // the port was another process's before
			_, err := auth.Dial(c, "secret of 4", auth.Hello{Purpose: auth.Stream, Rank: 0, Size: 2, Epoch: 4, World: [16]byte{4}})
			if err == nil || !strings.Contains(err.Error(), "belongs to epoch 5 of the job, this rank to epoch 4") {
				t.Errorf("another epoch: %v", err)
			}
		},
		"hello.refused": func(c net.Conn) {
			_, err := auth.Dial(c, "secret", auth.Hello{Purpose: auth.Stream, Rank: 0, Size: 2, World: [16]byte{1}})
			if err == nil || !strings.Contains(err.Error(), "another world") {
				t.Errorf("another world: %v", err)
			}
		},
	}
	err := exchange(es, 1, []int{8, 100_000, 3 << 20, 8}, func() {
		for _, say := range words {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			say(c)
			c.Close()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for kind := range words {
		if !bounded.Holds(20*time.Second, func() bool { return total(es[1], kind) >= 4 }) {
			t.Fatalf("%s: %d, want 4", kind, total(es[1], kind))
		}
	}
}

// TestBadFrames has a peer that knows the token send frames that are none: it is
// gone, nothing is allocated for what it says, and the rank goes on with others.
func TestBadFrames(t *testing.T) {
	good := func(change func(h *frame.Header)) []byte {
		var b [frame.HeaderSize]byte
		h := frame.Header{Kind: frame.Data, Length: 8, Total: 8}
		change(&h)
		h.Put(&b, auth.PlainKey())
		return b[:]
	}
	for name, bad := range map[string][]byte{
		"2 GiB piece":       good(func(h *frame.Header) { h.Length, h.Total = 0x7fffffff, 0x7fffffff }),
		"huge message":      good(func(h *frame.Header) { h.Length, h.Total = frame.PieceSize, 1<<63 }),
		"past the end":      good(func(h *frame.Header) { h.Offset = 16 }),
		"odd offset":        good(func(h *frame.Header) { h.Offset, h.Total = 1, 9 }),
		"unknown kind":      good(func(h *frame.Header) { h.Kind = 200 }),
		"unknown flag":      good(func(h *frame.Header) { h.Flags = 0x80 }),
		"channel":           good(func(h *frame.Header) { h.Channel = 1 << 30 }),
		"checksum":          append(good(func(h *frame.Header) {})[:frame.HeaderSize-1], 77),
		"text":              bytes.Repeat([]byte("hello"), 100),
		"control with data": good(func(h *frame.Header) { h.Kind = frame.Bye }),
	} {
		t.Run(name, func(t *testing.T) {
			es := endpoints(t, 2, nil)
			s := es[0].wire.Link(1).Streams()[0]
			if _, err := socket.Send2(s.FD(), bad, nil, &socket.Vector{}); err != nil {
				t.Fatal(err)
			}
			p, err := es[1].Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
			if err != nil {
				t.Fatal(err)
			}
			p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, patience())
			var gone *transport.Gone
			if err := p.Recv(0, 0, make([]byte, 8)); !errors.As(err, &gone) || gone.Rank != 0 {
				t.Errorf("got %v, want that rank 0 is gone", err)
			}
		})
	}
}

// counting counts the lines of a log.
type counting struct {
	slog.Handler
	n *atomic.Int32
}

func (c counting) Handle(context.Context, slog.Record) error { c.n.Add(1); return nil }
func (c counting) Enabled(context.Context, slog.Level) bool  { return true }

// TestRefusedFrame has a rank send a frame that the other refuses, and would again and again, as what was not acknowledged
// is sent over the next connection: both ranks end with an error that says what was refused, soon and with few lines in the log.
func TestRefusedFrame(t *testing.T) {
	for _, streams := range []int{1, 2} {
		t.Run(fmt.Sprint(streams, " streams"), func(t *testing.T) {
			lines := new(atomic.Int32)
			es := endpoints(t, 2, func(c *Config) {
				c.Streams, c.Log = streams, slog.New(counting{slog.DiscardHandler, lines})
			})
			if err := exchange(es, 1, []int{8, 200_000}, nil); err != nil {
				t.Fatal(err)
			}
			es[0].wire.Link(1).Control(&wire.Outbound{H: frame.Header{Kind: 99}})
			errs, want := make([]error, 2), transport.Refused{Sender: 0, Receiver: 1, What: "frame of unknown kind 99"}
			var wg sync.WaitGroup
			for rank, e := range es {
				p, err := e.Port(transport.Group{ID: 2, Epoch: 1, Members: []int{0, 1}})
				if err != nil {
					t.Fatal(err)
				}
				p.Begin(transport.Call{Epoch: 1, Comm: 2, Seq: 1}, patience())
				wg.Go(func() { errs[rank] = p.Recv(1-rank, 0, make([]byte, 8)) })
			}
			wg.Wait()
			for rank, err := range errs {
				if streams == 1 && rank == 0 { // its only connection was closed: that is all it knows
					if g := (*transport.Gone)(nil); !errors.As(err, &g) {
						t.Errorf("rank 0: %v, want that rank 1 is gone", err)
					}
				} else if r, ok := errors.AsType[*transport.Refused](err); !ok || *r != want {
					t.Errorf("rank %d: %v, want %v", rank, err, &want)
				}
			}
			if n := lines.Load(); n > 2*wire.ChatMost {
				t.Errorf("%d lines in the log", n)
			}
		})
	}
}

func TestNoToken(t *testing.T) {
	all := []rails.Facts{{Space: "a", Rails: []rails.Rail{{Name: "eth0", Bits: 24}}},
		{Space: "b", Rails: []rails.Rail{{Name: "eth0", Bits: 24}}}}
	all[0].Rails[0].Addr, all[1].Rails[0].Addr = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	if _, err := rails.Choose(&rails.Config{}, all); err == nil || !strings.Contains(err.Error(), "WEFT_TOKEN") {
		t.Errorf("without a token: %v", err)
	}
	for _, c := range []rails.Config{{Token: "x"}, {NoToken: true}} {
		if _, err := rails.Choose(&c, all); err != nil {
			t.Error(err)
		}
	}
}

// certificates are what both ends of a test show.
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

// TestTLS runs over encrypted streams, with and without numbered pieces.
func TestTLS(t *testing.T) {
	conf := certificates(t)
	for _, streams := range []int{1, 3} {
		es := endpoints(t, 2, func(c *Config) { c.TLS, c.Streams = conf, streams })
		if err := exchange(es, 1, []int{0, 8, 5000, 70_000, 3 << 20, 1}, nil); err != nil {
			t.Errorf("%d streams: %v", streams, err)
		}
		closeAll(es)
	}
}

// A call ends in time although its peer's process is stopped and takes nothing out of an encrypted stream; the memory is the
// sender's again, and what was begun goes on when the process does.
func TestTLSStopped(t *testing.T) {
	conf := certificates(t)
	for _, streams := range []int{1, 2} {
		es := endpoints(t, 2, func(c *Config) { c.TLS, c.Streams = conf, streams })
		p, err := es[0].Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		var held []func()
		for _, s := range es[1].wire.Link(0).Streams() { // nobody gets further there
			held = append(held, s.HoldReads())
		}
		late := errors.New("time limit")
		end := time.Now().Add(100 * time.Millisecond)
		p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, func() error {
			if time.Now().After(end) {
				return late
			}
			return nil
		})
		done := make(chan error, 1)
		b := make([]byte, 64<<20)
		go func() { done <- p.Send(1, 0, b) }()
		select {
		case err := <-done:
			if !errors.Is(err, late) {
				t.Errorf("%d streams: %v", streams, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%d streams: the call goes on 20 s after its time limit", streams)
		}
		for _, let := range held {
			let()
		}
		if err := exchange(es, 2, []int{8, 70_000, 3 << 20}, nil); err != nil {
			t.Errorf("%d streams, afterwards: %v", streams, err)
		}
		closeAll(es)
	}
}

func TestChecksum(t *testing.T) {
	es := endpoints(t, 2, func(c *Config) { c.Checksum = wire.SumsAll })
	if err := exchange(es, 1, []int{0, 8, 5000, 3 << 20}, nil); err != nil {
		t.Fatal(err)
	}
}

// FuzzFrames feeds anything to the reader of a stream: it never panics, and
// takes no memory for what has not come.
func FuzzFrames(f *testing.F) {
	var b [frame.HeaderSize]byte
	h := frame.Header{Kind: frame.Data, Length: 8, Total: 8}
	h.Put(&b, auth.PlainKey())
	f.Add(append(b[:], 1, 2, 3, 4, 5, 6, 7, 8), uint8(0))
	h = frame.Header{Kind: frame.Ack, Total: 5, Offset: 9, Ack: 3}
	h.Put(&b, auth.PlainKey())
	f.Add(b[:], uint8(1))
	h = frame.Header{Kind: frame.Credit, Total: 1 << 50}
	h.Put(&b, auth.PlainKey())
	f.Add(b[:], uint8(0))
	f.Fuzz(func(t *testing.T, raw []byte, sign uint8) {
		e := unopened(t, 2)
		p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, func() error { return nil })
		p.Expect(1, 0, make([]byte, 8))
		// A checksum that is right lets the fuzzer past it.
		for at := 0; sign&1 == 0 && at+frame.HeaderSize <= len(raw); {
			x := (*[frame.HeaderSize]byte)(raw[at:])
			le := binary.LittleEndian
			var h frame.Header
			h.Kind, h.Flags, h.Length = x[2], x[3], int(le.Uint32(x[4:])%512)
			h.Total, h.Offset, h.Channel, h.Msgno = le.Uint64(x[8:]), le.Uint64(x[16:]), le.Uint32(x[24:]), le.Uint32(x[28:])
			h.Piece, h.Ack = le.Uint64(x[32:]), le.Uint64(x[40:])
			h.Put(x, auth.PlainKey())
			at += frame.HeaderSize + h.Length
		}
		_ = e.wire.Fed(1, raw)
		if n := e.wire.Link(1).Buffered.Load(); n > int64(len(raw))*8+4096 {
			t.Fatalf("%d bytes held for %d", n, len(raw))
		}
	})
}
