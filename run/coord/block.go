package coord

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Block is a run of worker ids that belongs to one node, so that the ranks of a
// node are neighbours whatever the order in which its processes register.
type Block struct {
	First member.ID `json:"first"`
	Count int       `json:"count"`
	Node  string    `json:"node"`
}

// blockLife is how long a node that does not answer keeps its block: one that was
// cut off for a while finds its ids again.
const blockLife = time.Minute

func blockKey(first member.ID) string { return fmt.Sprintf("block/%08x", uint32(first)) }

// Claim takes the lowest free run of ids for a node and holds it until hold ends; ctx
// bounds the asking. A node that dies keeps its ids for a minute.
func (c *Client) Claim(ctx, hold context.Context, node string, count int) (Block, error) {
	if count < 1 || count > int(outside) {
		return Block{}, fmt.Errorf("coord: a block of %d ids; it has from 1 to %d", count, outside)
	}
	var lease *clientv3.LeaseGrantResponse
	err := c.do(ctx, func(ctx context.Context) (err error) {
		lease, err = c.etcd.Grant(ctx, int64(blockLife/time.Second))
		return err
	})
	if err != nil {
		return Block{}, err
	}
	counter := c.prefix + "blocks" // changes with every claim
	for {
		var got *clientv3.TxnResponse
		err := c.do(ctx, func(ctx context.Context) (err error) {
			got, err = c.etcd.Txn(ctx).Then(clientv3.OpGet(counter), clientv3.OpGet(c.prefix+"block/", clientv3.WithPrefix()),
				clientv3.OpGet(c.prefix+"worker/", clientv3.WithPrefix(), clientv3.WithKeysOnly())).Commit()
			return err
		})
		if err != nil {
			return Block{}, err
		}
		var seen int64
		if kvs := got.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			seen = kvs[0].ModRevision
		}
		var taken []Block
		for _, kv := range got.Responses[1].GetResponseRange().Kvs {
			var held Block
			if err := json.Unmarshal(kv.Value, &held); err != nil {
				return Block{}, fmt.Errorf("coord: the record of a block of ids (%s): %w", kv.Key, err)
			}
			taken = append(taken, held)
		}
		for _, kv := range got.Responses[2].GetResponseRange().Kvs { // of nodes that have numbers of their own
			var id uint32
			if _, err := fmt.Sscanf(strings.TrimPrefix(string(kv.Key), c.prefix+"worker/"), "%08x", &id); err == nil {
				taken = append(taken, Block{First: member.ID(id), Count: 1})
			}
		}
		slices.SortFunc(taken, func(a, b Block) int { return cmp.Compare(a.First, b.First) })
		b := Block{Count: count, Node: node}
		for _, held := range taken {
			if int(held.First) >= int(b.First)+count {
				break
			}
			b.First = max(b.First, held.First+member.ID(held.Count))
		}
		if int(b.First)+count > int(outside) {
			return Block{}, fmt.Errorf("coord: no %d ids in a row are free", count)
		}
		value, err := encode("the record of a block of ids", b, MaxValue)
		if err != nil {
			return Block{}, err
		}
		var answer *clientv3.TxnResponse
		err = c.do(ctx, func(ctx context.Context) (err error) {
			answer, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(counter), "=", seen)).
				Then(clientv3.OpPut(c.prefix+blockKey(b.First), value, clientv3.WithLease(lease.ID)), clientv3.OpPut(counter, node)).
				Else(clientv3.OpGet(c.prefix + blockKey(b.First))).Commit()
			return err
		})
		if err != nil {
			return Block{}, err
		}
		if !answer.Succeeded { // another node was first, or a first attempt's answer was lost
			if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 || string(kvs[0].Value) != value || kvs[0].Lease != int64(lease.ID) {
				continue
			}
		}
		c.tasks.Add(1)
		go func() {
			defer c.tasks.Done()
			c.keepBlock(hold, b, value, lease.ID)
		}()
		return b, nil
	}
}

// keepBlock renews a block's lease until the context ends. A block whose lease has ended
// meanwhile is entered again if nobody else has it.
func (c *Client) keepBlock(ctx context.Context, b Block, value string, lease clientv3.LeaseID) {
	ctx, cancel := c.bind(ctx)
	defer cancel()
	defer func() { c.revoke(lease) }()
	leases := renewer{c: c}
	defer leases.close()
	for {
		pause(ctx, blockLife/4)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(leases.renew(ctx, lease), rpctypes.ErrLeaseNotFound) {
			continue
		}
		_ = c.do(ctx, func(ctx context.Context) error {
			l, err := c.etcd.Grant(ctx, int64(blockLife/time.Second))
			if err != nil {
				return err
			}
			key := c.prefix + blockKey(b.First)
			_, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
				Then(clientv3.OpPut(key, value, clientv3.WithLease(l.ID))).Commit()
			lease = l.ID
			return err
		})
	}
}
