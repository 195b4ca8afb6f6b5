package xfer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	objects "github.com/weft-fabric/weft/internal/store"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// store is an object store behind a proxy that can break its answers.
type store struct {
	place blob.Place
	real  bool

	mu    sync.Mutex
	broke int                                                      // answers that were broken
	wrong func(r *http.Request, w http.ResponseWriter) (done bool) // breaks an answer; nil for none
	body  func(r io.ReadCloser) io.ReadCloser                      // breaks the body of an answer
}

func openStore(t *testing.T) *store {
	t.Helper()
	s := &store{}
	behind, real := objects.Start(t)
	s.real = real
	u, err := url.Parse(behind)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { p.Out.URL.Scheme, p.Out.URL.Host = u.Scheme, u.Host }, // the host stays: it is signed
		ModifyResponse: func(r *http.Response) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.body != nil && r.Request.Method == http.MethodGet && r.StatusCode/100 == 2 && r.ContentLength > 1000 {
				r.Body = s.body(r.Body)
				s.broke++
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		ErrorLog:     nil,
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		wrong := s.wrong
		s.mu.Unlock()
		if wrong != nil && wrong(r, w) {
			return
		}
		defer func() { _ = recover() }() // a body that is cut ends the handler
		proxy.ServeHTTP(w, r)
	}))
	front.Config.ErrorLog = nil
	front.Start()
	t.Cleanup(front.Close)
	t.Setenv("AWS_ENDPOINT_URL", front.URL)
	if s.place, err = blob.Open("s3://" + objects.Bucket + "/x"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.place.Close)
	return s
}

// answer refuses requests with a status and a code of the protocol, n times.
func (s *store) answer(status int, code string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broke = 0
	s.wrong = func(r *http.Request, w http.ResponseWriter) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.broke >= n {
			return false
		}
		s.broke++
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>injected</Message></Error>`, code)
		return true
	}
}

func (s *store) well() {
	s.mu.Lock()
	s.wrong, s.body = nil, nil
	s.mu.Unlock()
}

// cutBody ends an answer's body early, slowBody takes its time.
type cutBody struct {
	io.ReadCloser
	left int
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.New("cut")
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

type slowBody struct{ io.ReadCloser }

func (c slowBody) Read(p []byte) (int, error) {
	time.Sleep(20 * time.Millisecond) // the slowness is the fault
	return c.ReadCloser.Read(p[:min(len(p), 512)])
}

// Stores that refuse for a while, answer slowly or too short, have the object already, or no longer know the token:
// right bytes or an error in time at both ends, never other bytes, never half an object.
func TestStoreFaults(t *testing.T) {
	s := openStore(t)
	paths := []string{"unix"}
	if s.real {
		paths = append(paths, "process", "tcp")
	}
	for _, path := range paths {
		ctx := limit(t)
		size := 300_000
		if s.real && path == "unix" {
			size = 33<<20 + 17 // in two parts
		}
		a, b := start(t, "a"+path, func(c *Config) { c.Path = path }), start(t, "b"+path, func(c *Config) { c.Path = path })
		mine := host(t, a, "mine", size, false, 1)
		n := 0
		object := func(create bool) (*Remote, *Peer, string) {
			n++
			name := path + strconv.Itoa(n)
			o, err := NewObject(s.place, name, int64(size), ObjectOptions{Create: create})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Register(name, o, 0); err != nil {
				t.Fatal(err)
			}
			p := meet(t, a, b)
			return remote(t, p, name), p, name
		}
		move := func(op Op, r *Remote, p *Peer, limit time.Duration) error {
			q, err := a.Post(Transfer{Op: op, Local: prepare(t, a, nil, mine.At(0, int64(size))), Remote: prepare(t, a, p, r.At(0, int64(size))),
				Notice: []byte("n"), Timeout: limit})
			if err != nil {
				t.Fatal(err)
			}
			err = q.Wait(ctx)
			got, nerr := b.NextNotice(ctx)
			if nerr != nil || (got.Err == nil) != (err == nil) {
				t.Errorf("%s: one end heard %v, the other %v, %v", op, err, got.Err, nerr)
			}
			return err
		}
		check := func(what string, err error, want error) {
			t.Helper()
			if want == nil && err != nil || want != nil && !errors.Is(err, want) {
				t.Errorf("%s, %s: %v, want %v", path, what, err, want)
			}
			var f *Failure
			if want != nil && (!errors.As(err, &f) || f.Who != "b"+path) {
				t.Errorf("%s, %s: %v; the store is b's", path, what, err)
			}
		}
		r, p, name := object(false)
		check("write", move(Write, r, p, 20*time.Second), nil)
		want := bytes.Clone(mine.Bytes())
		readBack := func(what string) {
			t.Helper()
			clear(mine.Bytes())
			check(what, move(Read, r, p, 20*time.Second), nil)
			if !bytes.Equal(mine.Bytes(), want) {
				t.Fatalf("%s, %s: wrong bytes", path, what)
			}
		}
		readBack("read")
		s.answer(500, "InternalError", 2)
		readBack("500 twice")
		s.answer(503, "SlowDown", 2)
		readBack("503 twice")
		s.well()
		s.mu.Lock()
		cuts := 0
		s.body = func(r io.ReadCloser) io.ReadCloser {
			if cuts++; cuts > 2 {
				return r
			}
			return &cutBody{r, 1000}
		}
		s.mu.Unlock()
		readBack("a body that ends early, twice")
		s.mu.Lock()
		s.body = func(r io.ReadCloser) io.ReadCloser { return &cutBody{r, 1000} }
		s.mu.Unlock()
		check("bodies that always end early", move(Read, r, p, 20*time.Second), ErrShort)
		s.mu.Lock()
		s.body = func(r io.ReadCloser) io.ReadCloser { return slowBody{r} }
		s.mu.Unlock()
		check("a slow body", move(Read, r, p, time.Second), ErrDeadline)
		s.well()
		s.answer(403, "ExpiredToken", 1<<30)
		check("a token that expired", move(Read, r, p, 20*time.Second), ErrStorage)
		s.answer(403, "RequestTimeTooSkewed", 1<<30)
		check("a clock that is wrong", move(Read, r, p, 20*time.Second), ErrStorage)
		s.answer(503, "SlowDown", 1<<30)
		check("503 for ever", move(Read, r, p, 1500*time.Millisecond), ErrDeadline)
		s.well()
		readBack("afterwards")

		// Two writers of one name: one uploads, the other is refused. The first one's bytes stay.
		r2, p2, name2 := object(true)
		check("create", move(Write, r2, p2, 20*time.Second), nil)
		noise(mine.Bytes(), 77)
		check("create again", move(Write, r2, p2, 20*time.Second), ErrExists)
		got := make([]byte, size)
		if err := s.place.Read(ctx, name2, got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the object was overwritten, or lost: %v", path, err)
		}
		// A write that fails leaves the old object, whole.
		s.answer(403, "AccessDenied", 1<<30)
		check("a write that is refused", move(Write, r, p, 20*time.Second), ErrStorage)
		s.well()
		if err := s.place.Read(ctx, name, got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: a failed write changed the object: %v", path, err)
		}
		if list, err := s.place.List(ctx, path); err != nil || len(list) != 2 {
			t.Errorf("%s: %v, %v", path, list, err)
		}
	}
}
