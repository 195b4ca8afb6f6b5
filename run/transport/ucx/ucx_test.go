//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

var bodies = map[string]conform.Body{}

func TestMain(m *testing.M) { os.Exit(conform.Main(m, bodies)) }

// ways are the transports that UCX has on a machine without network cards.
var ways = []string{"posix", "sysv", "posix,cma", "tcp"}

func need(t testing.TB) {
	t.Helper()
	if _, err := Version(); err != nil {
		t.Skip(err)
	}
}

func init() {
	bodies["scenario"] = func(c *conform.Child) error {
		s, err := conform.Find(c.Args[0])
		if err != nil {
			return err
		}
		e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather, Transports: strings.Split(c.Args[1], ",")})
		if err != nil {
			return err
		}
		if err := s.Run(e); err != nil {
			return err
		}
		return e.Close()
	}
	bodies["required"] = func(c *conform.Child) error {
		e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather, Transports: []string{c.Args[1]},
			Messages: c.Args[0]})
		if err != nil {
			return err
		}
		var b strings.Builder
		if err := e.Describe(&b); err != nil {
			return err
		}
		if !strings.Contains(b.String(), "posix/memory") || e.Can().Name != "ucx posix" {
			return fmt.Errorf("%s says of itself %q", e.Can().Name, b.String())
		}
		return e.Close()
	}
}

