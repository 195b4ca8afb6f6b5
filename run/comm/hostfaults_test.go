package comm

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/nslab"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/transport/witness"
)

var hostFaults = flag.Bool("hostfaults", false,
	"try every fault between hosts, which takes minutes, and write docs/reference/tables/host-faults.md")

// hostFault is something that happens to hosts while their ranks work.
type hostFault struct {
	name  string
	hosts int
	rails int
	env   []string
	begin func(lab *nslab.Lab, list procs) error
	lasts time.Duration // and then ends; 0: for good
	end   func(lab *nslab.Lab) error
	dead  []int // hosts that do not come back: their ranks must be named
	apart []int // hosts on one side of a partition that does not heal
	place []int // the host of each rank; nil: two ranks on each, host by host
	quick bool  // tried by every test

	witness int  // the host on which a witness is, from 1 on; 0 for none. One that has no ranks is cut off when the fault begins
	nobody  bool // may go on
	early   bool // it is there before the ranks are, which cannot join
}

const onEach = 2 // ranks of a host

// places are the hosts of the ranks.
func (f *hostFault) places() []int {
	if f.place != nil {
		return f.place
	}
	var list []int
	for r := range f.hosts * onEach {
		list = append(list, r/onEach)
	}
	return list
}

// ranksOf are the ranks of some hosts.
func (f *hostFault) ranksOf(hosts ...int) (list []int) {
	for r, h := range f.places() {
		if slices.Contains(hosts, h) {
			list = append(list, r)
		}
	}
	return list
}

func kill(ranks ...int) func(*nslab.Lab, procs) error {
	return func(_ *nslab.Lab, list procs) error {
		for _, r := range ranks {
			_ = list[r].cmd.Process.Kill()
		}
		return nil
	}
}

func killHost(h int) func(*nslab.Lab, procs) error { return kill(onEach*h, onEach*h+1) }

