package comm

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
)

// The fault matrix: every kind of fault in every operation over every transport,
// between real processes. See docs/reference/reliability.md.

var update = flag.Bool("update", false, "run all cases of the fault matrix and rewrite docs/reference/tables/faults.md")

// faultCase is one cell of the matrix.
type faultCase struct {
	fault, transport, op string
	count                int
	registered, inPlace  bool
	k                    int // the case's number: rotates victim, root and the moment
	limit                time.Duration
}

func (f *faultCase) String() string {
	return fmt.Sprintf("%s in %s of %d over %s (registered %t, in place %t, case %d)",
		f.fault, f.op, f.count, f.transport, f.registered, f.inPlace, f.k)
}

// tally is what cases showed.
type tally struct {
	cases, errors, right, late, bad, silent int
	again                                   int           // cases repeated because the machine had no core for a rank
	stall                                   time.Duration // the longest time that it had none
	notice                                  []time.Duration
	problems                                []string
	sample                                  string // an error as its rank printed it
}

func (y *tally) add(o *tally) {
	y.cases, y.errors, y.right, y.late, y.bad, y.silent = y.cases+o.cases, y.errors+o.errors, y.right+o.right, y.late+o.late, y.bad+o.bad,
		y.silent+o.silent
	y.again += o.again
	if y.sample == "" {
		y.sample = o.sample
	}
	y.notice = append(y.notice, o.notice...)
	y.problems = append(y.problems, o.problems...)
}

