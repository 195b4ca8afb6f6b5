package coord

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// history is how many epochs are kept.
const history = 1024

func epochKey(number uint64) string { return fmt.Sprintf("epoch/%016x", number) }

// Publish writes an epoch if its number is free and the one before is there. It
// returns what the store holds under that number: the epoch itself, or with
// ErrConflict that of another decider. Callers that lead use Decide.
func (c *Client) Publish(ctx context.Context, e Epoch) (Epoch, error) {
	return c.publish(ctx, e)
}

// entry enters an epoch if its number is free and the one before is there. It takes away what nobody waits for any more: what epochs
// gathered but for the one before, and the epochs beyond the history.
func (c *Client) entry(number uint64, key, value string) (conds []clientv3.Cmp, ops []clientv3.Op) {
	conds = []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}
	if number > 1 {
		conds = append(conds, clientv3.Compare(clientv3.CreateRevision(c.prefix+epochKey(number-1)), ">", 0))
	}
	ops = []clientv3.Op{clientv3.OpPut(key, value),
		clientv3.OpDelete(c.prefix+"gather/", clientv3.WithRange(c.prefix+fmt.Sprintf("gather/%016x", number-1)))}
	if number > history {
		ops = append(ops, clientv3.OpDelete(c.prefix+"epoch/", clientv3.WithRange(c.prefix+epochKey(number-history+1))))
	}
	return conds, ops
}

// publish writes an epoch unless another one has that number already, and only if the epoch before it is there. It
// returns the epoch that holds: with ErrConflict that is another process's. leads are conditions under which this
// process may decide at all.
func (c *Client) publish(ctx context.Context, e Epoch, leads ...clientv3.Cmp) (Epoch, error) {
	if err := e.check(); err != nil {
		return Epoch{}, err
	}
	value, err := encode(fmt.Sprintf("epoch %d of %d members", e.Number, len(e.Members)+len(e.Recovering)), e, MaxGather)
	if err != nil {
		return Epoch{}, err
	}
	key := c.prefix + epochKey(e.Number)
	conds, ops := c.entry(e.Number, key, value)
	conds = append(conds, leads...)
	var answer *clientv3.TxnResponse
	err = c.do(ctx, func(ctx context.Context) (err error) {
		answer, err = c.etcd.Txn(ctx).If(conds...).Then(ops...).Else(clientv3.OpGet(key)).Commit()
		return err
	})
	if err != nil {
		return Epoch{}, err
	}
	if answer.Succeeded {
		return e, nil
	}
	kvs := answer.Responses[0].GetResponseRange().Kvs
	switch {
	case len(kvs) == 0 && len(leads) > 0:
		return Epoch{}, fmt.Errorf("coord: epoch %d: another process decides now, or epoch %d is missing: %w",
			e.Number, e.Number-1, ErrConflict)
	case len(kvs) == 0:
		return Epoch{}, fmt.Errorf("coord: epoch %d cannot be written: epoch %d is missing: %w", e.Number, e.Number-1, ErrConflict)
	case string(kvs[0].Value) == value: // written by a first attempt whose answer was lost
		return e, nil
	}
	held, err := DecodeEpoch(kvs[0].Value)
	if err != nil {
		return Epoch{}, fmt.Errorf("%w (%s)", err, key)
	}
	return held, fmt.Errorf("coord: epoch %d: %w", e.Number, ErrConflict)
}

// Latest is the epoch of the highest number, nil if there is none.
func (c *Client) Latest(ctx context.Context) (*Epoch, error) {
	list, err := c.epochs(ctx, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(1))
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// History lists the epochs that are kept, the last 1,024, in order.
func (c *Client) History(ctx context.Context) ([]Epoch, error) { return c.epochs(ctx) }

// epochs reads the decided epochs in the order of the store. opts say which.
func (c *Client) epochs(ctx context.Context, opts ...clientv3.OpOption) ([]Epoch, error) {
	var got *clientv3.GetResponse
	err := c.do(ctx, func(ctx context.Context) (err error) {
		got, err = c.etcd.Get(ctx, c.prefix+"epoch/", append(opts, clientv3.WithPrefix())...)
		return err
	})
	if err != nil {
		return nil, err
	}
	var list []Epoch
	for _, kv := range got.Kvs {
		e, err := DecodeEpoch(kv.Value)
		if err != nil {
			return nil, fmt.Errorf("%w (%s)", err, kv.Key)
		}
		list = append(list, e)
	}
	return list, nil
}

// WatchEpochs tells the latest epoch, if there is one, and each that follows, in
// order, until the context ends; then the channel is closed.
func (c *Client) WatchEpochs(ctx context.Context) <-chan Epoch {
	out := make(chan Epoch)
	c.tasks.Add(1)
	go func() {
		defer c.tasks.Done()
		defer close(out)
		ctx, cancel := c.bind(ctx)
		defer cancel()
		latest, err := c.Latest(ctx)
		if err != nil {
			return // the context has ended, or nothing can be read: so does the channel
		}
		tell := func(e Epoch) bool {
			select {
			case out <- e:
				return true
			case <-ctx.Done():
				return false
			}
		}
		var last uint64
		if latest != nil {
			if last = latest.Number; !tell(*latest) {
				return
			}
		}
		c.followFrom(ctx, "epoch/", epochKey(last + 1)[len("epoch/"):], func(news []change) bool {
			for _, n := range news {
				e, err := DecodeEpoch(n.value)
				if n.value == nil || err != nil || e.Number <= last {
					continue
				}
				if last = e.Number; !tell(e) {
					return false
				}
			}
			return true
		})
	}()
	return out
}
