package xfer

import (
	"errors"
	"net/url"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// Agents find one another through etcd; what an agent published goes with it.
func TestEtcd(t *testing.T) {
	ctx := limit(t)
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

	a, b := start(t, "a", nil), start(t, "b", nil)
	if _, err := a.Find(ctx, c, "/xfer", "b"); !errors.Is(err, ErrAgent) {
		t.Errorf("one that published nothing: %v", err)
	}
	host(t, b, "theirs", 100, false, 1)
	if err := b.Publish(ctx, c, "/xfer"); err != nil {
		t.Fatal(err)
	}
	p, err := a.Find(ctx, c, "/xfer", "b")
	if err != nil || p.ID() != b.ID() || len(p.Regions()) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	host(t, b, "more", 100, false, 1)
	if err := b.Publish(ctx, c, "/xfer"); err != nil {
		t.Fatal(err)
	}
	if p, err = a.Find(ctx, c, "/xfer", "b"); err != nil || len(p.Regions()) != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	// An earlier life cannot take its place.
	old := start(t, "b", func(c *Config) { c.Generation = b.ID().Generation - 1 })
	if err := old.Publish(ctx, c, "/xfer"); !errors.Is(err, ErrStale) {
		t.Errorf("an earlier life published itself: %v", err)
	}
	b.Close()
	for {
		if _, err := a.Find(ctx, c, "/xfer", "b"); errors.Is(err, ErrAgent) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("what a closed agent published stays")
		}
		time.Sleep(10 * time.Millisecond) // between looks
	}
}
