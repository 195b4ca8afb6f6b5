package comm

import (
	"encoding/json"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/nslab"
	"github.com/weft-fabric/weft/run/comm/internal/board"
)

// Three hosts with two rails each: an all-reduce uses both rails, and one that
// is cut in the middle of a run costs nothing but its share of the rate.
func TestThreeHostsTwoRails(t *testing.T) {
	const hosts = 3
	lab := nslab.New(t, hosts, 2)
	var list procs
	for rank := range hosts {
		cmd := bounded.Server(t, "/proc/self/exe")
		cmd.Env = append(os.Environ(), envBody+"=serve", "RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(hosts), "LOCAL_RANK=0",
			"MASTER_ADDR="+nslab.Addr(0, 0).String(), "MASTER_PORT=7177", "WEFT_TOKEN=of the tests", "WEFT_RAILS=all", "WEFT_TIMEOUT=30s",
			"WEFT_LOG=off")
		if err := lab.Do(rank, func() error {
			list = append(list, startProc(t, cmd, rank, nil))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	list.joined()
	carried := func() (all [hosts][2]uint64) {
		for h := range hosts {
			for r := range 2 {
				sent, _, err := lab.Bytes(h, r)
				if err != nil {
					t.Fatal(err)
				}
				all[h][r] = sent
			}
		}
		return all
	}
	right := func(what string, o order) {
		t.Helper()
		for r, e := range list.all(o) {
			if e.Err != "" || e.Data != "complete" {
				t.Errorf("%s: rank %d: %s %s", what, r, e.Data, e.Err)
			}
		}
	}
	list.all(order{Do: "dup"})
	const count = 2 << 20
	large := order{Do: "op", Op: "all-reduce", Count: count, Times: 3}
	// Messages of many pieces, and of two.
	for _, o := range []order{large, {Do: "op", Op: "all-gather", Count: 128 << 10, Times: 20}} {
		before := carried()
		right("both rails", o)
		after := carried()
		for h := range hosts {
			a, b := after[h][0]-before[h][0], after[h][1]-before[h][1]
			if total := a + b; total > 1<<20 && min(a, b) < total/5 {
				t.Errorf("%s of %d elements: host %d sent %d bytes over one rail and %d over the other", o.Op, o.Count, h, a, b)
			}
		}
	}
	list.order(order{Do: "counters"})
	for r, e := range list.await("counters") {
		var c map[string]uint64
		if err := json.Unmarshal(e.Value, &c); err != nil {
			t.Fatal(err)
		}
		for _, rail := range []string{"r0", "r1"} {
			if c["rail."+rail+".sent.bytes"] == 0 || c["rail."+rail+".received.bytes"] == 0 {
				t.Errorf("rank %d moved nothing over %s: %v", r, rail, c)
			}
		}
	}

	// A link is cut while the ranks are inside: what it had not delivered goes over the other rail.
	large.Times, large.Tell, large.Limit = 6, true, 20*time.Second
	list.order(large)
	list.await("inside")
	if err := lab.Cut(1, 0); err != nil {
		t.Fatal(err)
	}
	for r, e := range list.await("op") {
		if e.Err != "" || e.Data != "complete" {
			t.Errorf("one rail cut: rank %d: %s %s", r, e.Data, e.Err)
		}
	}
	right("on one rail", order{Do: "op", Op: "all-reduce,reduce-scatter,all-to-all,barrier", Count: 30000, Times: 2})
	list.finish()
}

// Two hosts of four ranks with two rails: messages of one piece, of which each rank sends its own, use both rails alike.
func TestRanksOfAHostShareRails(t *testing.T) {
	const hosts = 2
	lab := nslab.New(t, hosts, 2)
	list := onHosts(t, lab, hosts, 4, "serve", "WEFT_RAILS=all")
	list.all(order{Do: "dup"})
	sent := func(h int) (all [2]uint64) {
		for r := range all {
			n, _, err := lab.Bytes(h, r)
			must(t, err)
			all[r] = n
		}
		return all
	}
	before := [hosts][2]uint64{sent(0), sent(1)}
	for r, e := range list.all(order{Do: "op", Op: "all-reduce", Count: 128 << 10, Times: 20}) {
		if e.Err != "" || e.Data != "complete" {
			t.Errorf("rank %d: %s %s", r, e.Data, e.Err)
		}
	}
	for h := range hosts {
		now := sent(h)
		a, b := now[0]-before[h][0], now[1]-before[h][1]
		if total := a + b; total < 1<<20 || min(a, b) < total/3 {
			t.Errorf("host %d sent %d bytes over one rail and %d over the other", h, a, b)
		}
	}
	list.finish()
}

// Ranks that lay shared memory out differently do not join: their results would be wrong.
func TestLayoutsMustAgree(t *testing.T) {
	w := &world{process: &process{}}
	hellos := []hello{{Version: version, Host: "a", Layout: board.Hash()}, {Version: version, Host: "a", Layout: board.Hash() + 1}}
	err := w.compare(hellos)
	if err == nil || !strings.Contains(err.Error(), "rank 1 lays shared memory out as") || !strings.Contains(err.Error(), "same build") {
		t.Errorf("%v", err)
	}
	hellos[1].Layout = hellos[0].Layout
	w = &world{process: &process{}}
	if err := w.compare(hellos); err != nil {
		t.Fatal(err)
	}
	if kind, err := w.agree(hellos); err != nil || kind != "shm" {
		t.Errorf("%s, %v", kind, err)
	}
}

// Hosts are what ranks say, and what is found true: a pair that cannot share memory counts as two hosts, and says why.
func TestAgreeOnTransport(t *testing.T) {
	h := func(hosts string) (list []hello) {
		for _, c := range hosts {
			list = append(list, hello{Version: version, Host: string(c), Layout: board.Hash()})
		}
		return list
	}
	for hosts, want := range map[string]string{"aaaa": "shm", "ab": "tcp", "aabb": "mixed", "aaab": "mixed", "abab": "mixed"} {
		w := &world{process: &process{}}
		hellos := h(hosts)
		if err := w.compare(hellos); err != nil {
			t.Fatal(err)
		}
		if kind, err := w.agree(hellos); err != nil || kind != want {
			t.Errorf("%s: %s, %v; want %s", hosts, kind, err, want)
		}
	}
	w := &world{process: &process{}}
	hellos := h("aab")
	for i := range hellos {
		hellos[i].Require = "shm"
	}
	if err := w.compare(hellos); err != nil {
		t.Fatal(err)
	}
	w.apart = []string{"", "", "another user"}
	if _, err := w.agree(hellos); err == nil || !strings.Contains(err.Error(),
		"rank 0 requires transport shm, but mixed would be used: the ranks are on 2 hosts; rank 2 counts as a host of its own: another user") {
		t.Errorf("%v", err)
	}
}

// Ranks that may not read one another's memory, and so copy once more, say so and how to mend it.
func TestSlowerCopiesAreTold(t *testing.T) {
	var log, table strings.Builder
	comms, err := LocalWith(3, Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Explain: &table})
	if err != nil {
		t.Fatal(err)
	}
	if err := comms[0].world.copies([]int{0, 2}); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{"log": log.String(), "table": table.String()} {
		if !strings.Contains(text, "process_vm_readv is not allowed") || !strings.Contains(text, "ptrace_scope") ||
			!strings.Contains(text, "[0 2]") {
			t.Errorf("the %s says %q", name, text)
		}
	}
	for _, c := range comms {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