func hostFaultList() []hostFault {
	cut := func(h, r int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error { return lab.Cut(h, r) }
	}
	mend := func(h, r int) func(*nslab.Lab) error { return func(lab *nslab.Lab) error { return lab.Mend(h, r) } }
	unplug := func(h, r int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error { return lab.Unplug(h, r) }
	}
	plug := func(h, r int) func(*nslab.Lab) error { return func(lab *nslab.Lab) error { return lab.Plug(h, r) } }
	part := func(hosts ...int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error { return lab.Part(hosts...) }
	}
	heal := func(hosts ...int) func(*nslab.Lab) error {
		return func(lab *nslab.Lab) error {
			for _, h := range hosts {
				if err := lab.Plug(h, 0); err != nil {
					return err
				}
			}
			return nil
		}
	}
	drop := func(h int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error { return loadRules(lab, h, swallow) }
	}
	accept := func(h int) func(*nslab.Lab) error {
		return func(lab *nslab.Lab) error { return loadRules(lab, h, "flush ruleset") }
	}
	oneWay := func(from, to int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error {
			return loadRules(lab, to, fmt.Sprintf("table inet outage {\n chain i { type filter hook input priority 0; ip saddr %s drop; }\n}\n",
				nslab.Addr(from, 0)))
		}
	}
	// Packets above 600 bytes vanish on their way to a host, as behind a switch port with too small an MTU.
	narrow := func(h int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error {
			return loadRules(lab, h, "table inet outage {\n chain i { type filter hook input priority 0; meta length > 600 drop; }\n}\n")
		}
	}
	// The same by a real port: its bridge lets packets through that are not cut into segments yet, and swallows single ones.
	port := func(h int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error { return lab.Narrow(h, 0, 600) }
	}
	lossy := func(h, percent int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error {
			return loadRules(lab, h,
				fmt.Sprintf("table inet outage {\n chain i { type filter hook input priority 0; iifname \"r0\" numgen random mod 100 < %d drop; }\n}\n",
					percent))
		}
	}
	alter := func(h int) func(*nslab.Lab, procs) error {
		return func(lab *nslab.Lab, _ procs) error {
			return loadRules(lab, h,
				"table ip outage {\n chain o { type filter hook output priority 0; oifname \"r0\" tcp dport != 0 meta length > 200 "+
					"limit rate 30/minute burst 1 packets @th,512,8 set 0x5a; }\n}\n")
		}
	}
	inTurn, uneven := []int{0, 1, 2, 0, 1, 2}, []int{0, 0, 0, 1, 2, 2}
	short := []string{"WEFT_OUTAGE=1s"}
	long := []string{"WEFT_OUTAGE=60s", "WEFT_TIMEOUT=90s"}
	return []hostFault{
		{name: "link down for 0.5 s", hosts: 3, rails: 1, begin: cut(1, 0), lasts: 500 * time.Millisecond, end: mend(1, 0)},
		{name: "link down for 2 s", hosts: 3, rails: 1, begin: cut(1, 0), lasts: 2 * time.Second, end: mend(1, 0)},
		{name: "link down for 10 s", hosts: 3, rails: 1, begin: cut(1, 0), lasts: 10 * time.Second, end: mend(1, 0)},
		{name: "link down for 30 s", hosts: 3, rails: 1, env: long, begin: cut(1, 0), lasts: 30 * time.Second, end: mend(1, 0)},
		{name: "link silent for 2 s", hosts: 3, rails: 1, begin: unplug(2, 0), lasts: 2 * time.Second, end: plug(2, 0)},
		{name: "link silent for 10 s", hosts: 3, rails: 1, begin: unplug(2, 0), lasts: 10 * time.Second, end: plug(2, 0)},
		{name: "packets dropped (nft) for 2 s", hosts: 3, rails: 1, begin: drop(1), lasts: 2 * time.Second, end: accept(1)},
		{name: "packets dropped (nft) for 10 s", hosts: 3, rails: 1, begin: drop(1), lasts: 10 * time.Second, end: accept(1)},
		{name: "one of two rails down for 3 s", hosts: 3, rails: 2, env: []string{"WEFT_RAILS=all"}, begin: cut(1, 1), lasts: 3 * time.Second,
			end: mend(1, 1)},
		{name: "one of two rails silent for 3 s", hosts: 3, rails: 2, env: []string{"WEFT_RAILS=all"}, begin: unplug(1, 0),
			lasts: 3 * time.Second, end: plug(1, 0)},
		{name: "two halves for 3 s", hosts: 4, rails: 1, begin: part(2, 3), lasts: 3 * time.Second, end: heal(2, 3)},
		{name: "1% of a host's packets lost for 5 s", hosts: 3, rails: 1, begin: lossy(1, 1), lasts: 5 * time.Second, end: accept(1)},
		{name: "10% of a host's packets lost for 5 s", hosts: 3, rails: 1, begin: lossy(1, 10), lasts: 5 * time.Second, end: accept(1)},
		{name: "30% of a host's packets lost for 5 s", hosts: 3, rails: 1, begin: lossy(1, 30), lasts: 5 * time.Second, end: accept(1)},
		{name: "a packet altered every 2 s for 30 s", hosts: 3, rails: 1, begin: alter(1), lasts: 30 * time.Second, end: accept(1)},
		{name: "link of rank 0's host down for 3 s", hosts: 3, rails: 1, begin: cut(0, 0), lasts: 3 * time.Second, end: mend(0, 0)},
		{name: "a host's processes killed", hosts: 3, rails: 1, begin: killHost(1), dead: []int{1}, quick: true},
		{name: "rank 0's host killed", hosts: 3, rails: 1, begin: killHost(0), dead: []int{0}},
		{name: "one host of three cut off for good", hosts: 3, rails: 1, env: short, begin: part(2), apart: []int{2}, quick: true},
		{name: "rank 0's host cut off for good", hosts: 3, rails: 1, env: short, begin: part(0), apart: []int{0}},
		{name: "two halves for good", hosts: 4, rails: 1, env: short, begin: part(2, 3), apart: []int{2, 3}},
		{name: "rank 0's host of two killed, a witness on the other", hosts: 2, rails: 1, begin: killHost(0), dead: []int{0}, witness: 2,
			quick: true},
		{name: "the other host of two killed, a witness on rank 0's", hosts: 2, rails: 1, begin: killHost(1), dead: []int{1}, witness: 1},
		{name: "two halves for good, the witness with the half without rank 0",
			hosts: 4, rails: 1, env: short, begin: part(2, 3), apart: []int{2, 3}, witness: 4},
		{name: "two halves for good, the witness with that of rank 0", hosts: 4, rails: 1, env: short, begin: part(2, 3), apart: []int{2, 3},
			witness: 1},
		{name: "two halves for good, the witness lost to both", hosts: 4, rails: 1, env: short, begin: part(2, 3), apart: []int{2, 3}, witness: 5,
			nobody: true},
		{name: "one host of three cut off for good, with the witness", hosts: 3, rails: 1, env: short, begin: part(2), apart: []int{2},
			witness: 3},
		{name: "ranks dealt out in turn: link down for 2 s", hosts: 3, rails: 1, place: inTurn, begin: cut(1, 0), lasts: 2 * time.Second,
			end: mend(1, 0)},
		{name: "ranks dealt out in turn: a host's processes killed", hosts: 3, rails: 1, place: inTurn, begin: kill(1, 4), dead: []int{1}},
		{name: "ranks dealt out in turn: rank 0's host cut off for good", hosts: 3, rails: 1, place: inTurn, env: short, begin: part(0),
			apart: []int{0}},
		{name: "hosts of 3, 1 and 2 ranks: link down for 2 s", hosts: 3, rails: 1, place: uneven, begin: cut(1, 0), lasts: 2 * time.Second,
			end: mend(1, 0)},
		{name: "hosts of 3, 1 and 2 ranks: that of 2 killed", hosts: 3, rails: 1, place: uneven, begin: kill(4, 5), dead: []int{2}},
		{name: "hosts of 3, 1 and 2 ranks: that of 2 cut off for good", hosts: 3, rails: 1, place: uneven, env: short, begin: part(2),
			apart: []int{2}},
		{name: "hosts of 3, 1 and 2 ranks: nothing gets from the first to the last, for good",
			hosts: 3, rails: 1, place: uneven, env: short, begin: oneWay(0, 2), apart: []int{2}, quick: true},
		{name: "hosts of 2, 1 and 3 ranks: nothing gets from the first to the last, for good",
			hosts: 3, rails: 1, place: []int{0, 0, 1, 2, 2, 2}, env: short, begin: oneWay(0, 2), apart: []int{0}},
		{name: "packets above 600 bytes do not get to one host of three, for good",
			hosts: 3, rails: 1, env: short, begin: narrow(2), apart: []int{2}, quick: true},
		{name: "the MTU of one host's port is 600, for good", hosts: 3, rails: 1, env: short, begin: port(2), apart: []int{2}},
		{name: "the MTU of one host's port is 600 before the ranks join", hosts: 3, rails: 1, begin: port(2), apart: []int{2}, early: true},
		{name: "hosts of 3, 1 and 2 ranks: packets above 600 bytes do not get to that of 2, for good",
			hosts: 3, rails: 1, place: uneven, env: short, begin: narrow(2), apart: []int{2}},
	}
}

