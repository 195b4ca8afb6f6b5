// Package directory keeps in etcd which cache has which block. Caches that share it need not be told of one another.
//
//	PREFIX/caches/NAME        where a cache is found, as JSON
//	PREFIX/blocks/NAME/HASH   it has this block
//
// Both go with the cache's etcd lease: those of a cache that ended without a word go ten seconds later. What came and went is put in
// transactions, so that the cache does not wait for etcd; a cache that is too far behind puts everything anew. An entry may be
// old: that costs a miss, as every block is checked when it is read.
//
// The alternative is gossip (kvcache.Cache.Follow), which needs no etcd; docs/reference/tables/kv.md has both measured.
package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/run/retry"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	ttl   = 10 // seconds that the entries of a cache stay which ended without a word
	batch = 128
	pause = 200 * time.Millisecond // before etcd is tried again
)

// Entry is how the others find a cache.
type Entry struct {
	Address string `json:"address"` // HOST:PORT of its HTTP
	Moves   bool   `json:"moves"`   // it makes transfers
}

// Directory is a cache's part in the directory.
type Directory struct {
	etcd   *clientv3.Client
	prefix string
	name   string
	token  string // that caches show one another
	cache  *kvcache.Cache
	entry  Entry
	log    *slog.Logger
	end    context.CancelFunc
	wg     sync.WaitGroup
	others map[string]*kvcache.Told // by name
}

// ErrName means that another cache has the name.
var ErrName = errors.New("another cache of this name is in the directory")

// Join publishes what a cache has, and tells it what the others have, until Close.
func Join(ctx context.Context, etcd *clientv3.Client, prefix, name, address, token string, cache *kvcache.Cache,
	log *slog.Logger) (*Directory, error) {
	if name == "" {
		return nil, errors.New("a cache in a directory needs a name")
	}
	life, end := context.WithCancel(context.Background())
	d := &Directory{etcd: etcd, prefix: strings.TrimSuffix(prefix, "/"), name: url.PathEscape(name), token: token, cache: cache,
		entry: Entry{address, cache.Moves()},
		log:   log, end: end, others: map[string]*kvcache.Told{}}
	lease, alive, err := d.enter(ctx, life)
	if err == nil {
		var from int64
		if from, err = d.load(ctx); err == nil {
			d.wg.Go(func() { d.publish(life, lease, alive) })
			d.wg.Go(func() { d.follow(life, from) })
			return d, nil
		}
		d.leave(lease)
	}
	end()
	return nil, fmt.Errorf("directory in etcd: %w", err)
}

// Close takes the cache out of the directory. Call it before the cache is closed.
func (d *Directory) Close() {
	d.end()
	d.wg.Wait()
	for _, t := range d.others {
		t.Close()
	}
}

func (d *Directory) own() string { return d.prefix + "/blocks/" + d.name + "/" }

// claim puts the entry where there is none, or the same: one of an earlier life. That of another cache of this name is ErrName.
func (d *Directory) claim(ctx context.Context, key, text string, lease clientv3.LeaseID) error {
	var r *clientv3.TxnResponse
	for _, is := range []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
		clientv3.Compare(clientv3.Value(key), "=", text)} {
		var err error
		r, err = d.etcd.Txn(ctx).If(is).Then(clientv3.OpDelete(d.own(), clientv3.WithPrefix()),
			clientv3.OpPut(key, text, clientv3.WithLease(lease))).
			Else(clientv3.OpGet(key)).Commit()
		if err != nil || r.Succeeded {
			return err
		}
	}
	var other Entry
	if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		_ = json.Unmarshal(kvs[0].Value, &other)
	}
	return fmt.Errorf("%w: %s, at %s; give each cache a name of its own, or wait %d s for one that died", ErrName, d.name, other.Address, ttl)
}

// enter puts the cache's entry under a new lease, and takes away the blocks of an earlier life.
func (d *Directory) enter(ctx, life context.Context) (clientv3.LeaseID, <-chan *clientv3.LeaseKeepAliveResponse, error) {
	l, err := d.etcd.Grant(ctx, ttl)
	if err != nil {
		return 0, nil, err
	}
	text, err := json.Marshal(d.entry)
	if err != nil {
		return 0, nil, err
	}
	key := d.prefix + "/caches/" + d.name
	err = d.claim(ctx, key, string(text), l.ID)
	var alive <-chan *clientv3.LeaseKeepAliveResponse
	if err == nil {
		alive, err = d.etcd.KeepAlive(life, l.ID)
	}
	if err != nil {
		d.leave(l.ID)
		return 0, nil, err
	}
	return l.ID, alive, nil
}

func (d *Directory) leave(lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = d.etcd.Revoke(ctx, lease) // else it goes with its time
}