// Every scenario runs between processes over shared memory, and over each other transport those that depend on it.
// With WEFT_TEST_LONG=1 all run over all: a minute.
func TestConform(t *testing.T) {
	need(t)
	some := []string{"sizes", "different calls", "sending given up", "last words", "written before the notice", "fetch and add"}
	for _, how := range ways {
		for _, s := range conform.Scenarios() {
			if s.Memory || how != "posix,cma" && !slices.Contains(some, s.Name) && os.Getenv("WEFT_TEST_LONG") == "" {
				continue
			}
			t.Run(how+"/"+s.Name, func(t *testing.T) {
				c := conform.Spawn(t, s.Ranks, "scenario", s.Name, how)
				for range 2 {
					if err := c.Gather(); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.Wait(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func TestLanes(t *testing.T) {
	const text = `#
# UCP endpoint rank 1
#
#               peer: <no debug data>
#                 lane[0]:  0:sysv/memory.0 md[0]           -> md[0]/sysv/sysdev[255] amo#0 am am_bw#0
#                 lane[1]:  2:cma/memory.0 md[2]           -> md[2]/cma/sysdev[255] rma_bw#0
#                 lane[2]:  11:rc_mlx5/mlx5_0:1.0 md[4]    -> md[4]/ib/sysdev[0] am_bw#1 wireup
#
#                 tag_send: 0..<egr/short>..92..<egr/bcopy>..8247..<rndv>..(inf)
`
	lanes := parseLanes(text)
	if len(lanes) != 3 || lanes[2].name != "rc_mlx5" || lanes[2].device != "mlx5_0:1" ||
		!slices.Equal(lanes[0].uses, []string{"amo#0", "am", "am_bw#0"}) {
		t.Fatalf("got %+v", lanes)
	}
	if got := names(lanes); !slices.Equal(got, []string{"sysv", "cma", "rc_mlx5"}) {
		t.Errorf("names %v", got)
	}
	if l := carries(lanes); l == nil || l.name != "sysv" {
		t.Errorf("messages go over %+v", l)
	}
	if carries(nil) != nil || names(nil) != nil {
		t.Error("lanes of nothing")
	}
}

// Names are those that UCX has here or elsewhere; others are refused with what there is.
func TestNames(t *testing.T) {
	need(t)
	here, err := Available()
	if err != nil || !slices.Contains(here, "tcp") || !slices.Contains(here, "self") {
		t.Fatalf("UCX has %v here, %v", here, err)
	}
	for _, good := range [][]string{{"tcp"}, {"rc", "rc_mlx5"}, {"^tcp", "cma"}, {`\sm`}, {"ud_verbs:aux"}, {"all"}, here} {
		if err := Check(good); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	for _, bad := range []string{"nosuch", "TCP", " tcp", ""} {
		if err := Check([]string{"tcp", bad}); err == nil || !strings.Contains(err.Error(), "here it has "+strings.Join(here, ", ")) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for want, list := range map[string][]string{"": {"tcp", "rc", "^dc_mlx5"}, "dc_mlx5": {"tcp", "dc_mlx5"}} {
		if err := missing(list, []string{"self", "tcp"}); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", list, err)
		}
	}
	const text = "#     component 1  :  tcp\n#      resource 1  :  md 1  dev 1  flags -- tcp/lo\n#      resource 2  :  md 1  dev 2  flags -- tcp/eth0\n# resource 3  :  md 2  dev 3  flags -- rc_mlx5/mlx5_0:1\n"
	if got := parseResources(text); !slices.Equal(got, []string{"rc_mlx5", "tcp"}) {
		t.Errorf("resources %v", got)
	}
}

func FuzzLanes(f *testing.F) {
	f.Add("# lane[0]:  0:sysv/memory.0 md[0] -> md[0]/sysv am")
	f.Fuzz(func(t *testing.T, text string) {
		parseResources(text)
		for _, l := range parseLanes(text) {
			if l.name == "" {
				t.Errorf("a lane without a name in %q", text)
			}
		}
	})
}

// A header is read as it was written, and whatever else comes is refused or is a header.
func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, headerSize), 0)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		var h header
		world := uint64(0)
		if len(b) >= 8 {
			world = binary.LittleEndian.Uint64(b)
		}
		if h.parse(b, world, 8, n) != nil {
			return
		}
		var again [headerSize]byte
		h.put(&again)
		var back header
		if err := back.parse(again[:], world, 8, n); err != nil || back != h {
			t.Errorf("%+v is read back as %+v: %v", h, back, err)
		}
	})
}

// What cannot be is said, and nobody waits for a rank that cannot take part.
func TestWrongConfig(t *testing.T) {
	for _, c := range []Config{{}, {Size: 2, Rank: 2}, {Size: 2}} {
		if _, err := Open(context.Background(), c); err == nil {
			t.Errorf("rank %d of %d is accepted", c.Rank, c.Size)
		}
	}
	if _, err := open("libnosuchthing.so.0"); !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "libucx0") {
		t.Errorf("without the library: %v, want the package that has it", err)
	}
}

// Messages must go over what is required, or no rank starts.
func TestRequired(t *testing.T) {
	need(t)
	for _, x := range []struct{ want, allowed, err string }{
		{"posix", "posix", ""},
		{"tcp", "posix", "messages from rank 0 to rank 1 go over posix/memory, and tcp is required"},
		{"", "nosuch", `ucx: there is no transport "nosuch" on this machine; UCX has `},
	} {
		c := conform.Spawn(t, 2, "required", x.want, x.allowed)
		if err := c.Gather(); err != nil {
			t.Fatal(err)
		}
		if x.allowed == "posix" {
			if err := c.Gather(); err != nil {
				t.Fatal(err)
			}
		}
		err := c.Wait()
		if (x.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s required: got %v, want %q", x.want, err, x.err)
		}
	}
}

// Memory behind a part of it that was registered once more is found, and each is given back by itself.
func TestRegionsMayOverlap(t *testing.T) {
	need(t)
	e, err := Open(context.Background(), Config{Size: 1, Transports: []string{"posix"}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	b, err := e.verbs.Alloc(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := e.verbs.Key(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []int{0, 4096} {
		part, err := e.Register(address(b[from:]), 4096, HostMemory)
		if err != nil {
			t.Fatal(err)
		}
		if k, err := e.verbs.Key(b[from : from+10]); err != nil || k != part {
			t.Errorf("in the part at %d: key %#x, %v, want %#x", from, k, err, part)
		}
		if k, err := e.verbs.Key(b[40000:]); err != nil || k != whole+40000 {
			t.Errorf("behind the part at %d: key %#x, %v, want %#x", from, k, err, whole+40000)
		}
		if err := e.Unregister(address(b[from:])); err != nil {
			t.Error(err)
		}
		if err := e.Unregister(address(b[from:])); err == nil {
			t.Errorf("the part at %d was given back twice", from)
		}
	}
	if _, err := e.Register(address(b), 4096, HostMemory); err != nil {
		t.Fatal(err)
	}
	if err := e.verbs.Free(b); err != nil {
		t.Error(err)
	}
	if err := e.Unregister(address(b)); err != nil {
		t.Errorf("Free took the registration of the same memory: %v", err)
	}
}

// What an operation's end leaves to be done is done, also if a region is given up meanwhile in which others are under way.
func TestRegionGoesWhileOthersFail(t *testing.T) {
	need(t)
	e, err := start(Config{Rank: 0, Size: 3, Transports: []string{"posix"}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.destroy()
	v := e.verbs
	v.mu.Lock()
	defer v.unlock()
	var parted []int
	e.w.parted = func(p *peer) { parted = append(parted, p.rank) }
	lost, busy := &peer{rank: 1}, &peer{rank: 2, far: map[uint64]*remote{7: {known: true, using: 1}}}
	fails, runs := v.slot(nil), v.slot(nil)
	fails.status.Store(-25) // the connection was reset
	v.running = []*op{{peer: lost, s: fails}, {peer: busy, s: runs, far: busy.far[7]}}
	v.dropKey(busy, 7)
	v.settle()
	if !slices.Equal(parted, []int{1}) || lost.gone.Load() == nil {
		t.Errorf("those that wait for rank 1 are not told: %v", parted)
	}
	if len(busy.far) != 1 {
		t.Error("the region is gone while an operation is under way there")
	}
	runs.status.Store(0)
	v.drain()
	if len(busy.far) != 0 || len(v.todo) != 0 {
		t.Errorf("%d regions and %d things to do are left", len(busy.far), len(v.todo))
	}
}

// A notice after writes that were lost is not sent: it would say that they are there.
func TestNoNoticeAfterLostWrites(t *testing.T) {
	need(t)
	e, err := start(Config{Rank: 0, Size: 2, Transports: []string{"posix"}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.destroy()
	v := e.verbs
	v.mu.Lock()
	defer v.unlock()
	p := &peer{rank: 1}
	flush := v.slot(nil)
	flush.status.Store(-25)
	p.ops = []*op{{kind: opNotify, peer: p, ticket: 3, flush: flush}}
	v.issue(p)
	if len(v.done) != 1 || v.done[0].Ticket != 3 || v.done[0].Err == nil || p.told != 0 {
		t.Errorf("completions %+v, %d messages sent; want an error and none", v.done, p.told)
	}
}

// A key is not noted as held by a rank that is gone: nothing would ever let go of it.
func TestKeyIsNotGivenToTheDead(t *testing.T) {
	need(t)
	e, err := start(Config{Rank: 0, Size: 2, Transports: []string{"posix"}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.destroy()
	v := e.verbs
	v.mu.Lock()
	defer v.unlock()
	p := &peer{rank: 1}
	p.gone.Store(&transport.Gone{Rank: 1})
	r := &region{b: make([]byte, 8), named: true, packed: make([]byte, 9)}
	v.add(r)
	v.tellKey(p, r.number)
	if len(r.holders) != 0 {
		t.Errorf("held by %v", r.holders)
	}
	delete(v.numbered, r.number) // it is not UCX's
}

// A call whose message was given up before the call began here ends.
func TestGivenUpBeforeTheCall(t *testing.T) {
	need(t)
	e, err := start(Config{Rank: 0, Size: 2, Transports: []string{"posix"}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.destroy()
	from := &peer{rank: 1, open: map[uint64]*inbound{}}
	e.w.peers[1] = from
	x, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	in := &inbound{from: from, dead: true}
	c := transport.Call{Seq: 1, Epoch: 1, Comm: 1}
	in.h.kind, in.h.length = kindData, 100
	c.Put(in.h.call[:])
	p := x.(*port)
	p.ahead = []*inbound{in}
	p.Begin(transport.Call{Seq: 1}, nil)
	if err := p.Disagrees(); err == nil || !strings.Contains(err.Error(), "rank 1 gave up sending a message of 100 bytes") {
		t.Errorf("the call goes on: %v", err)
	}
}