const swallow = `table inet outage {
 chain i { type filter hook input priority 0; iifname "r0" drop; }
 chain o { type filter hook output priority 0; oifname "r0" drop; }
}
`

// hostRow is a line of the table.
type hostRow struct {
	fault           string
	went            string // went on, or shrank
	right, failures int    // survivors that named the right ranks, of those with an error
	worst           time.Duration
	wrong, worlds   int
	shrank          time.Duration // until the last Shrink was over, of ranks that went on or gave up
}

func (r hostRow) String() string {
	named := ""
	if r.failures > 0 {
		named = fmt.Sprintf("%d of %d", r.right, r.failures)
	}
	shrank := ""
	if r.shrank > 0 {
		shrank = r.shrank.Round(10 * time.Millisecond).String()
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %d | %d | %s |\n", r.fault, r.went, named, r.worst.Round(10*time.Millisecond), r.wrong,
		r.worlds, shrank)
}

// Faults of hosts and of the links between them: what is over in time costs no call; what stays names the right ranks; data is never
// wrong; and there is never more than one world afterwards.
func TestHostFaults(t *testing.T) {
	var rows []hostRow
	var mu sync.Mutex
	for _, f := range hostFaultList() {
		if !f.quick && !*hostFaults {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			if !*hostFaults {
				t.Parallel()
			}
			r := f.try(t)
			t.Log(strings.TrimSpace(r.String()))
			mu.Lock()
			defer mu.Unlock()
			rows = append(rows, r)
		})
	}
	if !*hostFaults || t.Failed() || len(rows) < len(hostFaultList()) {
		return
	}
	var b strings.Builder
	b.WriteString(hostsHead)
	for _, r := range rows {
		b.WriteString(r.String())
	}
	must(t, os.WriteFile(hostFaultsPage, []byte(b.String()), 0o644))
}

