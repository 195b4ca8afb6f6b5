package coord

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// renewer renews leases over one stream, which it opens again when it fails. A
// stream for each renewal would cost a cluster with passwords the check of one,
// 60 ms of a processor, four times a term.
type renewer struct {
	c      *Client
	stream etcdserverpb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
}

// renew gives a lease a new term. It fails with ErrLeaseNotFound if there is none.
func (r *renewer) renew(ctx context.Context, lease clientv3.LeaseID) error {
	limit := r.c.cfg.TTL / 2
	if r.stream == nil {
		limit = longest
		var open context.Context
		open, r.cancel = context.WithCancel(clientv3.WithRequireLeader(ctx))
		stop := time.AfterFunc(limit, r.cancel)
		stream, err := etcdserverpb.NewLeaseClient(r.c.etcd.ActiveConnection()).LeaseKeepAlive(open)
		stop.Stop()
		if err != nil {
			r.cancel()
			return err
		}
		r.stream = stream
	}
	stop := time.AfterFunc(limit, r.cancel)
	defer stop.Stop()
	err := r.stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(lease)})
	var answer *etcdserverpb.LeaseKeepAliveResponse
	if err == nil {
		answer, err = r.stream.Recv()
	}
	if err != nil {
		r.close()
		return rpctypes.Error(err)
	}
	r.c.answered()
	if answer.TTL <= 0 {
		return rpctypes.ErrLeaseNotFound
	}
	return nil
}

func (r *renewer) close() {
	if r.stream != nil {
		r.cancel()
		r.stream = nil
	}
}
