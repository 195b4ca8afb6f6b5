package directory

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

// startEtcd starts a real etcd of one member.
func startEtcd(t testing.TB) func() *clientv3.Client {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.TickMs, cfg.ElectionMs = t.TempDir(), "fatal", 10, 100
	cfg.LogOutputs = []string{"/dev/null"}
	any := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = any, any
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatal("etcd does not start")
	}
	return func() *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Clients[0].Addr().String()}, DialTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

type member struct {
	*kvcache.Cache
	*Directory
	at string
}

func join(t testing.TB, etcd *clientv3.Client, name string, memory int64) member {
	t.Helper()
	c, err := kvcache.New(kvcache.Options{Name: name, Block: 64, Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	s := httptest.NewServer(kvcache.NewServer(c, "caches", "").Handler())
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	at := s.Listener.Addr().String()
	d, err := Join(ctx, etcd, "/kv", name, at, "caches", c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return member{c, d, at}
}

func key(i int) (h kv.Hash) {
	binary.BigEndian.PutUint64(h[:], uint64(i+1)*0x9e3779b97f4a7c15)
	return h
}

func put(t testing.TB, c *kvcache.Cache, i int) {
	t.Helper()
	if _, err := c.Put("default", kvcache.Path{Keys: []kv.Hash{key(i)}}, 0, fmt.Appendf(nil, "block %d", i)); err != nil {
		t.Fatal(err)
	}
}

func fetch(ctx context.Context, c *kvcache.Cache, k kv.Hash) (out []byte, where kvcache.Where, err error) {
	where, _, err = c.Get(ctx, "default", kvcache.Path{Keys: []kv.Hash{k}}, 0, func(b []byte) error {
		out = bytes.Clone(b)
		return nil
	})
	return out, where, err
}

// peerBlocks is how many blocks a cache believes another to have; -1 if it does not know it.
func (m member) peerBlocks(name string) int {
	for _, p := range m.Stat().Peers {
		if p.Name == name {
			return p.Blocks
		}
	}
	return -1
}

// Caches find one another and their blocks through a real etcd. What was evicted, and a cache that ended, goes.
func TestDirectory(t *testing.T) {
	dial := startEtcd(t)
	a := join(t, dial(), "a/1", 64*4)
	put(t, a.Cache, 1)
	put(t, a.Cache, 2)
	b := join(t, dial(), "b", 64*100)
	bounded.Until(t, 20*time.Second, "b to know what a had before it came", func() bool { return b.peerBlocks("a/1") == 2 })
	got, where, err := fetch(t.Context(), b.Cache, key(2))
	if err != nil || where != kvcache.AtPeer || !bytes.Equal(got, []byte("block 2")) {
		t.Fatalf("%q at %q, %v", got, where, err)
	}
	bounded.Until(t, 20*time.Second, "a to know what b has now", func() bool { return a.peerBlocks("b") == 1 })
	for i := 3; i < 300; i++ { // more than a has room for
		put(t, a.Cache, i)
	}
	bounded.Until(t, 20*time.Second, "the last block to be known", func() bool {
		got, where, err = fetch(t.Context(), b.Cache, key(299))
		return where == kvcache.AtPeer
	})
	if err != nil || !bytes.Equal(got, []byte("block 299")) {
		t.Errorf("%q, %v", got, err)
	}
	bounded.Until(t, 20*time.Second, "evictions to be known", func() bool { return b.peerBlocks("a/1") == 4 })

	// A second cache of the name is refused, and does no harm.
	other, err := kvcache.New(kvcache.Options{Name: "b", Block: 64, Memory: 6400})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := Join(t.Context(), dial(), "/kv", "b", "127.0.0.1:1", "caches", other, slog.New(slog.DiscardHandler)); !errors.Is(err,
		ErrName) {
		t.Errorf("a second cache of one name: %v", err)
	}
	if a.peerBlocks("b") < 1 {
		t.Error("b is gone after another wanted its name")
	}

	// A lease that was lost is made anew, with everything.
	r, err := a.etcd.Get(t.Context(), "/kv/caches/a%2F1")
	if err != nil || len(r.Kvs) != 1 {
		t.Fatal(r, err)
	}
	if _, err := b.etcd.Revoke(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	bounded.Until(t, 20*time.Second, "a to leave", func() bool { return b.peerBlocks("a/1") != 4 })
	bounded.Until(t, 20*time.Second, "a to come back", func() bool { return b.peerBlocks("a/1") == 4 })

	a.Directory.Close()
	bounded.Until(t, 20*time.Second, "a to be gone", func() bool { return b.peerBlocks("a/1") == -1 })
}

// BenchmarkDirectory is how long it takes until another cache knows of a block: one at a time, and a thousand at once. The same by gossip:
// go test ./move/kvcache -bench Directory.
func BenchmarkDirectory(b *testing.B) {
	dial := startEtcd(b)
	last := 0
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, y := join(b, dial(), fmt.Sprint("x", n), 64<<20), join(b, dial(), fmt.Sprint("y", n), 64<<20)
			bounded.Until(b, 20*time.Second, "y to know x", func() bool { return y.peerBlocks(fmt.Sprint("x", n)) == 0 })
			b.ResetTimer()
			for done := 0; done < b.N; {
				k := min(n, b.N-done)
				for range k {
					last++
					put(b, x.Cache, last)
				}
				done += k
				bounded.Until(b, 20*time.Second, "blocks to be known", func() bool { return y.peerBlocks(fmt.Sprint("x", n)) >= done })
			}
			b.ReportMetric(float64(y.Stat().Peers[0].Bytes)/float64(b.N), "bytes/block")
			b.StopTimer()
			x.Directory.Close()
			y.Directory.Close()
		})
	}
}
