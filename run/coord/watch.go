package coord

import (
	"context"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// change is news of one key, without its prefix. A nil value says that it is gone.
type change struct {
	key   string
	value []byte
}

// there tells a value of no bytes from none.
func there(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// follow tells what is under a prefix, then what changes, until the context ends
// or tell says false. It does so through restarts of the store, after which what
// differs from the last word is told; a key may be told twice, a change that
// another followed in the meantime not at all, and what came in one revision is
// told in one call. It returns nil if tell ended it.
func (c *Client) follow(ctx context.Context, prefix string, tell func([]change) bool) error {
	return c.followFrom(ctx, prefix, "", tell)
}

// followFrom does so for the keys from one on.
func (c *Client) followFrom(ctx context.Context, prefix, from string, tell func([]change) bool) error {
	ctx, cancel := c.bind(ctx)
	defer cancel()
	full := c.prefix + prefix
	end := clientv3.WithRange(clientv3.GetPrefixRangeEnd(full))
	known := map[string]int64{} // by key: the revision of the value told last
	for {
		var got *clientv3.GetResponse
		err := c.do(ctx, func(ctx context.Context) (err error) {
			got, err = c.etcd.Get(ctx, full+from, end)
			return err
		})
		if err != nil {
			return err
		}
		var news []change
		here := make(map[string]bool, len(got.Kvs))
		for _, kv := range got.Kvs { // in the order of keys
			k := strings.TrimPrefix(string(kv.Key), full)
			here[k] = true
			if known[k] != kv.ModRevision {
				known[k] = kv.ModRevision
				news = append(news, change{k, there(kv.Value)})
			}
		}
		for _, k := range sortedKeys(known) {
			if !here[k] {
				delete(known, k)
				news = append(news, change{k, nil})
			}
		}
		if !tell(news) {
			return nil
		}
		// A server without a leader would stay silent; it ends the watch instead.
		watch, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
		for answer := range c.etcd.Watch(watch, full+from, end, clientv3.WithRev(got.Header.Revision+1)) {
			if answer.Err() != nil {
				break // compacted, no leader, or another server: begin with what is there
			}
			news = nil
			for _, e := range answer.Events {
				k := strings.TrimPrefix(string(e.Kv.Key), full)
				if e.Type == mvccpb.Event_DELETE {
					delete(known, k)
					news = append(news, change{k, nil})
					continue
				}
				known[k] = e.Kv.ModRevision
				news = append(news, change{k, there(e.Kv.Value)})
			}
			if len(news) > 0 && !tell(news) {
				stop()
				return nil
			}
		}
		stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause(ctx, again)
	}
}
