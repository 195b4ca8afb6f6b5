package xfer

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// directoryTTL is how long the description of an agent that ended without a word stays in etcd.
const directoryTTL = 10 * time.Second

// Publish puts the agent's description, as Describe gives it, into etcd under prefix and its name, until the agent
// closes or its process ends. It takes the place of an earlier life's, never of a later one's. Call it again after
// regions came or went.
func (a *Agent) Publish(ctx context.Context, etcd *clientv3.Client, prefix string, regions ...*Region) error {
	a.mu.Lock()
	lease := a.etcdLease
	a.mu.Unlock()
	if lease == 0 {
		l, err := etcd.Grant(ctx, int64(directoryTTL/time.Second))
		if err != nil {
			return fmt.Errorf("agent %s: publish: %w", a.id.Name, err)
		}
		alive, err := etcd.KeepAlive(a.base, l.ID)
		if err != nil {
			return fmt.Errorf("agent %s: publish: %w", a.id.Name, err)
		}
		a.wg.Go(func() {
			for range alive {
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, _ = etcd.Revoke(ctx, l.ID) // else it goes with its time
		})
		lease = l.ID
		a.mu.Lock()
		a.etcdLease = lease
		a.mu.Unlock()
	}
	key := prefix + "/" + a.id.Name
	generation := fmt.Sprintf("%016x", a.id.Generation)
	// The generation lies beside the description, so that the two are compared and put at once.
	r, err := etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(key+"/generation"), ">", generation)).
		Else(clientv3.OpPut(key+"/generation", generation, clientv3.WithLease(lease)), clientv3.OpPut(key, string(a.Describe(regions...)), clientv3.WithLease(lease))).
		Commit()
	if err != nil {
		return fmt.Errorf("agent %s: publish: %w", a.id.Name, err)
	}
	if r.Succeeded {
		return fmt.Errorf("agent %s: publish: %w: a later one is there", a.id.Name, ErrStale)
	}
	return nil
}

// Find opens the agent that published itself under a name; ErrAgent if there is none.
func (a *Agent) Find(ctx context.Context, etcd *clientv3.Client, prefix, name string) (*Peer, error) {
	r, err := etcd.Get(ctx, prefix+"/"+name)
	if err != nil {
		return nil, fmt.Errorf("find agent %s: %w", name, err)
	}
	if len(r.Kvs) == 0 {
		return nil, fmt.Errorf("find agent %s: %w: nothing is published under %s/%s", name, ErrAgent, prefix, name)
	}
	return a.Open(r.Kvs[0].Value)
}