// publish puts what comes and goes into etcd. A lease that was lost, as etcd was away, is followed by a new one and everything anew.
func (d *Directory) publish(life context.Context, lease clientv3.LeaseID, alive <-chan *clientv3.LeaseKeepAliveResponse) {
	for life.Err() == nil {
		err := d.put(life, lease, alive)
		d.leave(lease)
		for life.Err() == nil {
			d.log.Warn("the directory in etcd is made anew", "why", err)
			if pauses := retry.Pause(pause, pause); pauses.Wait(life) != nil {
				return
			}
			if lease, alive, err = d.enter(life, life); err == nil {
				break
			}
		}
	}
}

// entries are changes as one transaction, up to the first key that comes again: a transaction puts a key once.
func (d *Directory) entries(list []kvcache.Change, lease clientv3.LeaseID) (ops []clientv3.Op) {
	seen := map[kv.Hash]bool{}
	for _, x := range list {
		if seen[x.Key] {
			break
		}
		seen[x.Key] = true
		if x.Here {
			ops = append(ops, clientv3.OpPut(d.own()+x.Key.String(), "", clientv3.WithLease(lease)))
		} else {
			ops = append(ops, clientv3.OpDelete(d.own()+x.Key.String()))
		}
	}
	return ops
}

// put goes on until the lease is lost.
func (d *Directory) put(life context.Context, lease clientv3.LeaseID, alive <-chan *clientv3.LeaseKeepAliveResponse) error {
	ctx, cancel := context.WithCancelCause(life)
	defer cancel(nil)
	go func() {
		for range alive {
		}
		cancel(errors.New("the lease is lost"))
	}()
	for since := uint64(kvcache.Everything); ; {
		n := d.cache.News(since)
		list := n.Changes
		if n.Whole && since != kvcache.Everything {
			if _, err := d.etcd.Delete(ctx, d.own(), clientv3.WithPrefix()); err != nil {
				return err
			}
		}
		for len(list) > 0 {
			ops := d.entries(list[:min(batch, len(list))], lease)
			if _, err := d.etcd.Txn(ctx).Then(ops...).Commit(); err != nil {
				return err
			}
			list = list[len(ops):]
		}
		since = n.Next
		select {
		case <-n.More:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// load reads all of the directory, and gives the revision to go on from.
func (d *Directory) load(ctx context.Context) (int64, error) {
	r, err := d.etcd.Get(ctx, d.prefix+"/", clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	for name, t := range d.others {
		t.Close()
		delete(d.others, name)
	}
	for _, kind := range []string{"/caches/", "/blocks/"} {
		for _, x := range r.Kvs {
			if key := string(x.Key); strings.HasPrefix(key, d.prefix+kind) {
				d.take(key, x.Value, true)
			}
		}
	}
	return r.Header.Revision + 1, nil
}

// follow hears what changes. If etcd has forgotten what was missed, everything is read anew.
func (d *Directory) follow(life context.Context, from int64) {
	for life.Err() == nil {
		watch := d.etcd.Watch(life, d.prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(from))
		for r := range watch {
			if r.Err() != nil {
				break
			}
			from = r.Header.Revision + 1
			for _, e := range r.Events {
				d.take(string(e.Kv.Key), e.Kv.Value, e.Type == clientv3.EventTypePut)
			}
		}
		for life.Err() == nil {
			if pauses := retry.Pause(pause, pause); pauses.Wait(life) != nil {
				return
			}
			next, err := d.load(life)
			if err == nil {
				from = next
				break
			}
			d.log.Warn("the directory in etcd cannot be read", "why", err)
		}
	}
}

// takeCache notes a cache that is there, or no more. Its own name is passed over.
func (d *Directory) takeCache(key string, value []byte, there bool) {
	if key == d.name {
		return
	}
	if t := d.others[key]; t != nil { // gone, or another life of it
		t.Close()
		delete(d.others, key)
	}
	var e Entry
	if there && json.Unmarshal(value, &e) == nil && e.Address != "" {
		name, err := url.PathUnescape(key)
		if err != nil {
			name = key
		}
		d.others[key] = d.cache.Tell(name, e.Address, d.token, e.Moves)
	}
}

// take notes a key that is there, or no more.
func (d *Directory) take(key string, value []byte, there bool) {
	if rest, ok := strings.CutPrefix(key, d.prefix+"/caches/"); ok {
		d.takeCache(rest, value, there)
		return
	}
	rest, ok := strings.CutPrefix(key, d.prefix+"/blocks/")
	name, block, _ := strings.Cut(rest, "/")
	t := d.others[name]
	if !ok || t == nil {
		return
	}
	if h, err := kv.ParseHash(block); err == nil {
		t.Has(h, there, len(key))
	}
}
