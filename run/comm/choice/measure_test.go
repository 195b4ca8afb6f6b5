package choice

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/mem"
	"github.com/weft-fabric/weft/run/transport/shm"
	"github.com/weft-fabric/weft/run/transport/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// meeting gathers between the goroutines of a test.
type meeting struct {
	mu     sync.Mutex
	rounds [][][]byte
	left   []int
	full   []chan struct{}
	n      int
}

// at is the gather of a rank, for its rounds one after another.
func (m *meeting) at(rank int) transport.Gather {
	round := -1
	return func(ctx context.Context, mine []byte) ([][]byte, error) {
		round++
		m.mu.Lock()
		if round == len(m.rounds) {
			m.rounds, m.left, m.full = append(m.rounds, make([][]byte, m.n)), append(m.left, m.n), append(m.full, make(chan struct{}))
		}
		m.rounds[round][rank] = mine
		if m.left[round]--; m.left[round] == 0 {
			close(m.full[round])
		}
		all, full := m.rounds[round], m.full[round]
		m.mu.Unlock()
		select {
		case <-full:
			return all, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

var call = transport.Call{Epoch: 1, Comm: 9, Seq: 1}

// ranks runs f on every rank over run/transport/mem.
func ranks(t *testing.T, n int, f func(rank int, port transport.Port, gather transport.Gather) error) []error {
	t.Helper()
	ends := mem.New(n)
	return over(t, n, func(rank int, _ transport.Gather) (transport.Endpoint, error) { return ends[rank], nil }, f)
}

// over runs f on every rank over some transport.
func over(t *testing.T, n int, open func(rank int, gather transport.Gather) (transport.Endpoint, error),
	f func(rank int, port transport.Port, gather transport.Gather) error) []error {
	t.Helper()
	m := &meeting{n: n}
	ends, errs, members := make([]transport.Endpoint, n), make([]error, n), make([]int, n)
	for r := range members {
		members[r] = r
	}
	var group sync.WaitGroup
	for r := range n {
		group.Go(func() {
			gather := m.at(r)
			var port transport.Port
			if ends[r], errs[r] = open(r, gather); errs[r] != nil {
				return
			}
			if port, errs[r] = ends[r].Port(transport.Group{ID: 9, Epoch: 1, Members: members}); errs[r] == nil {
				errs[r] = errors.Join(f(r, port, gather), port.Close())
			}
		})
	}
	group.Wait()
	for _, e := range ends {
		if e == nil {
			continue
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	return errs
}

// All ranks end with the same links, whatever the number of ranks and hosts, and
// a table can be made of them.
func TestMeasure(t *testing.T) {
	for name, hosts := range map[string][]int{"one rank": {0}, "two": {0, 0}, "five": {0, 0, 0, 0, 0}, "two hosts": {0, 0, 1, 1},
		"uneven hosts": {4, 1, 4, 4}, "a host each": {0, 1, 2}, "forty": make([]int, 40)} {
		t.Run(name, func(t *testing.T) {
			n := len(hosts)
			got := make([]cost.Links, n)
			start := time.Now()
			for r, err := range ranks(t, n, func(rank int, port transport.Port, gather transport.Gather) (err error) {
				got[rank], err = Measure(t.Context(), port, call, rank, hosts, gather)
				return err
			}) {
				if err != nil {
					t.Fatalf("rank %d: %v", r, err)
				}
			}
			text, _ := json.Marshal(got[0])
			t.Logf("in %v: %s", time.Since(start), text)
			for r := range got {
				if !reflect.DeepEqual(got[r], got[0]) {
					t.Errorf("rank %d has %+v, rank 0 %+v", r, got[r], got[0])
				}
			}
			l := got[0]
			if err := l.Check(); err != nil {
				t.Error(err)
			}
			if l.Ranks != n || l.Cores < 1 || len(l.Paces) != 3 || n > 1 && l.Sync <= 0 {
				t.Errorf("%+v", l)
			}
			several := n > 1 && hosts[0] != hosts[n-1] || name == "uneven hosts"
			if several != (l.Far != cost.Link{}) || several && (l.Far.Wire <= 0 || l.Far.Beta <= 0) {
				t.Errorf("far links %+v", l.Far)
			}
			if mates := n > 1 && name != "a host each"; mates != (l.Near != cost.Link{}) || mates && l.Near.Beta <= 0 {
				t.Errorf("near links %+v", l.Near)
			}
			if _, err := New(l, can["tcp"], n, hosts).Pick(sched.AllReduce, 0, 1<<20, false); err != nil {
				t.Error(err)
			}
		})
	}
}

// The same over the transports between processes: messages cost more over TCP
// than a pass through memory does.
func TestMeasureOverTransports(t *testing.T) {
	const n = 3
	for kind, open := range map[string]func(rank int, gather transport.Gather) (transport.Endpoint, error){
		"tcp": func(rank int, gather transport.Gather) (transport.Endpoint, error) {
			return tcp.Open(t.Context(), tcp.Config{Rank: rank, Size: n, Gather: gather})
		},
		"shm": func(rank int, gather transport.Gather) (transport.Endpoint, error) {
			return shm.Open(t.Context(), shm.Config{Rank: rank, Size: n, Gather: gather})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			var got [n]cost.Links
			for r, err := range over(t, n, open, func(rank int, port transport.Port, gather transport.Gather) (err error) {
				got[rank], err = Measure(t.Context(), port, call, rank, make([]int, n), gather)
				return err
			}) {
				if err != nil {
					t.Fatalf("rank %d: %v", r, err)
				}
			}
			l := got[0]
			text, _ := json.Marshal(l)
			t.Logf("%s", text)
			if !reflect.DeepEqual(l, got[1]) || !reflect.DeepEqual(l, got[2]) {
				t.Errorf("%+v", got)
			}
			if kind == "tcp" && (l.Near.Beta < l.Paces[0].Byte || l.Near.Alpha+2*l.Near.Post < 0.5) {
				t.Errorf("messages over TCP for nothing: %+v", l)
			}
		})
	}
}

// A measurement ends with its context, on every rank, also if one is missing.
func TestMeasureEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no time")
	errs := ranks(t, 3, func(rank int, port transport.Port, gather transport.Gather) error {
		if rank == 2 {
			cancel(why)
			return nil
		}
		_, err := Measure(ctx, port, call, rank, []int{0, 0, 0}, gather)
		return err
	})
	for _, err := range errs[:2] {
		if !errors.Is(err, why) {
			t.Errorf("%v, want %v", err, why)
		}
	}
}

// What ranks found is joined by medians, and what they did not find is an error.
func TestCombine(t *testing.T) {
	one := func(cores int, sync, small, more, large float64) []byte {
		f := findings{Cores: cores, Used: 10, Wall: 30, Sync: sync, Paces: []cost.Pace{{Traffic: 1000, Byte: sync * 1e-6}},
			Near: exchange{Small: small, More: more, Large: large}}
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	all := [][]byte{one(8, 1, 10, 2, 10+1e-3*(256<<10-8)), one(2, 3, 12, 300, 99999), one(4, 2, 8, 1, 11)}
	f, err := combine(all, []int{0, 0, 0}, 1)
	if err != nil || f.Busy != 2 { // the cores worked for 30 of twice 30
		t.Fatal(f.Busy, err)
	}
	l, err := f.links([]int{0, 0, 0})
	if err != nil {
		t.Fatal(err)
	}
	// Three ranks on two cores: a core's time is two thirds of what passes.
	post := 2.0 / 2 / 1.5
	want := cost.Links{Ranks: 3, Cores: 2, Hosts: 1, Sync: 2, Paces: []cost.Pace{{Traffic: 1000, Byte: 2e-6}},
		Near: cost.Link{Alpha: 8, Post: post, Beta: 1e-3 / 2 / 1.5}}
	if l.Near.Beta = float64(int(l.Near.Beta*1e9+0.5)) / 1e9; l.Near.Beta != float64(int(want.Near.Beta*1e9+0.5))/1e9 {
		t.Errorf("%g us a byte, want %g", l.Near.Beta, want.Near.Beta)
	}
	if l.Near.Beta, want.Near.Beta = 0, 0; !reflect.DeepEqual(l, want) {
		t.Errorf("%+v, want %+v", l, want)
	}
	for _, wrong := range [][][]byte{{}, all[:2], {all[0], all[1], []byte("{")}, {all[0], all[1], []byte("{}")}} {
		if f, err := combine(wrong, []int{0, 0, 0}, 1); err == nil {
			t.Errorf("%d findings give %+v", len(wrong), f)
		}
	}
}

// Links are measured once; then they come out of the cache, for which no port is needed.
// A spoiled cache is measured anew, and so are links on demand.
func TestFind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache", "weft")
	hosts, busy := []int{0, 0}, 0.0
	find := func(measures, fresh bool, known *cost.Links) Found {
		t.Helper()
		var found [2]Found
		for r, err := range ranks(t, 2, func(rank int, port transport.Port, gather transport.Gather) (err error) {
			q := Query{Port: port, Call: call, Can: can["mem"], Rank: rank, Hosts: hosts, Gather: gather, Dir: dir, Fresh: fresh, Busy: busy,
				Known: known}
			if !measures {
				q.Port = nil
			}
			found[rank], err = Find(t.Context(), q)
			return err
		}) {
			if err != nil {
				t.Fatalf("rank %d: %v", r, err)
			}
		}
		if !reflect.DeepEqual(found[0].Links, found[1].Links) || found[0].Origin != found[1].Origin || found[0].Kind != "mem" ||
			found[0].Ranks != 2 {
			t.Errorf("%+v and %+v", found[0], found[1])
		}
		return found[0]
	}
	tells := func(x Found, origin, note string) {
		t.Helper()
		if !strings.HasPrefix(x.Origin, origin) || !strings.Contains(x.Note, note) || note == "" && x.Note != "" {
			t.Errorf("%q and %q, want %q and %q", x.Origin, x.Note, origin, note)
		}
	}
	first := find(true, false, nil)
	tells(first, "measured in ", "")
	kept := find(false, false, nil)
	if tells(kept, "kept since 20", ""); !reflect.DeepEqual(kept.Links, first.Links) {
		t.Errorf("%+v out of the cache, %+v measured", kept, first)
	}
	// Ranks that go on without one that died have what is kept.
	other := desk(3)
	other.Kind = "mem"
	tells(find(false, false, &other), "kept since ", "")
	// What was asked for takes the place of what was kept.
	asked := find(true, true, nil)
	tells(asked, "measured in ", "")
	if kept := find(false, false, nil); !reflect.DeepEqual(kept.Links, asked.Links) {
		t.Errorf("%+v out of the cache, %+v measured", kept, asked)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 || !strings.HasPrefix(filepath.Base(files[0]), "links-mem-2-") {
		t.Fatalf("%v, %v", files, err)
	}
	if err := os.WriteFile(files[0], []byte("{\"version\": 3"), 0o644); err != nil {
		t.Fatal(err)
	}
	tells(find(true, false, nil), "measured in ", files[0]+" not used: unexpected EOF")
	// On a host that is always busy the ranks measure a few times; the quietest is kept.
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	busy = 1e-9
	for range tries {
		x := find(true, false, nil)
		if tells(x, "measured in ", ""); !strings.Contains(x.Origin, "doubtful") || !x.Doubtful {
			t.Error(x.Origin)
		}
	}
	if x := find(false, false, nil); !x.Doubtful {
		t.Error(x.Origin)
	}
	// Asked for anew, they are not sure again.
	find(true, true, nil)
	find(true, false, nil)
	// A directory that cannot be made costs the cache, not the run; links of an earlier
	// meeting serve as well.
	dir = filepath.Join(files[0], "below a file")
	tells(find(true, false, nil), "measured in ", "not a directory")
	tells(find(false, false, &other), "known of an earlier meeting", "not a directory")
}

// Links that were measured on a busy machine, and taken for good, do not stay: a few messages tell. Those that were measured on a
// quieter one than this do.
func TestOutdatedLinks(t *testing.T) {
	dir := t.TempDir()
	find := func() (found [3]Found) {
		t.Helper()
		for r, err := range ranks(t, 3, func(rank int, port transport.Port, gather transport.Gather) (err error) {
			found[rank], err = Find(t.Context(), Query{Port: port, Call: call, Can: can["tcp"], Rank: rank, Hosts: []int{0, 0, 1},
				Gather: gather, Dir: dir})
			return err
		}) {
			if err != nil {
				t.Fatalf("rank %d: %v", r, err)
			}
		}
		return found
	}
	first := find()[0]
	for _, x := range []struct {
		times float64
		how   string
	}{{1e6, "measured in "}, {1e-6, "kept since "}} { // however busy this machine is
		f, note := load(dir, first.Key)
		if note != "" {
			t.Fatal(note)
		}
		f.Made, f.Kept.Far.Small = tries, f.Kept.Far.Small*x.times
		if err := save(dir, f); err != nil {
			t.Fatal(err)
		}
		for r, got := range find() {
			if !strings.HasPrefix(got.Origin, x.how) || (r == 0 && x.times > 1) != strings.Contains(got.Note, "measured again") {
				t.Errorf("%g times as long, rank %d: %q, %q", x.times, r, got.Origin, got.Note)
			}
		}
	}
}

// Ranks that waited for cores while they exchanged messages were not alone, unless there are more of them than cores.
func TestBusyMessages(t *testing.T) {
	for _, x := range []struct {
		waited float64
		hosts  []int
		shared int
		busy   float64
	}{{0, []int{0, 1}, 1, 1}, {20, []int{0, 1}, 1, 3}, {10, []int{0, 0, 0, 0}, 1, 1}, {10, []int{0, 1, 2, 3}, 4, 1},
		{30, []int{0, 1, 2, 3}, 4, 2}, {30, []int{0, 0, 1, 1}, 2, 2}} {
		var all [][]byte
		for range x.hosts {
			text, err := json.Marshal(findings{Cores: 2, Ran: 10, Waited: x.waited, Paces: []cost.Pace{{Traffic: 1, Byte: 1}}})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text)
		}
		if f, err := combine(all, x.hosts, x.shared); err != nil || f.Busy != x.busy {
			t.Errorf("%g us of waiting on hosts %v: %g, want %g; %v", x.waited, x.hosts, f.Busy, x.busy, err)
		}
	}
}

// How many cores one process is to use says nothing about those of the host.
func TestCores(t *testing.T) {
	t.Setenv("GOMAXPROCS", "1")
	if got := cores(); got != runtime.NumCPU() {
		t.Errorf("%d cores with GOMAXPROCS=1, want the host's %d", got, runtime.NumCPU())
	}
	t.Setenv("GOMAXPROCS", "")
	if got := cores(); got != runtime.GOMAXPROCS(0) {
		t.Errorf("%d cores, want the %d that the system allows", got, runtime.GOMAXPROCS(0))
	}
}

// A large message between hosts goes over all rails, so the way out is as wide as they are together.
func TestWireOfRails(t *testing.T) {
	hosts := []int{0, 1}
	for rails, want := range map[int]float64{0: 8e-4, 1: 8e-4, 2: 4e-4, 4: 2e-4} {
		f := figures{Cores: 16, Rails: rails, Paces: []cost.Pace{{Traffic: 1, Byte: 1e-6}},
			Far: exchange{Small: 10, More: 2, Large: 10 + 8e-4*float64(largeFor(1)-small)}}
		l, err := f.links(hosts)
		if err != nil {
			t.Fatal(err)
		}
		if r := l.Far.Wire / want; r < 0.99 || r > 1.01 {
			t.Errorf("%d rails: %g us a byte, want %g", rails, l.Far.Wire, want)
		}
	}
}

// unfair is a port whose host has one way out that lets one of its two ranks go first in one round, and the other in the next.
type unfair struct {
	transport.Port
	rank int
	out  *wayOut
	sent int
}

// wayOut takes a millisecond for a large message. The ranks take turns by rounds of chain messages.
type wayOut struct {
	mu   sync.Mutex
	free *sync.Cond
	sent [2]int
}

func (u *unfair) Send(to, channel int, b []byte) error {
	if len(b) > small && to/2 != u.rank/2 {
		seat, round := u.rank%2, u.sent/chain
		u.sent++
		w := u.out
		w.mu.Lock()
		for seat != round%2 && w.sent[1-seat] < (round+1)*chain {
			w.free.Wait()
		}
		time.Sleep(time.Millisecond) // the wire
		w.sent[seat]++
		w.free.Broadcast()
		w.mu.Unlock()
	}
	return u.Port.Send(to, channel, b)
}

// Ranks that share their host's way out unequally, now one and now the other, do not find it faster than it is: two ranks send one
// message of a millisecond each. A machine that does other work as well may be measured wrong, not five times.
func TestSharedWayOut(t *testing.T) {
	var took float64
	for range 5 {
		var outs [2]wayOut
		for i := range outs {
			outs[i].free = sync.NewCond(&outs[i].mu)
		}
		hosts, large := []int{0, 0, 1, 1}, make([]float64, 4)
		errs := ranks(t, len(hosts), func(rank int, port transport.Port, gather transport.Gather) error {
			f, err := newProbe(t.Context(), &unfair{Port: port, rank: rank, out: &outs[rank/2]}, call, rank, hosts, 1).measure(1, gather)
			large[rank] = f.Far.Large
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if took = slices.Min(large); took >= 1800 {
			return
		}
	}
	t.Errorf("a large message between hosts takes %.0f us; two ranks send one each, which take 1000 us one after the other", took)
}
