package coord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// lead is the right to decide, as long as a lease.
type lead struct {
	c      *Client
	lease  clientv3.LeaseID
	cond   clientv3.Cmp    // holds in the store while this process leads
	ctx    context.Context // ends when the lead is known to be lost
	cancel context.CancelFunc
	done   chan struct{}
}

// holder is who leads.
type holder struct {
	Name string `json:"name"`
	Life Life   `json:"life"`
}

// leaderTerm is the term of the leader's lease, which is a second however long those
// of workers are: there is one leader, and nobody decides while its lease runs on
// without it.
func (c *Client) leaderTerm() time.Duration {
	if c.cfg.TTL > OneHost {
		return TTL
	}
	return c.cfg.TTL
}

// campaign waits for the lead.
func (c *Client) campaign(ctx context.Context, name string) (*lead, error) {
	key := c.prefix + "decider"
	me := holder{name, newLife()}
	value, err := json.Marshal(me)
	if err != nil {
		return nil, err
	}
	for {
		lease, err := c.grant(ctx, c.leaderTerm())
		if err != nil {
			return nil, err
		}
		var mod int64
		var held holder
		for tries := 0; tries < 2; tries++ {
			var answer *clientv3.TxnResponse
			err = c.do(ctx, func(ctx context.Context) (err error) {
				answer, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", mod)).
					Then(clientv3.OpPut(key, string(value), clientv3.WithLease(lease))).
					Else(clientv3.OpGet(key)).Commit()
				return err
			})
			if err != nil {
				break
			}
			won := answer.Header.Revision
			if !answer.Succeeded {
				kvs := answer.Responses[0].GetResponseRange().Kvs
				if len(kvs) == 0 {
					continue
				}
				held, won = holder{}, 0
				if err := json.Unmarshal(kvs[0].Value, &held); err == nil && held == me {
					won = kvs[0].ModRevision // by a first attempt whose answer was lost
				}
				mod = kvs[0].ModRevision
			}
			if won > 0 {
				return c.occupy(ctx, key, lease, won), nil
			}
			if name == "" || held.Name != name {
				break
			}
		}
		c.revoke(lease)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = c.follow(ctx, "decider", func(news []change) bool {
			for _, n := range news {
				if n.key == "" {
					return n.value != nil
				}
			}
			return len(news) > 0 // without any, nobody holds it
		})
		if err != nil {
			return nil, err
		}
	}
}

// occupy keeps the lead until it is lost or resigned.
func (c *Client) occupy(ctx context.Context, key string, lease clientv3.LeaseID, rev int64) *lead {
	o := &lead{c: c, lease: lease, cond: clientv3.Compare(clientv3.ModRevision(key), "=", rev), done: make(chan struct{})}
	o.ctx, o.cancel = context.WithCancel(ctx)
	go func() {
		defer close(o.done)
		tick := time.NewTicker(c.leaderTerm() / 4)
		defer tick.Stop()
		leases := renewer{c: c}
		defer leases.close()
		for {
			select {
			case <-o.ctx.Done():
				return
			case <-tick.C:
			}
			err := leases.renew(o.ctx, lease)
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				o.cancel()
			}
		}
	}()
	return o
}

// resign gives the lead back, so that another need not wait for the lease.
func (o *lead) resign() {
	o.cancel()
	<-o.done
	o.c.revoke(o.lease)
}

// revoke ends a lease if the store answers soon; otherwise its term does.
func (c *Client) revoke(lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), time.Second)
	defer cancel()
	c.etcd.Revoke(ctx, lease)
}

// put writes a key while this process leads, with its lease; an empty value removes it.
func (o *lead) put(ctx context.Context, key, value string) error {
	op := clientv3.OpPut(o.c.prefix+key, value, clientv3.WithLease(o.lease))
	if value == "" {
		op = clientv3.OpDelete(o.c.prefix + key)
	}
	return o.c.do(ctx, func(ctx context.Context) error {
		answer, err := o.c.etcd.Txn(ctx).If(o.cond).Then(op).Commit()
		if err == nil && !answer.Succeeded {
			return fmt.Errorf("another process decides now: %w", ErrConflict)
		}
		return err
	})
}

// list reads what is under a prefix.
func (c *Client) list(ctx context.Context, prefix string) ([]change, error) {
	var got *clientv3.GetResponse
	err := c.do(ctx, func(ctx context.Context) (err error) {
		got, err = c.etcd.Get(ctx, c.prefix+prefix, clientv3.WithPrefix())
		return err
	})
	if err != nil {
		return nil, err
	}
	var list []change
	for _, kv := range got.Kvs {
		list = append(list, change{strings.TrimPrefix(string(kv.Key), c.prefix+prefix), there(kv.Value)})
	}
	return list, nil
}
