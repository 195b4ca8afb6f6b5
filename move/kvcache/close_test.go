package kvcache

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// A cache that is closed while somebody reads a block keeps its memory until then. Calls that come later are refused.
func TestCloseWaitsForReaders(t *testing.T) {
	ctx := limit(t)
	agent, err := xfer.New(xfer.Config{Name: "close"})
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	c := small(t, func(o *Options) { o.Agent = agent })
	want := content("default", hash(1, 0))
	if err := put(c, "default", path(1, 1), want); err != nil {
		t.Fatal(err)
	}
	closed, reading, sum := make(chan struct{}), make(chan struct{}), make(chan int)
	go func() {
		_, _, err := c.Get(ctx, "default", Path{Keys: path(1, 1)}, 0, func(data []byte) error {
			close(reading)
			for !c.closing() {
				time.Sleep(time.Millisecond) // until Close has begun
			}
			select {
			case <-closed:
				return errors.New("the cache is closed under its reader")
			default:
			}
			n := 0
			for _, b := range data {
				n += int(b)
			}
			sum <- n
			return nil
		})
		if err != nil {
			t.Error(err)
			close(sum)
		}
	}()
	<-reading
	go func() {
		c.Close()
		close(closed)
	}()
	n := 0
	for _, b := range want {
		n += int(b)
	}
	if got := <-sum; got != n {
		t.Errorf("the bytes add up to %d, want %d", got, n)
	}
	<-closed
	if _, err := c.Match(ctx, "default", Path{Keys: path(1, 1)}); !errors.Is(err, ErrClosed) {
		t.Errorf("a lookup after the end: %v", err)
	}
	if _, err := c.Put("default", Path{Keys: path(1, 1)}, 0, want); !errors.Is(err, ErrClosed) {
		t.Errorf("a put after the end: %v", err)
	}
}

func (c *Cache) closing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// stuck is a store that never answers a write.
type stuck struct {
	blob.Place
	in chan struct{}
}

func (s stuck) Put(ctx context.Context, _ string, _ blob.Body) error {
	close(s.in)
	<-ctx.Done()
	return ctx.Err()
}

// A store that does not answer does not hold the end of a cache up.
func TestCloseDoesNotWaitForTheStore(t *testing.T) {
	s := stuck{blob.NewDir(t.TempDir()), make(chan struct{})}
	c := small(t, func(o *Options) { o.Store = s })
	for i := range 4 {
		if _, err := c.Put("default", Path{Keys: path(1, 4)}, i, content("default", hash(1, i))); err != nil {
			t.Fatal(err)
		}
	}
	<-s.in
	c.Close()
}

// A store or a peer that fails is asked once, not for every block of a request.
func TestWhatFailsIsLeftAlone(t *testing.T) {
	ctx := limit(t)
	store := &bare{Place: blob.NewDir(t.TempDir()), t: t, fail: errors.New("no route")}
	var asked atomic.Int64
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer peer.Close()
	c := small(t, func(o *Options) { o.Store = store })
	told := c.Tell("b", peer.Listener.Addr().String(), "", false)
	for i := range 50 {
		told.Has(c.tenants["default"].name(hash(1, i)), true, 0)
	}
	for i := range 50 {
		if _, ok, err := c.Get(ctx, "default", Path{Keys: []kv.Hash{hash(1, i)}, Alone: true}, 0, func([]byte) error { return nil }); ok ||
			err != nil {
			t.Fatal(ok, err)
		}
	}
	if store.reads > 5 || asked.Load() > 5 { // a few more on a machine that takes seconds for this
		t.Errorf("the store was asked %d times, the peer %d times", store.reads, asked.Load())
	}
}
