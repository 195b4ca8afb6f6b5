package comm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/mixed"
	"github.com/weft-fabric/weft/transport/shm"
	"github.com/weft-fabric/weft/transport/tcp"
	"github.com/weft-fabric/weft/transport/ucx"
)

// way is a transport between processes: what must be known of it before it is opened. What it can do then is in its Capabilities.
type way struct {
	memory   bool // ranks of a host share memory
	hosts    bool // it reaches other hosts
	encrypts bool // by TLS
	open     func(ctx context.Context, w *world, hellos []hello, gather transport.Gather) (transport.Endpoint, error)
}

// ways are the transports by the names that WEFT_TRANSPORT gives them.
var ways = map[string]way{
	"shm": {memory: true, open: func(ctx context.Context, w *world, _ []hello, gather transport.Gather) (transport.Endpoint, error) {
		return shm.Open(ctx, shm.Config{Rank: w.cfg.Rank, Size: w.cfg.Size, Gather: gather, Machine: w.local})
	}},
	"tcp": {hosts: true, encrypts: true, open: func(ctx context.Context, w *world, _ []hello, gather transport.Gather) (transport.Endpoint, error) {
		return tcp.Open(ctx, w.wire(gather))
	}},
	"mixed": {memory: true, hosts: true, encrypts: true, open: func(ctx context.Context, w *world, _ []hello, gather transport.Gather) (transport.Endpoint, error) {
		return mixed.Open(ctx, mixed.Config{Rank: w.cfg.Rank, Size: w.cfg.Size, Hosts: w.hosts, Machine: w.local, Gather: gather, TCP: w.wire(gather)})
	}},
	"ucx": {hosts: true, open: func(ctx context.Context, w *world, hellos []hello, gather transport.Gather) (transport.Endpoint, error) {
		return ucx.Open(ctx, w.overUCX(hellos, gather))
	}},
}

// open opens the transport that the ranks agreed on.
func (w *world) open(ctx context.Context, kind string, hellos []hello, gather transport.Gather) error {
	ep, err := ways[kind].open(ctx, w, hellos, gather)
	if errors.Is(err, tcp.ErrInterface) {
		return &SettingError{"WEFT_INTERFACES", strings.Join(w.cfg.Interfaces, ","), fmt.Errorf("interfaces (WEFT_INTERFACES): %w", err)}
	}
	if err != nil {
		return err // what came beside it is a nil of its own type
	}
	w.ep = ep
	return nil
}

// wire is the configuration of tcp.
func (w *world) wire(gather transport.Gather) tcp.Config {
	cfg := &w.cfg
	return tcp.Config{Rank: cfg.Rank, Size: cfg.Size, Gather: gather, Token: cfg.Token, TLS: cfg.TLS, Interfaces: cfg.Interfaces, AllRails: cfg.AllRails, Discover: cfg.Discover, GPU: cfg.LocalRank,
		Streams: cfg.Streams, Outage: cfg.Outage, Congestion: cfg.Congestion, Checksum: checksums[cfg.Checksum], Event: w.events.Add, Log: cfg.Log}
}

// overUCX is the configuration of UCX.
func (w *world) overUCX(hellos []hello, gather transport.Gather) ucx.Config {
	cfg := &w.cfg
	c := ucx.Config{Rank: cfg.Rank, Size: cfg.Size, Gather: gather, Machine: w.local, Log: cfg.Log}
	if _, list, ok := strings.Cut(hellos[0].Transport, ":"); ok {
		c.Transports = strings.Split(list, ",")
	}
	for _, h := range hellos {
		if _, list, ok := strings.Cut(h.Require, ":"); ok {
			c.Messages = list
		}
	}
	return c
}

// checksums are the settings of that name.
var checksums = map[string]tcp.Sums{"": tcp.SumsBetween, "hosts": tcp.SumsBetween, "none": tcp.SumsNone, "all": tcp.SumsAll}
