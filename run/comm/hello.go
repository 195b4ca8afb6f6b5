package comm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/release"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/mixed"
	"github.com/weft-fabric/weft/run/transport/shm"
	"github.com/weft-fabric/weft/run/transport/tcp"
	"github.com/weft-fabric/weft/run/transport/ucx"
	"github.com/weft-fabric/weft/run/transport/wire"
	"github.com/weft-fabric/weft/run/transport/witness"
)

// version is of what ranks say to one another; ranks of different versions
// refuse to work together.
const version = 1

// hello is what a rank says about itself before there is a transport.
type hello struct {
	Version   int
	Host      string // equal on ranks that say they share memory
	Machine   string // equal on ranks that share cores
	PID       int
	Transport string
	Require   string
	Canonical bool
	Quorum    string
	World     [16]byte // rank 0's is that of the world
	Ledger    int      // rank 0's: number of the open file; 0 if there is none
	Timeout   time.Duration
	Cores     int
	Layout    uint64 // of the boards: board.Hash
	Build     string // of weft; empty if that is not known
	TLS       bool
	Checksum  string
}

// compare refuses ranks that cannot work together, and notes which claim to share a host.
func (w *world) compare(hellos []hello) error {
	first := map[string]int{}
	for rank, h := range hellos {
		if h.Version != version {
			return fmt.Errorf("rank %d has version %d, this one %d; run the same weft everywhere", rank, h.Version, version)
		}
		if mine := board.Hash(); h.Layout != mine {
			return fmt.Errorf("rank %d lays shared memory out as %x, this one as %x: run the same build of weft everywhere", rank, h.Layout, mine)
		}
		if mine := build(); h.Build != mine && h.Build != "" && mine != "" {
			return fmt.Errorf("rank %d runs weft %s, this one %s: run the same build of weft everywhere", rank, h.Build, mine)
		}
		if h.TLS != hellos[0].TLS {
			return fmt.Errorf("rank 0 has TLS %t, rank %d %t: give all ranks the same WEFT_TLS", hellos[0].TLS, rank, h.TLS)
		}
		if checksums[h.Checksum] != checksums[hellos[0].Checksum] {
			return fmt.Errorf("rank 0 has checksums %q, rank %d %q: give all ranks the same WEFT_CHECKSUM", hellos[0].Checksum, rank, h.Checksum)
		}
		if h.Transport != hellos[0].Transport {
			return fmt.Errorf("rank 0 uses transport %q, rank %d %q; set the same WEFT_TRANSPORT on all ranks",
				hellos[0].Transport, rank, h.Transport)
		}
		if h.Canonical != hellos[0].Canonical {
			return fmt.Errorf("rank 0 has canonical=%t, rank %d %t: give all ranks the same WEFT_CANONICAL", hellos[0].Canonical, rank, h.Canonical)
		}
		if h.Quorum != hellos[0].Quorum {
			return fmt.Errorf("rank 0 has quorum %q, rank %d %q: give all ranks the same WEFT_QUORUM", hellos[0].Quorum, rank, h.Quorum)
		}
		if _, seen := first[h.Host]; !seen {
			first[h.Host] = len(first)
		}
		w.hosts, w.pids = append(w.hosts, first[h.Host]), append(w.pids, h.PID)
	}
	w.majority, w.id = w.cfg.Quorum == "majority", hellos[0].World
	if at, ok := strings.CutPrefix(w.cfg.Quorum, witnessed); ok {
		w.majority, w.witness = true, &witness.Client{Addr: at, Token: w.cfg.Token, Rank: w.cfg.Rank, Size: w.cfg.Size}
	}
	return nil
}

// agree finds the transport that all ranks use. Where hosts have several ranks and there
// are several hosts, each pair has its own way.
func (w *world) agree(hellos []hello) (kind string, err error) {
	hosts := slices.Max(w.hosts) + 1
	kind = transportKind(hellos[0].Transport)
	if kind == "" {
		switch hosts {
		case 1:
			kind = "shm"
		case len(w.hosts):
			kind = "tcp"
		default:
			kind = "mixed"
		}
	}
	apart := ""
	if i := slices.IndexFunc(w.apart, func(s string) bool { return s != "" }); i >= 0 {
		apart = fmt.Sprintf("; rank %d counts as a host of its own: %s", i, w.apart[i])
	}
	for rank, h := range hellos {
		if h.Require != "" && transportKind(h.Require) != kind {
			why := "it is asked for (WEFT_TRANSPORT)"
			switch {
			case hellos[0].Transport != "":
			case hosts == 1:
				why = "the ranks are on one host"
			default:
				why = fmt.Sprintf("the ranks are on %d hosts", hosts) + apart
			}
			return "",
				fmt.Errorf("rank %d requires transport %s, but %s would be used: %s; WEFT_TRANSPORT says what to use, WEFT_REQUIRE what it must come to",
					rank, h.Require, kind, why)
		}
	}
	if way := ways[kind]; way.hosts && !way.encrypts && w.cfg.TLS != nil {
		return "", fmt.Errorf("transport %s does not encrypt, and TLS is asked for: use transport tcp or mixed, or leave WEFT_TLS out", kind)
	}
	if !ways[kind].hosts && hosts > 1 {
		return "", fmt.Errorf("transport %s reaches ranks of one host only, and there are %d hosts%s", kind, hosts, apart)
	}
	return kind, nil
}

// beside is how many channels of a rank may run side by side: four where every rank has eight cores of its machine, two where it has four,
// so that half of the cores stay for others. Each channel has connections of its own with every rank.
func beside(hellos []hello) int {
	on := map[string]int{}
	for _, h := range hellos {
		on[h.Machine]++
	}
	n := 4
	for _, h := range hellos {
		switch own := h.Cores / on[h.Machine]; {
		case own < 4:
			return 1
		case own < 8 || len(hellos) > 8:
			n = 2
		}
	}
	return n
}