func (y *tally) quantile(q float64) time.Duration {
	if len(y.notice) == 0 {
		return 0
	}
	s := slices.Clone(y.notice)
	slices.Sort(s)
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

const (
	limit    = 300 * time.Millisecond // of operations whose fault is found by it
	longTime = 20 * time.Second       // of those whose fault is found otherwise
	afterEnd = time.Second            // how much later than its limit an error may come
)

// blames reports whether an error names the right rank. Two ranks that call
// different things are both named; a rank that is dead, stopped or did not come
// is named alone.
func blames(e *event, victim int, kinds ...Kind) bool {
	if !slices.Contains(kinds, e.Kind) || !slices.Contains(e.Culprits, victim) {
		return false
	}
	return len(e.Culprits) == 1 || e.Kind == Mismatch && len(e.Culprits) == 2
}

// judge looks at what the ranks tell about an operation with a fault.
func (y *tally) judge(f *faultCase, what string, events []event, victim int, within time.Duration, kinds ...Kind) {
	// All were told at once, so that one began later than another is the machine's doing, too.
	first, last := events[0].Began, events[0].Began
	for i := range events {
		first, last = min(first, events[i].Began), max(last, events[i].Began)
	}
	y.stall = max(y.stall, time.Duration(last-first))
	for i := range events {
		e := &events[i]
		y.stall = max(y.stall, e.Stall)
		if e.Err == "" {
			if e.Data != "complete" {
				y.bad++
				y.problems = append(y.problems, fmt.Sprintf("%s: %s: wrong data: %s", f, what, e.Data))
			}
			continue
		}
		if e.Data != "intact" {
			y.bad++
			y.problems = append(y.problems, fmt.Sprintf("%s: %s: %s after %s", f, what, e.Data, e.Err))
		}
		y.errors++
		if blames(e, victim, kinds...) {
			y.right++
			if y.sample == "" && !strings.Contains(e.Err, " reports: ") {
				y.sample = e.Err
			}
		} else {
			y.problems = append(y.problems, fmt.Sprintf("%s: %s: rank %d is at fault, not (%s) %v: %s", f, what, victim, e.Kind, e.Culprits, e.Err))
		}
		if took := time.Duration(e.Clock - e.Began); took > within+afterEnd+e.Stall {
			y.late++
			y.problems = append(y.problems, fmt.Sprintf("%s: %s: the error came after %s", f, what, took))
		}
	}
}

// after runs one more operation on a communicator with a fault: now everybody
// must have an error that names the right rank.
func (y *tally) after(f *faultCase, list procs, victim int, within time.Duration, kinds ...Kind) {
	events := list.all(order{Do: "op", Op: "barrier", Limit: within})
	for i := range events {
		if events[i].Err == "" {
			y.silent++
			y.problems = append(y.problems, fmt.Sprintf("%s: rank %d goes on as if nothing had been", f, list[i].rank))
		}
	}
	y.judge(f, "the next operation", events, victim, within, kinds...)
}

// steady repeats a case, with longer limits, in which the machine had no core for
// some rank for a good part of the limit, or until the limit had passed.
func (f *faultCase) steady(do func() *tally) *tally {
	for again := 0; ; again++ {
		f.limit = limit << again
		y := do()
		if again == 4 || y.stall < f.limit/4 && !slices.ContainsFunc(y.problems, neverBegan) {
			y.again = again
			return y
		}
	}
}

func (f *faultCase) order() order {
	return order{Do: "op", Op: f.op, Count: f.count, Root: f.k / 2, Registered: f.registered, InPlace: f.inPlace}
}

// death is a rank that is killed or exits: before it enters, or inside while
// another is awaited.
func (f *faultCase) death(list procs) (procs, *tally) {
	y := &tally{cases: 1}
	list.all(order{Do: "dup"})
	victim := f.k % len(list)
	exits := f.fault == "exit without leave"
	o := f.order()
	o.Limit, o.Tell = longTime, true
	rest, last := list.without(victim), list[(victim+1)%len(list)]
	inside := f.k%2 == 1 // then the last one comes only when the victim is dead
	for _, p := range rest {
		if p != last || !inside {
			p.order(o)
		}
	}
	for _, p := range rest {
		if p != last || !inside {
			p.await("inside")
		}
	}
	var died int64
	switch {
	case inside && exits:
		in := o
		in.Tell, in.Exit = false, true
		list[victim].order(in)
		died = list[victim].await("exit").Clock
	case exits:
		list[victim].order(order{Do: "exit"})
		died = list[victim].await("exit").Clock
	case inside:
		list[victim].order(o)
		list[victim].await("inside")
		died = clock.Now()
	default:
		died = clock.Now()
	}
	if exits {
		list[victim].wait()
	} else {
		list[victim].kill()
	}
	if inside {
		last.order(o)
		last.await("inside")
	}
	events := rest.await("op")
	y.judge(f, "the operation", events, victim, longTime, Dead)
	for i := range events {
		if e := &events[i]; e.Err != "" && e.Began < died {
			y.notice = append(y.notice, time.Duration(e.Clock-died))
		}
	}
	y.after(f, rest, victim, longTime, Dead)
	rest.all(order{Do: "shrink"})
	return rest, y
}

// stopped is a rank whose process stands still, before it enters or inside.
func (f *faultCase) stopped(list procs) *tally {
	y := &tally{cases: 1}
	list.all(order{Do: "dup"})
	victim := f.k % len(list)
	o := f.order()
	o.Limit = f.limit
	inside := f.k%2 == 1
	if inside {
		in := o
		in.Limit, in.Tell = longTime, true
		list[victim].order(in)
		list[victim].await("inside")
	}
	list[victim].signal(syscall.SIGSTOP)
	rest := list.without(victim)
	rest.order(o)
	y.judge(f, "the operation", rest.await("op"), victim, f.limit, Timeout)
	y.after(f, rest, victim, f.limit, Timeout)
	list[victim].signal(syscall.SIGCONT)
	if inside { // it hears what the others say of it, or was done
		own := list[victim].await("op")
		own.Stall = 0
		y.judge(f, "its own operation", []event{own}, victim, longTime, Timeout)
	}
	return y
}

// missing is a rank that leaves a call out: it does nothing more, or goes on to
// the next one.
func (f *faultCase) missing(list procs) *tally {
	y := &tally{cases: 1}
	list.all(order{Do: "dup"})
	victim := f.k % len(list)
	o := f.order()
	o.Limit = f.limit
	rest := list.without(victim)
	if f.k%2 == 0 {
		rest.order(o)
		y.judge(f, "the operation", rest.await("op"), victim, f.limit, Timeout)
		y.after(f, rest, victim, f.limit, Timeout)
		return y
	}
	next := "barrier"
	if f.op == "barrier" {
		next = "all-reduce"
	}
	both := o
	both.Op = f.op + "," + next
	rest.order(both)
	o.Op = next
	list[victim].order(o)
	y.judge(f, "the operation", rest.await("op"), victim, f.limit, Timeout, Mismatch)
	y.judge(f, "its own operation", []event{list[victim].await("op")}, victim, f.limit, Timeout, Mismatch)
	y.after(f, list, victim, f.limit, Timeout, Mismatch)
	return y
}

// wrong is a rank that calls something else.
func (f *faultCase) wrong(list procs) *tally {
	y := &tally{cases: 1}
	list.all(order{Do: "dup"})
	victim := f.k % len(list)
	o := f.order()
	o.Limit = f.limit
	w := o
	other := trialOps[(slices.Index(trialOps, f.op)+1+f.k%3)%len(trialOps)]
	switch f.fault {
	case "wrong count":
		w.Count++
		if f.op == "barrier" { // has no count: of a barrier and something with one
			w.Op = "all-gather"
		}
	case "wrong type":
		w.Type = "i32"
		if f.op == "barrier" { // has no type
			w.Op = "broadcast"
		}
	case "wrong operation":
		w.Op = other
	case "wrong order":
		if other == "send/recv" { // may be before or after an operation in which not everybody waits for all
			other = "barrier"
		}
		o.Op, w.Op = f.op+","+other, other+","+f.op
	}
	for i, p := range list {
		if i == victim {
			p.order(w)
		} else {
			p.order(o)
		}
	}
	y.judge(f, "the operation", list.await("op"), victim, f.limit, Mismatch, Timeout)
	y.after(f, list, victim, f.limit, Mismatch, Timeout)
	return y
}

// harmless is a fault that no operation may suffer from.
func (f *faultCase) harmless(list procs) *tally {
	y := &tally{cases: 1}
	list.all(order{Do: "dup"})
	victim := f.k % len(list)
	o := f.order()
	o.Times = 3
	var stopGarbage func()
	for i, p := range list {
		own := o
		if i == victim {
			switch f.fault {
			case "slow rank":
				own.Delay = 30 * time.Millisecond
			case "closed stream":
				own.Cut = true
			}
		}
		if i == victim && f.fault == "garbage on the port" {
			stopGarbage = p.garbage()
		}
		p.order(own)
	}
	for i, e := range list.await("op") {
		if e.Err != "" || e.Data != "complete" {
			y.bad++
			y.problems = append(y.problems, fmt.Sprintf("%s: rank %d: %s %s", f, i, e.Err, e.Data))
		}
	}
	if stopGarbage != nil {
		stopGarbage()
	}
	return y
}

// rubbish is what comes to open ports.
var rubbish = [][]byte{
	[]byte("GET / HTTP/1.1\r\nHost: weft\r\n\r\n"),
	{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3},
	nil, // a port scan
	bytes.Repeat([]byte{0xff}, 4096),
	append([]byte{0, 0, 0, 0x80}, make([]byte, 60)...), // 2 GiB are to follow
	[]byte("weft"),
}

// garbage sends rubbish to all ports of a rank until it is told to stop.
func (p *proc) garbage() (stop func()) {
	p.t.Helper()
	p.order(order{Do: "ports"})
	var ports []int
	if err := json.Unmarshal(p.await("ports").Value, &ports); err != nil {
		p.t.Fatal(err)
	}
	if len(ports) == 0 {
		p.t.Errorf("rank %d listens nowhere", p.rank)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for k := 0; ; k++ {
			for _, port := range ports {
				c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
				if err == nil {
					_, _ = c.Write(rubbish[k%len(rubbish)])
					_ = c.Close()
				}
			}
			select {
			case <-done:
				if k >= len(rubbish) {
					return
				}
			default:
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// The kinds of fault, in the order of the page.
var faults = []string{"kill -9", "exit without leave", "SIGSTOP", "missing call", "wrong count", "wrong type", "wrong operation",
	"wrong order",
	"slow rank", "closed stream", "garbage on the port", "full /dev/shm"}

// sweep runs the cases of a fault over a transport.
func sweep(t *testing.T, fault, transport string, cases []faultCase) *tally {
	y := &tally{}
	deadly := fault == "kill -9" || fault == "exit without leave"
	var env []string
	switch fault {
	case "closed stream":
		env = append(env, "WEFT_STREAMS=4")
	case "garbage on the port":
		env = append(env, "WEFT_STREAMS=2") // with one, nobody is to come any more and ports are closed
	}
	if fault == "full /dev/shm" {
		env = append(env, "WEFT_TEST_COMM_FULL_SHM=1")
	}
	for part := range slices.Chunk(cases, 5) {
		ranks := 4
		if deadly {
			ranks = 3 + len(part)
		}
		list := startProcs(t, ranks, transport, "serve", env...)
		for i := range part {
			f := &part[i]
			switch fault {
			case "kill -9", "exit without leave":
				var one *tally
				list, one = f.death(list)
				y.add(one)
			case "SIGSTOP":
				y.add(f.steady(func() *tally { return f.stopped(list) }))
			case "missing call":
				y.add(f.steady(func() *tally { return f.missing(list) }))
			case "wrong count", "wrong type", "wrong operation", "wrong order":
				y.add(f.steady(func() *tally { return f.wrong(list) }))
			default:
				y.add(f.harmless(list))
			}
		}
		list.felt(fault)
		list.finish()
	}
	return y
}

// felt checks that a fault that nobody must suffer from was there at all.
func (list procs) felt(fault string) {
	counter := map[string]string{"closed stream": "paths.lost", "garbage on the port": "hello."}[fault]
	if counter == "" {
		return
	}
	total := uint64(0)
	for _, e := range list.all(order{Do: "counters"}) {
		var all map[string]uint64
		if err := json.Unmarshal(e.Value, &all); err != nil {
			list[0].t.Fatal(err)
		}
		for name, n := range all {
			if strings.HasPrefix(name, counter) {
				total += n
			}
		}
	}
	if total == 0 {
		list[0].t.Errorf("no rank counted anything as %s after %s", counter, fault)
	}
}

// faultTransports are those of the matrix; mixed is two hosts, when all faults or WEFT_TEST_FAULTS=mixed are asked for.
var faultTransports = []string{"shm", "tcp", "mixed"}

func TestFaultMatrix(t *testing.T) {
	m := matrix{full: *update || os.Getenv("WEFT_TEST_FAULTS") == "all", rows: map[row]*tally{}, samples: map[row]string{}}
	t.Run("of", func(t *testing.T) {
		for fi, fault := range faults {
			for ti, transport := range faultTransports {
				if !applies(fault, transport) || transport == "mixed" && !m.full && os.Getenv("WEFT_TEST_FAULTS") != "mixed" {
					continue
				}
				t.Run(fault+"/"+transport, func(t *testing.T) {
					if !*update { // times to notice are of an otherwise idle test
						t.Parallel()
					}
					m.add(row{fault, transport}, sweep(t, fault, transport, m.cases(fi, ti)))
				})
			}
		}
	})
	var all tally
	for _, k := range m.order() {
		y := m.rows[k]
		all.add(y)
		t.Logf("%s, %s: %d cases, %d of %d errors name the right rank, %d late, %d with wrong data, %d silent, %d repeated; noticed after %v (p50), %v (p99)",
			k.fault, k.transport, y.cases, y.right, y.errors, y.late, y.bad, y.silent, y.again, y.quantile(0.5), y.quantile(0.99))
		for _, p := range y.problems {
			t.Log(p)
		}
	}
	switch {
	case all.bad > 0 || all.silent > 0:
		t.Errorf("%d cases with wrong data, %d ranks that went on as if nothing had been", all.bad, all.silent)
	case all.right*100 < all.errors*99 || all.late*100 > all.errors:
		t.Errorf("of %d errors %d name the right rank and %d are late: less than 99%% are as they should be", all.errors, all.right, all.late)
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(faultsPage, []byte(m.page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// applies reports whether a fault can happen to a transport.
func applies(fault, transport string) bool {
	switch fault {
	case "closed stream", "garbage on the port":
		return transport == "tcp"
	case "full /dev/shm":
		return transport == "shm"
	}
	return true
}

// row is a line of the page.
type row struct{ fault, transport string }

// matrix gathers what the sweeps showed.
type matrix struct {
	full    bool
	mu      sync.Mutex
	rows    map[row]*tally
	samples map[row]string
}

func (m *matrix) add(k row, y *tally) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows[k], m.samples[k] = y, y.sample
}

// order gives the rows that were run in the order of the page.
func (m *matrix) order() []row {
	var list []row
	for _, fault := range faults {
		for _, transport := range faultTransports {
			if k := (row{fault, transport}); m.rows[k] != nil {
				list = append(list, k)
			}
		}
	}
	return list
}

// cases are those of a fault over a transport: every operation once, with sizes
// and moments that rotate, or with all of them.
func (m *matrix) cases(fi, ti int) []faultCase {
	var list []faultCase
	counts := []int{1000, 5, 40000}
	for i, op := range trialOps {
		if !m.full && !bounded.Long() && (fi+ti+i)%2 != 0 {
			continue
		}
		for v := range 6 {
			if !m.full && v != (fi+ti+i)%6 {
				continue
			}
			k := fi + ti + i + v/3
			list = append(list, faultCase{fault: faults[fi], transport: faultTransports[ti], op: op, count: counts[v%3], registered: v >= 3,
				inPlace: k/2%2 == 0, k: k})
		}
	}
	return list
}
