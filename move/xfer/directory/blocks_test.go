package directory

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/url"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

// BenchmarkBlocks keeps who has which block in a real etcd of one member, over its socket: what kvcache's gossip does by pulling journals
// (go test ./move/kvcache -bench Directory). An operation is one block that another client hears of, by a watch, one at a time and 128 in a
// transaction.
func BenchmarkBlocks(b *testing.B) {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = b.TempDir(), "fatal"
	cfg.LogOutputs = []string{"/dev/null"}
	any := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = any, any
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	select {
	case <-e.Server.ReadyNotify():
	case <-ctx.Done():
		b.Fatal("etcd does not start")
	}
	dial := func() *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Clients[0].Addr().String()}, DialTimeout: 10 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		return c
	}
	c, other := dial(), dial()
	name := func(i int) string {
		var h [32]byte
		binary.BigEndian.PutUint64(h[:], uint64(i)*0x9e3779b97f4a7c15)
		return "/blocks/" + hex.EncodeToString(h[:])
	}
	last := 0
	for _, batch := range []int{1, 128} {
		b.Run(fmt.Sprintf("%d", batch), func(b *testing.B) {
			watch := other.Watch(ctx, "/blocks/", clientv3.WithPrefix())
			b.ResetTimer()
			for done := 0; done < b.N; {
				n := min(batch, b.N-done)
				ops := make([]clientv3.Op, n)
				for k := range ops {
					last++
					ops[k] = clientv3.OpPut(name(last), "a")
				}
				if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
					b.Fatal(err)
				}
				for heard := 0; heard < n; {
					r := <-watch
					if r.Err() != nil || len(r.Events) == 0 {
						b.Fatal(r.Err())
					}
					heard += len(r.Events)
				}
				done += n
			}
		})
	}
	b.Run("get", func(b *testing.B) {
		for i := range b.N {
			if _, err := other.Get(ctx, name(1+i%last)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