// sharers is how many hosts share the cores of a machine, at most: network namespaces and pods count as hosts.
func sharers(hellos []hello, hosts []int) int {
	on, most := map[string]map[int]bool{}, 1
	for r, h := range hellos {
		if on[h.Machine] == nil {
			on[h.Machine] = map[int]bool{}
		}
		on[h.Machine][hosts[r]] = true
		most = max(most, len(on[h.Machine]))
	}
	return most
}

// newLedger makes the ledger if ranks may need one: rank 0's, where another transport than shared memory and no majority is asked
// for. It gives the number by which the others find it, 0 if there is none.
func (w *world) newLedger(id [16]byte) (number int) {
	cfg := &w.cfg
	if k := transportKind(cfg.Transport); cfg.Rank != 0 || cfg.Size == 1 || cfg.Quorum != "" && cfg.Quorum != "any" || k == "" ||
		!ways[k].hosts {
		return 0
	}
	l, err := witness.NewLedger(id)
	if err != nil {
		return 0 // then a majority is asked for
	}
	w.ledger = l
	return l.Number()
}

// openLedger opens rank 0's ledger if it serves: if all ranks are on one host. Ranks of several hosts need a majority.
func (w *world) openLedger(first *hello) {
	if slices.Max(w.hosts) > 0 {
		w.majority = w.majority || w.cfg.Quorum == ""
		w.closeLedger()
	} else if first.Ledger > 0 && w.ledger == nil {
		if l, err := witness.OpenLedger(first.PID, first.Ledger, first.World); err == nil {
			w.ledger = l
		}
	}
}

func (w *world) closeLedger() {
	if w.ledger != nil {
		_ = w.ledger.Close()
		w.ledger = nil
	}
}

// build is which weft this is; empty if that is not known.
var build = sync.OnceValue(release.ID)

// greet tells the other ranks about this one and hears of them.
func (w *world) greet(ctx context.Context, gather transport.Gather) ([]hello, error) {
	cfg := &w.cfg
	host := shm.HostID()
	if cfg.Host != "" {
		host = shm.Machine() + " " + cfg.Host
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	mine, err := json.Marshal(hello{World: id, Ledger: w.newLedger(id), Version: version, Host: host, Machine: shm.Machine(), PID: os.Getpid(),
		Transport: cfg.Transport, Require: cfg.Require,
		Canonical: cfg.Canonical, Quorum: cfg.Quorum, Timeout: cfg.Timeout, Cores: runtime.NumCPU(), Layout: board.Hash(), Build: build(),
		TLS: cfg.TLS != nil, Checksum: cfg.Checksum})
	if err != nil {
		return nil, err
	}
	blobs, err := gather(ctx, mine)
	if err != nil {
		return nil, err
	}
	hellos := make([]hello, len(blobs))
	for i, b := range blobs {
		if err := json.Unmarshal(b, &hellos[i]); err != nil {
			return nil, fmt.Errorf("what rank %d said about itself: %w", i, err)
		}
	}
	return hellos, w.compare(hellos)
}

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
	"tcp": {hosts: true, encrypts: true, open: func(ctx context.Context, w *world, hellos []hello,
		gather transport.Gather) (transport.Endpoint, error) {
		return tcp.Open(ctx, w.wire(hellos, gather))
	}},
	"mixed": {memory: true, hosts: true, encrypts: true,
		open: func(ctx context.Context, w *world, hellos []hello, gather transport.Gather) (transport.Endpoint, error) {
			return mixed.Open(ctx, mixed.Config{Rank: w.cfg.Rank, Size: w.cfg.Size, Hosts: w.hosts, Machine: w.local, Gather: gather,
				TCP: w.wire(hellos, gather)})
		}},
	"ucx": {hosts: true, open: func(ctx context.Context, w *world, hellos []hello, gather transport.Gather) (transport.Endpoint, error) {
		return ucx.Open(ctx, w.overUCX(hellos, gather))
	}},
}

// open opens the transport that the ranks agreed on.
func (w *world) open(ctx context.Context, kind string, hellos []hello, gather transport.Gather) error {
	ep, err := ways[kind].open(ctx, w, hellos, gather)
	if errors.Is(err, wire.ErrInterface) {
		return &SettingError{"WEFT_INTERFACES", strings.Join(w.cfg.Interfaces, ","), fmt.Errorf("interfaces (WEFT_INTERFACES): %w", err)}
	}
	if err != nil {
		return err // what came beside it is a nil of its own type
	}
	w.ep = ep
	return nil
}

// wire is the configuration of tcp.
func (w *world) wire(hellos []hello, gather transport.Gather) tcp.Config {
	cfg := &w.cfg
	return tcp.Config{Rank: cfg.Rank, Size: cfg.Size, Gather: gather, Token: cfg.Token, Epoch: cfg.Epoch, TLS: cfg.TLS,
		Interfaces: cfg.Interfaces, AllRails: cfg.AllRails, Discover: cfg.Discover, GPU: cfg.LocalRank,
		Streams: cfg.Streams, Outage: cfg.Outage, Congestion: cfg.Congestion, Checksum: checksums[cfg.Checksum], Machine: w.local,
		Channels: beside(hellos), Event: w.events.Add, Log: cfg.Log}
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
var checksums = map[string]wire.Sums{"": wire.SumsBetween, "hosts": wire.SumsBetween, "none": wire.SumsNone, "all": wire.SumsAll}
