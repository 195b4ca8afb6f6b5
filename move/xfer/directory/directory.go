// Package directory keeps descriptions of agents in etcd, for as long as the agents live.
//
//	PREFIX/NAME              what Describe gave
//	PREFIX/NAME/generation   which life of the name that is
//
// Both go with their etcd lease: that of an agent which ended without a word goes ten seconds later. Programs that need no
// etcd do not link its client: package xfer does not import this one.
package directory

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/move/xfer"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ttl is how long the description of an agent that ended without a word stays.
const ttl = 10 * time.Second

// Entry is an agent that is published.
type Entry struct {
	agent *xfer.Agent
	etcd  *clientv3.Client
	key   string
	lease clientv3.LeaseID
	over  chan struct{}
	end   context.CancelFunc
}

// Publish puts an agent's description, as Describe gives it, into etcd under prefix and its name, until the agent or the
// entry closes or the process ends. It takes the place of an earlier life's, never of a later one's that is there (ErrStale).
func Publish(ctx context.Context, etcd *clientv3.Client, prefix string, a *xfer.Agent, regions ...*xfer.Region) (*Entry, error) {
	name := a.ID().Name
	l, err := etcd.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return nil, fmt.Errorf("agent %s: publish: %w", name, err)
	}
	life, end := context.WithCancel(context.Background())
	e := &Entry{agent: a, etcd: etcd, key: prefix + "/" + name, lease: l.ID, over: make(chan struct{}), end: end}
	alive, err := etcd.KeepAlive(life, l.ID)
	if err != nil {
		end()
		return nil, fmt.Errorf("agent %s: publish: %w", name, err)
	}
	go func() {
		defer close(e.over)
		for open := true; open; {
			select {
			case _, open = <-alive:
			case <-a.Done():
				open = false
			}
		}
		end()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = etcd.Revoke(ctx, l.ID) // else it goes with its time
	}()
	if err := e.Update(ctx, regions...); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Update publishes the agent once more, after regions came or went.
func (e *Entry) Update(ctx context.Context, regions ...*xfer.Region) error {
	id := e.agent.ID()
	generation := fmt.Sprintf("%016x", id.Generation)
	// The generation lies beside the description, so that the two are compared and put at once.
	r, err := e.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(e.key+"/generation"), ">", generation)).
		Else(clientv3.OpPut(e.key+"/generation", generation, clientv3.WithLease(e.lease)),
			clientv3.OpPut(e.key, string(e.agent.Describe(regions...)), clientv3.WithLease(e.lease))).
		Commit()
	if err != nil {
		return fmt.Errorf("agent %s: publish: %w", id.Name, err)
	}
	if r.Succeeded {
		return fmt.Errorf("agent %s: publish: %w: a later one is there; if that has ended, what it published goes within %s",
			id.Name, xfer.ErrStale, ttl)
	}
	return nil
}

// Close takes the description back.
func (e *Entry) Close() {
	e.end()
	<-e.over
}

// Find opens the agent that published itself under a name; ErrAgent if there is none.
func Find(ctx context.Context, etcd *clientv3.Client, prefix, name string, a *xfer.Agent) (*xfer.Peer, error) {
	r, err := etcd.Get(ctx, prefix+"/"+name)
	if err != nil {
		return nil, fmt.Errorf("find agent %s: %w", name, err)
	}
	if len(r.Kvs) == 0 {
		return nil, fmt.Errorf("find agent %s: %w: nothing is published under %s/%s", name, xfer.ErrAgent, prefix, name)
	}
	return a.Open(r.Kvs[0].Value)
}
