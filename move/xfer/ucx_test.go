package xfer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
	"github.com/weft-fabric/weft/run/transport/ucx"
)

// withUCX adds the path of UCX where it is installed.
func withUCX(paths ...string) []string {
	if _, err := ucx.Version(); err == nil {
		paths = append(paths, "ucx")
	}
	return paths
}

// TestUCX moves bytes of all kinds over UCX, and says which of its transports carried them.
func TestUCX(t *testing.T) {
	if _, err := ucx.Version(); err != nil {
		t.Skip(err)
	}
	ctx := limit(t)
	a, b := start(t, "a", nil), start(t, "b", nil)
	const n = 3<<20 + 17 // several slices, the last one short
	mine, theirs := host(t, a, "mine", n, false, 1), host(t, b, "theirs", n, false, 2)
	p := meet(t, a, b)
	far := remote(t, p, "theirs")
	move := func(op Op, local, remote []Desc) {
		t.Helper()
		q, err := a.Post(Transfer{Op: op, Local: prepare(t, a, nil, local...), Remote: prepare(t, a, p, remote...), Notice: []byte("over ucx"),
			Path: "ucx"})
		if err == nil {
			err = q.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := q.Poll().Path; got != "ucx" {
			t.Errorf("path %s", got)
		}
		if x, err := b.NextNotice(ctx); err != nil || x.Err != nil || string(x.Data) != "over ucx" {
			t.Errorf("notice %+v, %v", x, err)
		}
	}
	move(Read, []Desc{mine.At(0, n)}, []Desc{far.At(0, n)})
	if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Error("wrong bytes were read")
	}
	noise(mine.Bytes(), 3)
	want := bytes.Clone(theirs.Bytes())
	copy(want[100:], mine.Bytes()[:5000])
	copy(want[1<<20:], mine.Bytes()[1<<20:2<<20])
	move(Write, []Desc{mine.At(0, 5000), mine.At(1<<20, 1<<20)}, []Desc{far.At(100, 5000), far.At(1<<20, 1<<20)})
	if !bytes.Equal(theirs.Bytes(), want) {
		t.Error("wrong bytes were written")
	}
	routes, err := a.Measure(ctx, mine, p, far)
	if err != nil {
		t.Fatal(err)
	}
	if r := routes[len(routes)-1]; r.Path != "ucx" || !r.OK || r.Rate <= 0 {
		t.Errorf("measured: %+v", r)
	}
	l := p.link("ucx")
	s, err := l.get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if name := s.streams[0].nc.(*ucxStream).name; !strings.HasPrefix(name, "ucx ") {
		t.Errorf("it is called %q", name)
	}
}

// TestNoUCX refuses UCX where it cannot be taken, and says why.
func TestNoUCX(t *testing.T) {
	ctx := limit(t)
	secure, err := auth.Certificates("token", "the token")
	if err != nil {
		t.Fatal(err)
	}
	change := func(c *Config) { c.TLS, c.Token = secure, "the token" }
	a, b := start(t, "a", change), start(t, "b", change)
	mine := host(t, a, "mine", 4096, false, 1)
	host(t, b, "theirs", 4096, false, 2)
	p := meet(t, a, b)
	q, err := a.Post(Transfer{Op: Read, Local: prepare(t, a, nil, mine.At(0, 4096)),
		Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, 4096)), Path: "ucx"})
	if err == nil {
		err = q.Wait(ctx)
	}
	if !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), "not encrypted") && !strings.Contains(err.Error(), "UCX is not") {
		t.Errorf("got %v", err)
	}
}

// TestFenceBeforeTheChecksum closes the fence of a slice whose bytes are there and whose checksum does not come.
func TestFenceBeforeTheChecksum(t *testing.T) {
	a := start(t, "a", nil)
	mine := host(t, a, "mine", 1000, false, 1)
	l, err := newLanding(context.Background(), 1, func(int) Desc { return mine.At(0, 1000) }, a.region, 1000, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.view.index()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	out, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var secret auth.Secret
	from, to := a.newConn(out, &secret, true), a.newConn(in, &secret, false)
	to.src = whole(in)
	h := record.Header{Kind: fData, Length: 1000, Call: 1}
	h.Put(&from.head, from.out)
	if err := from.write(from.head[:], make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		var f frame
		err := to.next(&f)
		if err == nil {
			err = to.slice(&f, l, nil)
		}
		read <- err
	}()
	bounded.Until(t, 20*time.Second, "somebody who reads the slice", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.inner > 0
	})
	closed := make(chan struct{})
	go func() {
		l.close(ErrCancelled)
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Error("the fence does not close until the checksum comes")
	}
	if err := from.write(make([]byte, tailSize)); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
	from.close()
	to.close()
}
