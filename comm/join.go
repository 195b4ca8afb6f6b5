package comm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/comm/choice"
	"github.com/weft-fabric/weft/comm/internal/board"
	"github.com/weft-fabric/weft/cost"
	"github.com/weft-fabric/weft/internal/release"
	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/mem"
	"github.com/weft-fabric/weft/transport/mixed"
	"github.com/weft-fabric/weft/transport/rendezvous"
	"github.com/weft-fabric/weft/transport/shm"
	"github.com/weft-fabric/weft/transport/tcp"
	"github.com/weft-fabric/weft/transport/ucx"
	"github.com/weft-fabric/weft/transport/witness"
	"github.com/weft-fabric/weft/unit"
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

// Join meets the other ranks and makes the communicator of all of them. It ends
// with an error if they have not all come when ctx ends, or, if ctx has no
// deadline, when the time limit of the configuration has passed.
func Join(ctx context.Context, cfg Config) (*Comm, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if cfg.Transport == "mem" {
		return nil, errors.New(`transport (WEFT_TRANSPORT) "mem" is for ranks that are goroutines, which Local makes; processes have shm and tcp`)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
	}
	room, err := rendezvous.Join(ctx, rendezvous.Config{Addr: cfg.Addr, Rank: cfg.Rank, Size: cfg.Size, Token: cfg.Token, TLS: cfg.TLS, Listener: cfg.Listener, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	w := &world{process: &process{cfg: cfg, room: room, started: time.Now()}}
	c, err := w.join(ctx, room.Gather)
	if err != nil {
		if w.ep != nil {
			_ = w.ep.Close()
		}
		w.closeLedger()
		_ = room.Leave(err)
		return nil, fmt.Errorf("rank %d of %d: %w", cfg.Rank, cfg.Size, err)
	}
	if cfg.Size >= manyRanks {
		debug.FreeOSMemory()
	}
	return c, nil
}

// From this many ranks on, what finding programs for them took is given back to the system at the end of Join. Of 16 MiB that each of
// 64 ranks on 8 hosts had, 3 were in use (2026-11-17).
const manyRanks = 32

func (w *world) join(ctx context.Context, gather transport.Gather) (*Comm, error) {
	cfg := &w.cfg
	host := shm.HostID()
	if cfg.Host != "" {
		host = shm.Machine() + " " + cfg.Host
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	mine, err := json.Marshal(hello{World: id, Ledger: w.newLedger(id), Version: version, Host: host, Machine: shm.Machine(), PID: os.Getpid(), Transport: cfg.Transport, Require: cfg.Require,
		Canonical: cfg.Canonical, Quorum: cfg.Quorum, Timeout: cfg.Timeout, Cores: runtime.NumCPU(), Layout: board.Hash(), Build: build(), TLS: cfg.TLS != nil, Checksum: cfg.Checksum})
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
	if err := w.compare(hellos); err != nil {
		return nil, err
	}
	if k := transportKind(hellos[0].Transport); k != "tcp" && k != "ucx" && cfg.Size > 1 {
		if w.hosts, w.apart, err = shm.Reach(ctx, cfg.Rank, w.hosts, gather); err != nil {
			return nil, err
		}
	}
	kind, err := w.agree(hellos)
	if err != nil {
		return nil, err
	}
	w.openLedger(&hellos[0])
	for rank := range hellos {
		if hellos[rank].Machine == hellos[cfg.Rank].Machine {
			w.local++
		}
	}
	w.shared = sharers(hellos, w.hosts)
	switch kind {
	case "shm":
		w.ep, err = shm.Open(ctx, shm.Config{Rank: cfg.Rank, Size: cfg.Size, Gather: gather, Machine: w.local})
	case "tcp":
		w.ep, err = tcp.Open(ctx, w.wire(gather))
	case "ucx":
		w.ep, err = ucx.Open(ctx, w.ucx(hellos, gather))
	case "mixed":
		w.ep, err = mixed.Open(ctx, mixed.Config{Rank: cfg.Rank, Size: cfg.Size, Hosts: w.hosts, Machine: w.local, Gather: gather, TCP: w.wire(gather)})
	}
	if err != nil {
		w.ep = nil // what Open returned beside the error is a nil of its own type
		if errors.Is(err, tcp.ErrInterface) {
			err = &SettingError{"WEFT_INTERFACES", strings.Join(cfg.Interfaces, ","), fmt.Errorf("interfaces (WEFT_INTERFACES): %w", err)}
		}
		return nil, err
	}
	if cfg.Log != nil && cfg.Rank == 0 {
		cfg.Log.Info("transport agreed", "kind", kind, "ranks", cfg.Size, "hosts", slices.Max(w.hosts)+1)
	}
	for r, why := range w.apart {
		if why != "" && cfg.Log != nil && (r == cfg.Rank || cfg.Rank == 0) {
			cfg.Log.Warn("a rank shares no memory with its host and uses tcp there", "rank", r, "why", why)
		}
	}
	if err := w.explainWays(kind); err != nil {
		return nil, err
	}
	return w.first(ctx, gather)
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

// wire is the configuration of tcp.
func (w *world) wire(gather transport.Gather) tcp.Config {
	cfg := &w.cfg
	return tcp.Config{Rank: cfg.Rank, Size: cfg.Size, Gather: gather, Token: cfg.Token, TLS: cfg.TLS, Interfaces: cfg.Interfaces, AllRails: cfg.AllRails, Discover: cfg.Discover, GPU: cfg.LocalRank,
		Streams: cfg.Streams, Outage: cfg.Outage, Congestion: cfg.Congestion, Checksum: checksums[cfg.Checksum], Event: w.events.Add, Log: cfg.Log}
}

// ucx is the configuration of UCX.
func (w *world) ucx(hellos []hello, gather transport.Gather) ucx.Config {
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

// build is which weft this is; empty if that is not known.
var build = sync.OnceValue(release.ID)

// explainWays prints how every pair of ranks talks, and who counts as a host of its own although it says otherwise.
func (w *world) explainWays(kind string) error {
	to := w.cfg.Explain
	if to == nil || w.cfg.Rank != 0 || w.cfg.Size == 1 {
		return nil
	}
	if _, err := fmt.Fprintf(to, "transport %s, %d ranks on %d hosts\n", kind, w.cfg.Size, slices.Max(w.hosts)+1); err != nil {
		return err
	}
	for r, why := range w.apart {
		if why != "" {
			if _, err := fmt.Fprintf(to, "rank %d counts as a host of its own: %s\n", r, why); err != nil {
				return err
			}
		}
	}
	if d, ok := w.ep.(transport.Describer); ok {
		return d.Describe(to)
	}
	return nil
}

// compare refuses ranks that cannot work together, and notes which claim to share a host.
func (w *world) compare(hellos []hello) error {
	first := map[string]int{}
	for rank, h := range hellos {
		if h.Version != version {
			return fmt.Errorf("rank %d speaks version %d, this one %d: run the same weft everywhere", rank, h.Version, version)
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
			return fmt.Errorf("rank 0 wants transport %q, rank %d %q: give all ranks the same WEFT_TRANSPORT", hellos[0].Transport, rank, h.Transport)
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
			return "", fmt.Errorf("rank %d requires transport %s, but %s would be used: %s; WEFT_TRANSPORT says what to use, WEFT_REQUIRE what it must come to", rank, h.Require, kind, why)
		}
	}
	if kind == "ucx" && w.cfg.TLS != nil {
		return "", fmt.Errorf("transport ucx does not encrypt, and TLS is asked for: use transport tcp or mixed, or leave WEFT_TLS out")
	}
	if kind == "shm" && hosts > 1 {
		return "", fmt.Errorf("transport shm reaches ranks of one host only, and there are %d hosts%s", hosts, apart)
	}
	return kind, nil
}

// newLedger makes the ledger if ranks may need one: rank 0's, where another transport than shared memory and no majority is asked
// for. It gives the number by which the others find it, 0 if there is none.
func (w *world) newLedger(id [16]byte) (number int) {
	cfg := &w.cfg
	if k := transportKind(cfg.Transport); cfg.Rank != 0 || cfg.Size == 1 || cfg.Quorum != "" && cfg.Quorum != "any" || k == "" || k == "shm" {
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

// first makes the communicator of all ranks once the endpoint is there.
func (w *world) first(ctx context.Context, gather transport.Gather) (*Comm, error) {
	w.mem, w.all = w.ep.Memory(), w.ep
	w.verbs = newVerbs(w.ep)
	w.tellers.none.L = &w.tellers.mu
	w.divide()
	everyone := make([]int, w.ep.Size())
	for i := range everyone {
		everyone[i] = i
	}
	c, err := w.newComm(0)
	if err != nil {
		return nil, err
	}
	c.enter(everyone)
	c.become(1, w.ep.Rank(), c.group.Members)
	can := byte(0)
	if m := w.memory(); m != nil && m.Pulls() {
		can |= canPull
	}
	if w.ledger != nil || w.mem != nil {
		can |= canKeep
	}
	blobs, err := gather(ctx, append(c.address().Append(nil), can))
	if err != nil {
		return nil, err
	}
	at := make([]board.Address, len(blobs))
	w.pulls = true
	keep := true
	var without []int
	for i, b := range blobs {
		if len(b) != board.AddressSize+1 {
			return nil, fmt.Errorf("rank %d sent %d bytes about itself, %d were expected: do all ranks run the same version?", i, len(b), board.AddressSize+1)
		}
		at[i] = board.AddressIn(b)
		if b[board.AddressSize]&canPull == 0 {
			w.pulls, without = false, append(without, i)
		}
		keep = keep && b[board.AddressSize]&canKeep != 0
	}
	if !keep { // some rank could not learn of a decision after the others have ended
		w.closeLedger()
		w.majority = w.majority || w.cfg.Quorum == "" && !w.ep.Can().OneProcess
	}
	if err := w.copies(without); err != nil {
		return nil, err
	}
	if w.inside != nil {
		w.inside.pulls = w.pulls
	}
	c.group.Host.Pulls = w.pulls
	if err := c.meet(at); err != nil {
		return nil, err
	}
	if err := w.measure(ctx, c, gather); err != nil {
		return nil, err
	}
	return c, c.layer(ctx)
}

// What a rank says that it can, in the byte behind its board's address.
const (
	canPull = 1 // read memory of the others
	canKeep = 2 // find out what was decided when all others have ended: it sees their boards, or has the ledger
)

// copies says that some ranks may not read others' memory, so that what is not registered is copied once more.
func (w *world) copies(ranks []int) error {
	if w.mem == nil || len(ranks) == 0 || w.cfg.Size == 1 {
		return nil
	}
	const text = "process_vm_readv is not allowed: buffers that are not from Alloc are copied twice; allow it (kernel.yama.ptrace_scope 0, or SYS_PTRACE for a container)"
	if w.cfg.Log != nil && w.cfg.Rank == ranks[0] {
		w.cfg.Log.Warn(text, "ranks", ranks)
	}
	if w.cfg.Explain != nil && w.cfg.Rank == 0 {
		_, err := fmt.Fprintf(w.cfg.Explain, "ranks %v: %s\n", ranks, text)
		return err
	}
	return nil
}

// measure finds out what the links cost, or what they cost last time.
func (w *world) measure(ctx context.Context, c *Comm, gather transport.Gather) error {
	if c.Size() == 1 {
		w.links = cost.Links{}
		return nil
	}
	if w.ep.Can().OneProcess {
		w.links = goroutines(c.Size())
	} else if err := w.find(ctx, c, gather); err != nil {
		return err
	}
	w.findInside()
	if w.cfg.Explain != nil && c.Rank() == 0 {
		return c.Explain(w.cfg.Explain)
	}
	return nil
}

// Explain writes the table of choices: which program runs a call of which size, what it is expected to take, and why.
func (c *Comm) Explain(w io.Writer) error {
	if c.Size() == 1 {
		_, err := fmt.Fprintln(w, "one rank: every call is a copy at most")
		return err
	}
	if c.world.cfg.Canonical {
		return c.library.table().ExplainCanonical(w)
	}
	if err := c.library.table().Explain(w); err != nil {
		return err
	}
	for _, m := range c.library.made().All() {
		sizes := fmt.Sprintf("from %s on", unit.Bytes(m.From))
		if m.To < 1<<62 {
			sizes = fmt.Sprintf("from %s to below %s", unit.Bytes(m.From), unit.Bytes(m.To+1))
		}
		if _, err := fmt.Fprintf(w, "made for these links: %s %s: %s; when it was made %s, and %s took %s\n", m.Op, sizes, m.Form, micros(m.Took), m.Instead, micros(m.Would)); err != nil {
			return err
		}
	}
	return nil
}

func micros(us float64) unit.Time { return unit.Time(us * float64(unit.Microsecond)) }

// Hosts are the hosts of the ranks, numbered from 0 as they come.
func (c *Comm) Hosts() []int {
	number, list := map[int]int{}, make([]int, c.Size())
	for r, m := range c.group.Members {
		h, known := number[c.world.hosts[m]]
		if !known {
			h = len(number)
			number[c.world.hosts[m]] = h
		}
		list[r] = h
	}
	return list
}

// Made is a program that was made for the links of certain ranks; see KeepMade.
type Made = choice.Made

// KeepMade keeps programs for worlds like this one: as many ranks, on the same hosts, over the same transport. They run from the
// next Join on, each for the sizes that it is for, where a call does not ask for another program or for canonical sums. It is for
// rank 0 of the world; an empty list takes them away. The file's path is returned.
func KeepMade(c *Comm, list []Made) (string, error) {
	if c.Rank() != 0 || c.world.key.Ranks != c.Size() {
		return "", fmt.Errorf("programs are kept by rank 0 of a whole world of processes; this is rank %d of %d", c.Rank(), c.Size())
	}
	dir, err := choice.Dir()
	if err != nil {
		return "", err
	}
	return choice.KeepMade(dir, c.world.key, list)
}

// goroutines are links between ranks of one process, as measured on a server of
// 2023 with a core a rank: worlds of goroutines are made often, for tests above
// all, and start at once.
func goroutines(n int) cost.Links {
	return cost.Links{Kind: "mem", Ranks: n, Cores: runtime.GOMAXPROCS(0), Sync: 0.5,
		Paces: []cost.Pace{{Traffic: 1 << 20, Byte: 2e-5}, {Traffic: 16 << 20, Byte: 4e-5}, {Traffic: 1 << 30, Byte: 1e-4}},
		Near:  cost.Link{Alpha: 0.5, Post: 0.2, Beta: 5e-5}}
}

// find measures the links between processes, or takes what was measured before.
func (w *world) find(ctx context.Context, c *Comm, gather transport.Gather) error {
	found, err := w.query(ctx, c.group.Members, gather)
	if err != nil {
		return err
	}
	if found.Note != "" && w.cfg.Log != nil {
		w.cfg.Log.Info(found.Note)
	}
	if w.cfg.Explain != nil && c.Rank() == 0 {
		if _, err := fmt.Fprintln(w.cfg.Explain, "links "+found.Origin); err != nil {
			return err
		}
	}
	w.links, w.key = found.Links, found.Key
	if len(found.Made) > 0 {
		w.made = choice.NewPrograms(found.Made)
	}
	return w.floor()
}

// query finds what the links between the ranks of the endpoint cost.
func (w *world) query(ctx context.Context, members []int, gather transport.Gather) (choice.Found, error) {
	port, err := w.ep.Port(transport.Group{Members: members, Words: calls.Words{}})
	if err != nil {
		return choice.Found{}, err
	}
	defer func() { _ = port.Close() }()
	dir, err := choice.Dir()
	if err != nil {
		dir = "" // nowhere to keep them: they are measured every time
	}
	return choice.Find(ctx, choice.Query{Port: port, Call: transport.Call{Seq: 1},
		Can: w.ep.Can(), Rank: w.ep.Rank(), Hosts: w.hosts, Shared: w.shared, Gather: gather, Dir: dir, Fresh: w.cfg.Measure, Known: w.cfg.Links, Busy: 1.3})
}

// floor refuses links that are slower than the configuration demands.
func (w *world) floor() error {
	if w.cfg.Floor == 0 {
		return nil
	}
	for _, x := range []struct {
		name string
		link cost.Link
	}{{"of a host", w.links.Near}, {"of different hosts", w.links.Far}} {
		if x.link.Beta <= 0 {
			continue
		}
		if r := unit.Rate(1e6 / max(x.link.Beta, x.link.Wire)); r < w.cfg.Floor {
			return fmt.Errorf("ranks %s reach %s over %s, and the floor is %s: find out why the links are slow, or lower the floor (WEFT_FLOOR, or bench --floor)", x.name, r, w.ep.Can().Name, w.cfg.Floor)
		}
	}
	return nil
}

// tables are shared by the communicators of a shape.
func (w *world) tables() *choice.Tables {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.choices == nil {
		w.choices = choice.NewTables(w.links, w.ep.Can())
	}
	return w.choices
}

// Local makes a world of n ranks that are goroutines of this process.
func Local(n int) ([]*Comm, error) {
	return LocalWith(n, Config{})
}

// LocalWith is Local with a time limit, the canonical mode or an explanation;
// the rest of the configuration does not apply.
func LocalWith(n int, cfg Config) ([]*Comm, error) {
	cfg.Size = n
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	eps := mem.New(n)
	comms, errs := make([]*Comm, n), make([]error, n)
	gather := newGathering(n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			own := cfg
			own.Rank = r
			w := &world{process: &process{cfg: own, majority: cfg.Quorum == "majority", started: time.Now()}, ep: eps[r], hosts: make([]int, n), pids: make([]int, n), local: n}
			if comms[r], errs[r] = w.first(context.Background(), gather.at(r)); errs[r] != nil {
				_ = eps[r].Close()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return comms, nil
}

// gathering gathers blobs between goroutines.
type gathering struct {
	mu    sync.Mutex
	cond  sync.Cond
	n     int
	round []int
	blobs map[int][][]byte
	got   map[int]int
}

func newGathering(n int) *gathering {
	g := &gathering{n: n, round: make([]int, n), blobs: map[int][][]byte{}, got: map[int]int{}}
	g.cond.L = &g.mu
	return g
}

// at is the Gather of a rank.
func (g *gathering) at(rank int) transport.Gather {
	return func(_ context.Context, mine []byte) ([][]byte, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		k := g.round[rank]
		g.round[rank]++
		if g.blobs[k] == nil {
			g.blobs[k] = make([][]byte, g.n)
		}
		g.blobs[k][rank] = slices.Clone(mine)
		g.got[k]++
		g.cond.Broadcast()
		for g.got[k] < g.n {
			g.cond.Wait()
		}
		return g.blobs[k], nil
	}
}
