package coord

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ManyHosts is the term of workers' leases in a job of many hosts, whose agents
// observe one another (package run/elastic/internal/observe) and report a lost host long before
// a lease ends. Leases of a second would cost the coordinator four renewals a
// second for each worker.
const ManyHosts = 10 * time.Second

// atOnce is how many workers one transaction reports; etcd takes 128 operations. A
// host with more ranks is reported again when the first epoch without some of them
// is there.
const atOnce = 120

// Lost says that all workers of a host are gone, as a member of an epoch sees it:
// Accuse for many, in one write, so that one epoch follows. Workers that have
// another life by now, or are known to be dead, are left alone. Nothing happens if
// there is a later epoch.
func (c *Client) Lost(ctx context.Context, epoch uint64, seats []Seat, why string) error {
	seats = seats[:min(len(seats), atOnce)]
	for {
		again, err := c.lost(ctx, epoch, seats, why)
		if err != nil || !again {
			return err
		}
	}
}

// lost reports whether a record changed meanwhile, so that it has to be done again.
func (c *Client) lost(ctx context.Context, epoch uint64, seats []Seat, why string) (again bool, err error) {
	var gets []clientv3.Op
	for _, s := range seats {
		gets = append(gets, clientv3.OpGet(c.prefix+workerKey(s.ID)))
	}
	var got *clientv3.TxnResponse
	if err := c.do(ctx, func(ctx context.Context) (err error) { got, err = c.etcd.Txn(ctx).Then(gets...).Commit(); return err }); err != nil {
		return false, err
	}
	later := clientv3.Compare(clientv3.CreateRevision(c.prefix+epochKey(epoch+1)), "=", 0)
	conds := []clientv3.Cmp{later}
	var puts []clientv3.Op
	var leases []clientv3.LeaseID
	for i, answer := range got.Responses {
		kvs := answer.GetResponseRange().Kvs
		if len(kvs) == 0 {
			continue
		}
		key := string(kvs[0].Key)
		w, err := DecodeWorker(kvs[0].Value)
		if err != nil {
			return false, fmt.Errorf("%w (%s)", err, key)
		}
		if w.Life != seats[i].Life || w.State == Dead {
			continue
		}
		w.State, w.Why = Dead, why
		value, err := encode("the record of a worker", w, 2*MaxValue)
		if err != nil {
			return false, err
		}
		conds = append(conds, clientv3.Compare(clientv3.ModRevision(key), "=", kvs[0].ModRevision))
		puts = append(puts, clientv3.OpPut(key, value, clientv3.WithIgnoreLease()))
		leases = append(leases, clientv3.LeaseID(kvs[0].Lease))
	}
	if len(puts) == 0 {
		return false, nil
	}
	var answer *clientv3.TxnResponse
	err = c.do(ctx, func(ctx context.Context) (err error) {
		answer, err = c.etcd.Txn(ctx).If(conds...).Then(puts...).
			Else(clientv3.OpTxn([]clientv3.Cmp{later}, nil, nil)).Commit()
		return err
	})
	switch {
	case err != nil:
		return false, err
	case !answer.Succeeded:
		return answer.Responses[0].GetResponseTxn().Succeeded, nil
	}
	for _, l := range leases { // one that lives after all finds its lease gone and enters anew
		c.revoke(l)
	}
	return false, nil
}

// Ping asks the coordinator for a sign of life: most of its servers answer.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.etcd.Get(ctx, c.prefix+"format", clientv3.WithCountOnly())
	return err
}