// The page has a line for every fault, and none says that data was wrong or that there were two worlds.
func TestPageHasEveryHostFault(t *testing.T) {
	b, err := os.ReadFile(hostFaultsPage)
	must(t, err)
	if !strings.HasPrefix(string(b), hostsHead) {
		t.Errorf("%s has another text before the table; make host-faults writes it", hostFaultsPage)
	}
	for _, f := range hostFaultList() {
		_, line, _ := strings.Cut(string(b), "\n| "+f.name+" |")
		line, _, _ = strings.Cut(line, "\n")
		cells := strings.Split(line, "|")
		if len(cells) != 7 || strings.TrimSpace(cells[3]) != "0" || !slices.Contains([]string{"0", "1"}, strings.TrimSpace(cells[4])) {
			t.Errorf("the line of %q: %q", f.name, line)
		}
	}
}

const hostFaultsPage = "../../docs/reference/tables/host-faults.md"

const hostsHead = `# Faults between hosts

Made by:

    make host-faults

[Reliability](../reliability.md) says what holds. Hosts are network namespaces with two ranks each, numbered host by host unless noted. They work all the
time: all-reduces of 4 bytes to 1.6 MB, and messages. The longest call is that of any rank, including the outage; after a permanent fault it is the
time until the last survivor had its error. WEFT_OUTAGE is 30 s, 60 s for the longest, and 1 s for permanent cuts. Then all survivors call Shrink at once.

| fault | the job | right ranks named | longest call, or time to the error | wrong elements | worlds afterwards | Shrink took |
|---|---|---:|---:|---:|---:|---:|
`

func (f *hostFault) try(t *testing.T) hostRow {
	row := hostRow{fault: f.name, worlds: 1}
	lab := nslab.New(t, max(f.hosts, f.witness), f.rails)
	env := f.env
	if f.witness > 0 {
		must(t, lab.Do(f.witness-1, func() error {
			s, err := witness.Serve(witness.ServerConfig{Listen: nslab.Addr(f.witness-1, 0).String() + ":0", Token: "of the tests"})
			if err == nil {
				t.Cleanup(func() { _ = s.Close() })
				env = append(slices.Clone(env), "WEFT_QUORUM=witness:"+s.Address())
			}
			return err
		}))
	}
	if f.early {
		f.refused(t, lab, &row)
		return row
	}
	list := onPlaces(t, lab, f.places(), "flow", env...)
	last := f.lasts + 1500*time.Millisecond
	if f.lasts == 0 {
		last = time.Minute
	}
	list.order(order{Do: "flow", Delay: last})
	list.await("inside")
	if f.witness > f.hosts {
		must(t, lab.Unplug(f.witness-1, 0))
	}
	must(t, f.begin(lab, list))
	began := clock.Now()
	if f.lasts > 0 {
		time.Sleep(f.lasts) // the fault itself
		must(t, f.end(lab))
		row.went = "went on"
		all, ends := list.results()
		for r := range list {
			row.worst, row.wrong = max(row.worst, all[r].Worst), row.wrong+all[r].Wrong
			if ends[r].Err != "" {
				row.went = "failed"
				t.Errorf("rank %d: %s", r, ends[r].Err)
			}
		}
		if row.wrong > 0 {
			t.Errorf("%d wrong elements", row.wrong)
		}
		list.finish()
		return row
	}
	f.forGood(t, list, began, &row)
	return row
}

