package kvcache

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/store"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// Packs in an object store by its protocol: two caches write a pack once, a third that is empty reads it.
func TestObjectStore(t *testing.T) {
	ctx := limit(t)
	endpoint, _ := store.Start(t)
	t.Setenv("AWS_ENDPOINT_URL", endpoint)
	with := func(o *Options) {
		place, err := blob.Open("s3://weft/kv")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(place.Close)
		o.Store = place
	}
	all := path(1, 8)
	var written, there int64
	for range 2 {
		c := small(t, with)
		for i := range all {
			if _, err := c.Put("default", Path{Keys: all}, i, content("default", all[i])); err != nil {
				t.Fatal(err)
			}
		}
		if !bounded.Holds(20*time.Second, func() bool { return c.Stat().Counters.Packed+c.Stat().Counters.Raced >= 2 }) {
			t.Fatalf("the packs were not written: %+v", c.Stat().Counters)
		}
		written += c.Stat().Counters.Packed
		there += c.Stat().Counters.Raced
	}
	if written != 2 || there != 2 {
		t.Errorf("%d packs written, %d were there; want 2 and 2", written, there)
	}
	c := small(t, with)
	if w, err := c.Match(ctx, "default", Path{Keys: all}); err != nil || len(w) != 8 || w[7] != InStore {
		t.Fatal(w, err)
	}
	for i := range all {
		var got []byte
		w, ok, err := c.Get(ctx, "default", Path{Keys: all}, i, func(b []byte) error { got = bytes.Clone(b); return nil })
		if err != nil || !ok || w != InStore || !bytes.Equal(got, content("default", all[i])) {
			t.Errorf("block %d: %v %t %v", i, w, ok, err)
		}
	}
}

// broken stands before a store and spoils answers to reads or writes.
type broken struct {
	http.Handler
	mu   sync.Mutex
	how  string
	hurt int // answers that were spoiled
}

// set says how answers are spoiled from now on, and gives how many were.
func (b *broken) set(how string) (hurt int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hurt = b.hurt
	b.how, b.hurt = how, 0
	return hurt
}

func (b *broken) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	how := b.how
	if how != "" {
		b.hurt++
	}
	b.mu.Unlock()
	refuse := func(code int, word string) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(code)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", word, word)
	}
	switch how {
	case "500":
		refuse(500, "InternalError")
	case "503":
		refuse(503, "SlowDown")
	case "412":
		refuse(412, "PreconditionFailed")
	case "expired":
		refuse(400, "ExpiredToken")
	case "silent":
		<-r.Context().Done()
	case "slow", "short", "flipped":
		rec := httptest.NewRecorder()
		b.Handler.ServeHTTP(rec, r)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		body := rec.Body.Bytes()
		if how == "flipped" && len(body) > 0 {
			body[len(body)/2] ^= 1
		}
		if how != "flipped" {
			body = body[:len(body)/2]
		}
		_, _ = w.Write(body)
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		switch how {
		case "slow":
			<-r.Context().Done()
		case "short":
			panic(http.ErrAbortHandler) // the connection breaks
		}
	default:
		b.Handler.ServeHTTP(w, r)
	}
}

// Whatever a store answers, a cache gives the right bytes or none, in time, and has the blocks again when the store is well.
func TestObjectStoreFaults(t *testing.T) {
	ctx := limit(t)
	endpoint, _ := store.Start(t)
	behind, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {}
	front := &broken{Handler: proxy} // the host of requests stays: it is signed
	server := httptest.NewServer(front)
	defer server.Close()
	defer server.CloseClientConnections()
	t.Setenv("AWS_ENDPOINT_URL", server.URL)
	open := func() *Cache {
		place, err := blob.Open("s3://weft/kv")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(place.Close)
		c := small(t, func(o *Options) { o.Store = place })
		c.packs.rest = time.Nanosecond
		return c
	}
	// A store that is well has all the time that a busy machine takes.
	limits := func(c *Cache, d time.Duration) { c.packs.look, c.packs.long = d, d }
	const little, much = 100 * time.Millisecond, 25 * time.Second
	all := path(1, 4) // one pack
	fill := func(c *Cache) {
		for i := range all {
			if _, err := c.Put("default", Path{Keys: all}, i, content("default", all[i])); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(c *Cache, i int) bool {
		var got []byte
		_, ok, err := c.Get(ctx, "default", Path{Keys: all}, i, func(b []byte) error { got = bytes.Clone(b); return nil })
		if err != nil || ok && !bytes.Equal(got, content("default", all[i])) {
			t.Errorf("block %d: found %t, %d bytes, %v", i, ok, len(got), err)
		}
		return ok
	}
	// A pack that another has written meanwhile is there; one that cannot be written is counted, and the blocks stay in memory.
	for how, count := range map[string]func(Counters) int64{"412": func(n Counters) int64 { return n.Raced },
		"expired": func(n Counters) int64 { return n.Failed }} {
		c := open()
		front.set(how)
		fill(c)
		if !bounded.Holds(20*time.Second, func() bool { return count(c.Stat().Counters) > 0 }) {
			t.Fatalf("%s: %+v", how, c.Stat().Counters)
		}
		if !read(c, 0) {
			t.Errorf("%s: a block left memory", how)
		}
	}
	front.set("")
	c := open()
	fill(c)
	if !bounded.Holds(20*time.Second, func() bool { return c.Stat().Counters.Packed > 0 }) {
		t.Fatalf("the pack was not written: %+v", c.Stat().Counters)
	}
	hurt := 0
	for _, how := range []string{"500", "503", "expired", "silent", "slow", "short", "flipped"} {
		c := open() // its memory is empty
		limits(c, little)
		front.set(how)
		if read(c, 1) {
			t.Errorf("%s: a block came", how)
		}
		hurt += front.set("")
		if n := c.Stat().Counters; n.Failed+n.Damaged == 0 || n.Missed != 1 {
			t.Errorf("%s: counted %+v", how, n)
		}
		// The head comes, its blocks do not.
		limits(c, much)
		if _, err := c.Match(ctx, "default", Path{Keys: all}); err != nil {
			t.Error(err)
		}
		limits(c, little)
		front.set(how)
		if read(c, 2) {
			t.Errorf("%s: a block came behind its head", how)
		}
		front.set("")
		limits(c, much)
		if !read(c, 3) || !read(c, 1) {
			t.Errorf("%s: the store is well, and its blocks are not there: %+v", how, c.Stat().Counters)
		}
	}
	if hurt == 0 {
		t.Error("no answer was spoiled")
	}
}
