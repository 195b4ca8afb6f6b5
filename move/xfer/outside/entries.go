package outside

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/move/xfer"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// entries are what a program keeps in etcd. They go with this process: a lease of ten seconds holds them.
type entries struct {
	etcd  *clientv3.Client
	at    string // the endpoints of etcd
	lease clientv3.LeaseID
	end   context.CancelFunc
}

const entryTTL = 10 // seconds

// do puts, gets or deletes. A key that ends with a slash stands for all below it when it is deleted.
func (e *entries) do(ctx context.Context, c call, r *answer) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if c.Key == "" || len(c.Etcd) == 0 {
		return fmt.Errorf("%s %q at %q: want a key and endpoints: %w", c.Do, c.Key, c.Etcd, errParameter)
	}
	if err := e.open(ctx, c.Etcd); err != nil {
		return fmt.Errorf("etcd at %s: %w", e.at, err)
	}
	var err error
	switch c.Do {
	case "etcd put":
		if c.Data == nil {
			return fmt.Errorf("etcd put %s: no data: %w", c.Key, errParameter)
		}
		if err = e.hold(ctx); err == nil {
			_, err = e.etcd.Put(ctx, c.Key, string(*c.Data), clientv3.WithLease(e.lease))
		}
	case "etcd get":
		var got *clientv3.GetResponse
		if got, err = e.etcd.Get(ctx, c.Key); err == nil && len(got.Kvs) > 0 {
			r.Blob = got.Kvs[0].Value
		}
	case "etcd delete":
		var o []clientv3.OpOption
		if c.Key[len(c.Key)-1] == '/' {
			o = append(o, clientv3.WithPrefix())
		}
		_, err = e.etcd.Delete(ctx, c.Key, o...)
	}
	if err != nil {
		return fmt.Errorf("etcd at %s: %w: %w", e.at, xfer.ErrLost, err)
	}
	return nil
}

// open connects to etcd, once for the same endpoints.
func (e *entries) open(ctx context.Context, endpoints []string) error {
	at := fmt.Sprint(endpoints)
	if e.etcd != nil && e.at == at {
		return nil
	}
	e.close()
	e.at = at
	etcd, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 3 * time.Second, Context: context.WithoutCancel(ctx),
		Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("%w: %w", errParameter, err)
	}
	e.etcd = etcd
	return nil
}

// hold makes the lease, which lives as long as this process. One that was lost, as after a long stop, is made again.
func (e *entries) hold(ctx context.Context) error {
	if e.end != nil {
		if left, err := e.etcd.TimeToLive(ctx, e.lease); err != nil || left.TTL > 0 {
			return err
		}
		e.end()
		e.end = nil
	}
	l, err := e.etcd.Grant(ctx, entryTTL)
	if err != nil {
		return err
	}
	life, end := context.WithCancel(context.Background())
	alive, err := e.etcd.KeepAlive(life, l.ID)
	if err != nil {
		end()
		return err
	}
	go func() {
		for range alive { // what comes back says only that it lives
		}
	}()
	e.lease, e.end = l.ID, end
	return nil
}

// close takes back what was put.
func (e *entries) close() {
	if e.etcd == nil {
		return
	}
	if e.end != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = e.etcd.Revoke(ctx, e.lease) // else it goes with its time
		e.end()
	}
	e.etcd.Close()
	*e = entries{}
}