// refused starts ranks that cannot join.
func (f *hostFault) refused(t *testing.T, lab *nslab.Lab, row *hostRow) {
	must(t, f.begin(lab, nil))
	began := clock.Now()
	for r, p := range startOnPlaces(t, lab, f.places(), "flow", f.env...) {
		row.failures++
		if text, ok := p.refusesNarrow(f.places(), f.apart[0]); ok {
			row.right++
		} else {
			t.Errorf("rank %d: %s", r, text)
		}
	}
	row.went, row.worlds, row.worst = "did not start", 0, time.Duration(clock.Now()-began)
}

// forGood takes what survivors tell of a fault that does not end, and lets them shrink.
func (f *hostFault) forGood(t *testing.T, list procs, began int64, row *hostRow) {
	var sides [][]int // that can still talk
	var rest []int
	for h := range f.hosts {
		if !slices.Contains(f.dead, h) && !slices.Contains(f.apart, h) {
			rest = append(rest, h)
		}
	}
	sides = append(sides, f.ranksOf(rest...))
	if len(f.apart) > 0 {
		sides = append(sides, f.ranksOf(f.apart...))
	}
	for _, h := range f.dead {
		for _, r := range f.ranksOf(h) {
			list[r].wait()
		}
	}
	for _, side := range sides {
		for _, r := range side {
			e := list[r].await("flow")
			var x flowed
			must(t, json.Unmarshal(e.Value, &x))
			row.failures++
			row.wrong += x.Wrong
			row.worst = max(row.worst, time.Duration(e.Clock-began))
			// A rank of the other side, or a pair of which one is there.
			if slices.ContainsFunc(e.Culprits, func(c int) bool { return !slices.Contains(side, c) }) {
				row.right++
			} else {
				t.Logf("rank %d names %v: %s", r, e.Culprits, e.Err)
			}
		}
	}
	if row.wrong > 0 {
		t.Errorf("%d wrong elements", row.wrong)
	}
	if row.right < row.failures && *hostFaults { // a busy machine may take longer to answer than the others wait
		t.Errorf("%d of %d ranks name the right ranks", row.right, row.failures)
	}
	asked := clock.Now()
	// Everybody shrinks at the same time: at most one world comes of it.
	for _, side := range sides {
		for _, r := range side {
			list[r].order(order{Do: "shrink"})
		}
	}
	row.worlds = 0
	var went []string
	for _, side := range sides {
		ok := 0
		for _, r := range side {
			e := list[r].await("shrink")
			row.shrank = max(row.shrank, time.Duration(e.Clock-asked))
			var at [2]int
			if e.Err == "" && json.Unmarshal(e.Value, &at) == nil && at[1] == len(side) {
				ok++
			} else if e.Err == "" {
				t.Errorf("rank %d is in a world of %d, its side has %d", r, at[1], len(side))
			}
		}
		switch ok {
		case len(side):
			row.worlds++
			went = append(went, fmt.Sprintf("%d ranks went on", ok))
		case 0:
			went = append(went, fmt.Sprintf("%d gave up", len(side)))
		default:
			t.Errorf("%d of %d ranks of a side shrank", ok, len(side))
		}
	}
	row.went = strings.Join(went, ", ")
	if row.worlds > 1 || (row.worlds == 0) != f.nobody {
		t.Errorf("%d worlds", row.worlds)
	}
}
