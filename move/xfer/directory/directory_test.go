package directory

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/xfer"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// Agents find one another through etcd; what an agent published goes with it.
func TestEtcd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.TickMs, cfg.ElectionMs = t.TempDir(), "fatal", 10, 100
	cfg.LogOutputs = []string{"/dev/null"}
	any := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = any, any
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case <-ctx.Done():
		t.Fatal("etcd does not start")
	}
	var c *clientv3.Client = v3client.New(e.Server)
	defer c.Close()

	start := func(name string, generation uint64) *xfer.Agent {
		a, err := xfer.New(xfer.Config{Name: name, Generation: generation})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		return a
	}
	add := func(a *xfer.Agent, name string) {
		if _, err := a.Register(name, xfer.Memory(make([]byte, 100)), 0); err != nil {
			t.Fatal(err)
		}
	}
	a, b := start("a", 0), start("b", 0)
	if _, err := Find(ctx, c, "/xfer", "b", a); !errors.Is(err, xfer.ErrAgent) {
		t.Errorf("one that published nothing: %v", err)
	}
	add(b, "theirs")
	entry, err := Publish(ctx, c, "/xfer", b)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Find(ctx, c, "/xfer", "b", a)
	if err != nil || p.ID() != b.ID() || len(p.Regions()) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	add(b, "more")
	if err := entry.Update(ctx); err != nil {
		t.Fatal(err)
	}
	if p, err = Find(ctx, c, "/xfer", "b", a); err != nil || len(p.Regions()) != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	// An earlier life cannot take its place.
	old := start("b", b.ID().Generation-1)
	if _, err := Publish(ctx, c, "/xfer", old); !errors.Is(err, xfer.ErrStale) {
		t.Errorf("an earlier life published itself: %v", err)
	}
	b.Close()
	bounded.Until(t, 20*time.Second, "nothing of a closed agent is published", func() bool {
		_, err := Find(ctx, c, "/xfer", "b", a)
		return errors.Is(err, xfer.ErrAgent)
	})
}
