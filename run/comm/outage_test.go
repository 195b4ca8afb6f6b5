package comm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/nslab"
)

func init() { bodies["flow"] = (*kid).flow }

// flowed is what ranks tell of a while of work.
type flowed struct {
	Ops, Wrong int
	Worst      time.Duration
	Lost, Back int // links, by the flight recorder
	Paths      int // lost
}

// flow works until it is told to end: calls of many sizes and kinds, whose results are known. Orders: "flow" for the while
// Delay, or as Until says, "shrink", "leave".
func (k *kid) flow() error {
	for {
		var o order
		if err := k.orders.Decode(&o); err != nil {
			return err
		}
		switch o.Do {
		case "leave":
			return nil
		case "shrink":
			c, err := k.c.Shrink(context.Background())
			e := tell("shrink", err)
			if err == nil {
				k.c = c
				e.Value = fmt.Appendf(nil, "[%d, %d]", c.Rank(), c.Size())
			}
			k.say(e)
		case "flow":
			var r flowed
			end := make(chan struct{})
			var wg sync.WaitGroup
			if o.Until != "" {
				wg.Go(func() { tellLost(k.c, o.Until, end) })
			}
			err := work(k.c, o, &r, func() { k.say(event{At: "inside"}) })
			close(end)
			wg.Wait()
			r.links(k.c)
			e := tell("flow", err)
			if e.Value, err = json.Marshal(r); err != nil {
				return err
			}
			k.say(e)
		default:
			return fmt.Errorf("no order %q", o.Do)
		}
	}
}

// links counts what the flight recorder has of links.
func (r *flowed) links(c *Comm) {
	r.Lost, r.Back, r.Paths = 0, 0, 0
	for _, l := range c.Flight().Links() {
		switch l.Kind {
		case "link lost":
			r.Lost++
		case "link back":
			r.Back++
		case "path lost":
			r.Paths++
		}
	}
}

// tellLost puts a file into a folder once the rank has noticed that a link or path is lost.
func tellLost(c *Comm, dir string, end chan struct{}) {
	for {
		var r flowed
		if r.links(c); r.Lost+r.Paths > 0 {
			_ = os.WriteFile(filepath.Join(dir, "lost."+strconv.Itoa(c.Rank())), nil, 0o600) // who waits for it says so
			return
		}
		select {
		case <-end:
			return
		case <-time.After(5 * time.Millisecond): // between looks
		}
	}
}

// noticed waits until one of some ranks has put its file.
func noticed(t *testing.T, dir string, ranks ...int) {
	t.Helper()
	bounded.Until(t, patience, fmt.Sprintf("one of ranks %v to notice the outage", ranks), func() bool {
		return slices.ContainsFunc(ranks, func(r int) bool {
			_, err := os.Stat(filepath.Join(dir, "lost."+strconv.Itoa(r)))
			return err == nil
		})
	})
}

// over lets ranks end that work until then.
func over(t *testing.T, dir string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, "over"), nil, 0o600))
}

// work calls operations and looks at their results. It says when it is in the midst of them, and goes on for a while, or until it is
// over and all links of all ranks are back.
func work(c *Comm, o order, r *flowed, inside func()) error {
	ctx, me, n := context.Background(), c.Rank(), c.Size()
	var end time.Time
	sizes := []int{1, 300, 5000, 70_000, 400_000}
	for {
		if r.Ops == len(sizes) { // every size was there once
			inside()
			end = time.Now().Add(o.Delay)
		}
		began := time.Now()
		count := sizes[r.Ops%len(sizes)]
		x := make([]float32, count)
		for i := range x {
			x[i] = float32(me + 1 + i%7 + r.Ops%5)
		}
		if err := AllReduce(ctx, c, x, Sum); err != nil {
			return err
		}
		for i := range x {
			if x[i] != float32(n*(n+1)/2+n*(i%7+r.Ops%5)) {
				r.Wrong++
			}
		}
		out, in := make([]int64, count%5001), make([]int64, count%5001)
		for i := range out {
			out[i] = int64(me)<<32 | int64(i+r.Ops)
		}
		from := (me + n - 1) % n
		if err := SendRecv(ctx, c, in, out, from, (me+1)%n); err != nil {
			return err
		}
		for i := range in {
			if in[i] != int64(from)<<32|int64(i+r.Ops) {
				r.Wrong++
			}
		}
		r.Ops++
		over, all := []int32{0}, Max
		switch {
		case o.Until != "":
			all = Min
			if _, err := os.Stat(filepath.Join(o.Until, "over")); err == nil {
				if r.links(c); r.Back == r.Lost {
					over[0] = 1
				}
			}
		case r.Ops > len(sizes) && time.Now().After(end):
			over[0] = 1
		}
		if err := AllReduce(ctx, c, over, all); err != nil {
			return err
		}
		r.Worst = max(r.Worst, time.Since(began))
		if over[0] == 1 {
			return nil
		}
	}
}

// onHosts starts ranks on the hosts of a lab, each on every host.
func onHosts(t *testing.T, lab *nslab.Lab, hosts, each int, body string, env ...string) procs {
	t.Helper()
	var places []int
	for rank := range hosts * each {
		places = append(places, rank/each)
	}
	return onPlaces(t, lab, places, body, env...)
}

// onPlaces starts a rank for each place, on that host of a lab.
func onPlaces(t *testing.T, lab *nslab.Lab, places []int, body string, env ...string) procs {
	t.Helper()
	list := startOnPlaces(t, lab, places, body, env...)
	list.joined()
	return list
}

// startOnPlaces is onPlaces for ranks that may not be able to join.
func startOnPlaces(t *testing.T, lab *nslab.Lab, places []int, body string, env ...string) procs {
	t.Helper()
	var list procs
	seats := map[int]int{}
	for rank, host := range places {
		cmd := bounded.Server(t, "/proc/self/exe")
		cmd.Env = append(os.Environ(), envBody+"="+body, "RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(len(places)),
			"LOCAL_RANK="+strconv.Itoa(seats[host]),
			"MASTER_ADDR="+nslab.Addr(0, 0).String(), "MASTER_PORT=7177", "WEFT_TOKEN=of the tests", "WEFT_TIMEOUT=60s", "WEFT_LOG=off")
		cmd.Env = append(cmd.Env, env...)
		seats[host]++
		if err := lab.Do(host, func() error {
			list = append(list, startProc(t, cmd, rank, nil))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// Hosts with different numbers of ranks, one of them with a single one, work together and go on after an outage.
func TestUnequalHosts(t *testing.T) {
	for name, places := range map[string][]int{"3 and 1": {0, 0, 0, 1}, "1, 2 and 1": {0, 1, 1, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab := nslab.New(t, 3, 1)
			list := onPlaces(t, lab, places, "flow")
			list.order(order{Do: "flow", Delay: time.Second})
			list.await("inside")
			must(t, lab.Unplug(1, 0))
			time.Sleep(500 * time.Millisecond) // the outage itself
			must(t, lab.Plug(1, 0))
			all, ends := list.results()
			for r := range list {
				if ends[r].Err != "" || all[r].Wrong > 0 {
					t.Errorf("rank %d: %d wrong elements, %s", r, all[r].Wrong, ends[r].Err)
				}
			}
			list.finish()
		})
	}
}

// results are what ranks tell at the end of a flow.
func (list procs) results() (all []flowed, ends []event) {
	for _, e := range list.await("flow") {
		var r flowed
		if err := json.Unmarshal(e.Value, &r); err != nil {
			list[0].t.Fatal(err)
		}
		all, ends = append(all, r), append(ends, e)
	}
	return all, ends
}

// nft loads rules on a host, or skips the test where there is no nft.
func nft(t *testing.T, lab *nslab.Lab, host int, rules string) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no nft here")
	}
	must(t, loadRules(lab, host, rules))
}

func loadRules(lab *nslab.Lab, host int, rules string) error {
	return lab.Do(host, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.WaitDelay = time.Second
		cmd.Stdin = strings.NewReader(rules)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

const resets = `table ip outage {
 chain i {
  type filter hook input priority 0
  tcp flags & (syn | ack) == ack reject with tcp reset
 }
}
`

// A link between two hosts that is down, that swallows everything, or on which every connection is reset, is waited for: no call
// fails, no result is wrong, and both ends tell of the outage.
func TestLinkOutages(t *testing.T) {
	for _, x := range []struct {
		name       string
		env        []string
		each       int
		begin, end func(t *testing.T, lab *nslab.Lab)
	}{
		{"down", nil, 1, func(t *testing.T, lab *nslab.Lab) { must(t, lab.Cut(1, 0)) },
			func(t *testing.T, lab *nslab.Lab) { must(t, lab.Mend(1, 0)) }},
		{"silent", []string{"WEFT_STREAMS=1"}, 2, func(t *testing.T, lab *nslab.Lab) { must(t, lab.Unplug(1, 0)) },
			func(t *testing.T, lab *nslab.Lab) { must(t, lab.Plug(1, 0)) }},
		{"reset", nil, 1, func(t *testing.T, lab *nslab.Lab) { nft(t, lab, 1, resets) },
			func(t *testing.T, lab *nslab.Lab) { nft(t, lab, 1, "flush ruleset") }},
		{"down under TLS", []string{"WEFT_TLS=token"}, 1, func(t *testing.T, lab *nslab.Lab) { must(t, lab.Cut(1, 0)) },
			func(t *testing.T, lab *nslab.Lab) { must(t, lab.Mend(1, 0)) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			lab := nslab.New(t, 2, 1)
			list := onHosts(t, lab, 2, x.each, "flow", x.env...)
			dir := t.TempDir()
			list.order(order{Do: "flow", Until: dir})
			list.await("inside")
			x.begin(t, lab)
			noticed(t, dir, 0, 1, x.each, 2*x.each-1)
			x.end(t, lab)
			for h := range 2 { // one that had nothing to send may learn of it from the other, when the link is back
				noticed(t, dir, h*x.each, (h+1)*x.each-1)
			}
			over(t, dir)
			all, ends := list.results()
			for r := range list {
				if ends[r].Err != "" || all[r].Wrong > 0 {
					t.Errorf("rank %d: %d wrong elements, %s", r, all[r].Wrong, ends[r].Err)
				}
			}
			for h := range 2 {
				of := all[h*x.each : (h+1)*x.each]
				if !slices.ContainsFunc(of, func(r flowed) bool { return r.Back == r.Lost && r.Lost+r.Paths > 0 }) {
					t.Errorf("no rank of host %d told of the outage and its end: %+v", h, of)
				}
			}
			list.finish()
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An outage that takes longer than it may ends the call: the error names the rank that is out of reach and says for how long it
// was waited.
func TestOutageTooLong(t *testing.T) {
	t.Parallel()
	lab := nslab.New(t, 2, 1)
	list := onHosts(t, lab, 2, 1, "flow", "WEFT_OUTAGE=300ms")
	list.order(order{Do: "flow", Delay: time.Minute})
	list.await("inside")
	must(t, lab.Unplug(1, 0))
	all, ends := list.results()
	for r, e := range ends {
		if e.Kind != Dead || !slices.Equal(e.Culprits, []int{1 - r}) || !strings.Contains(e.Err, "no link with it for 300ms") ||
			all[r].Wrong > 0 {
			t.Errorf("rank %d: %d wrong elements, %v %v: %s", r, all[r].Wrong, e.Kind, e.Culprits, e.Err)
		}
	}
}

// A rank that dies is told from a link that is lost, by its host, and at once: not after the time of an outage.
func TestDeathIsNoOutage(t *testing.T) {
	t.Parallel()
	lab := nslab.New(t, 2, 1)
	list := onHosts(t, lab, 2, 1, "flow", "WEFT_OUTAGE=80s")
	list.order(order{Do: "flow", Delay: time.Minute})
	list.await("inside")
	list[1].kill()
	e := list[0].await("flow")
	if e.Kind != Dead || !slices.Equal(e.Culprits, []int{1}) || strings.Contains(e.Err, "no link") {
		t.Errorf("%v %v: %s", e.Kind, e.Culprits, e.Err)
	}
}

// One of two rails that is lost costs no call, is told, and carries messages again when it is back.
func TestRailLost(t *testing.T) {
	t.Parallel()
	lab := nslab.New(t, 2, 2)
	list := onHosts(t, lab, 2, 2, "flow", "WEFT_RAILS=all")
	dir := t.TempDir()
	list.order(order{Do: "flow", Until: dir})
	list.await("inside")
	must(t, lab.Unplug(0, 1))
	noticed(t, dir, 0, 1, 2, 3)
	must(t, lab.Plug(0, 1))
	over(t, dir)
	all, ends := list.results()
	told := 0
	for r := range list {
		told += all[r].Paths
		if ends[r].Err != "" || all[r].Wrong > 0 || all[r].Lost > 0 {
			t.Errorf("rank %d: %d wrong elements, %d outages, %s", r, all[r].Wrong, all[r].Lost, ends[r].Err)
		}
	}
	if told == 0 {
		t.Error("nobody told of the rail")
	}
	before, _, err := lab.Bytes(0, 1)
	must(t, err)
	for range 20 { // a rail comes back within half a second
		list.order(order{Do: "flow", Delay: 200 * time.Millisecond})
		list.await("inside")
		list.results()
		if after, _, _ := lab.Bytes(0, 1); after > before+1<<20 {
			list.finish()
			return
		}
	}
	t.Error("the rail that is back carries nothing")
}

// The variables of links are read, and what is wrong in them is said.
func TestLinkSettings(t *testing.T) {
	read := func(list ...string) (Config, error) {
		e := newEnv(list)
		c := e.settings()
		return c, e.err()
	}
	c, err := read("WEFT_OUTAGE=5s", "WEFT_CHECKSUM=all", "WEFT_TLS=token", "WEFT_TOKEN=x")
	if err != nil || c.Outage != 5*time.Second || c.Checksum != "all" || c.TLS == nil {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := read("WEFT_OUTAGE=none"); err != nil || c.Outage >= 0 {
		t.Errorf("%v, %v", c.Outage, err)
	}
	for _, x := range [][2]string{
		{"WEFT_OUTAGE=soon", `WEFT_OUTAGE="soon" is neither a time such as 30s nor none`},
		{"WEFT_CHECKSUM=some", `WEFT_CHECKSUM="some" is none of hosts, all, none`},
		{"WEFT_TLS=token", "there is no token to make certificates from"},
		{"WEFT_TLS=/nowhere", "want token, or a folder with ca.pem, cert.pem and key.pem"},
	} {
		if _, err := read(x[0]); err == nil || !strings.Contains(err.Error(), x[1]) {
			t.Errorf("%s: %v", x[0], err)
		}
	}
}

func init() { bodies["parting"] = (*kid).parting }

// parting is the end of a job: rank 0 sends a last message and leaves, rank 1 receives it.
func (k *kid) parting() error {
	ctx, x := context.Background(), make([]int64, 1000)
	if err := Barrier(ctx, k.c); err != nil {
		return err
	}
	k.say(event{At: "ready"})
	var o order
	if err := k.orders.Decode(&o); err != nil {
		return err
	}
	if k.c.Rank() == 0 {
		for i := range x {
			x[i] = int64(i)
		}
		return Send(ctx, k.c, x, 1)
	}
	err := Recv(ctx, k.c, x, 0)
	for i := range x {
		if err == nil && x[i] != int64(i) {
			err = fmt.Errorf("element %d is %d", i, x[i])
		}
	}
	k.say(tell("got", err))
	return nil
}

// A rank whose work is done during an outage waits for its end before it leaves: what it sent last is not lost.
func TestLeavingDuringAnOutage(t *testing.T) {
	t.Parallel()
	lab := nslab.New(t, 2, 1)
	list := onHosts(t, lab, 2, 1, "parting")
	list.await("ready")
	must(t, lab.Unplug(1, 0))
	list.order(order{Do: "part"})
	time.Sleep(2500 * time.Millisecond) // the outage itself
	must(t, lab.Plug(1, 0))
	if e := list[1].await("got"); e.Err != "" {
		t.Error(e.Err)
	}
	for _, p := range list {
		p.await("left")
	}
}

// A switch port whose MTU was lowered lets small packets through and swallows large ones: connections are made again and again, and no
// long message comes. That is an outage like any other, which ends with an error that names the pair and what to look for, on every rank
// and before the time limit.
func TestLargePacketsVanish(t *testing.T) {
	lab := nslab.New(t, 3, 1)
	list := onPlaces(t, lab, []int{0, 1, 2}, "flow", "WEFT_OUTAGE=2s", "WEFT_TIMEOUT=20s")
	list.order(order{Do: "flow", Delay: time.Minute})
	list.await("inside")
	must(t, lab.Narrow(2, 0, 600))
	pair := regexp.MustCompile(`between ranks (2 and [01]|[01] and 2) small packets pass and large ones vanish: compare the MTU`)
	for r, e := range list.await("flow") {
		var x flowed
		must(t, json.Unmarshal(e.Value, &x))
		// Both processes live: the two ends are named, and neither is called dead.
		if x.Wrong > 0 || e.Kind != Dead || len(e.Culprits) != 2 || e.Culprits[1] != 2 || !pair.MatchString(e.Err) ||
			strings.Contains(e.Err, "died") {
			t.Errorf("rank %d: %d wrong elements, (%s) %v: %s", r, x.Wrong, e.Kind, e.Culprits, e.Err)
		}
	}
	list.finish()
}

// Large packets that vanish for a while, and longer than it takes to lose a connection, cost time and nothing else.
func TestLargePacketsVanishForAWhile(t *testing.T) {
	lab := nslab.New(t, 2, 1)
	list := onPlaces(t, lab, []int{0, 1}, "flow", "WEFT_OUTAGE=30s")
	const lasts = 1500 * time.Millisecond
	list.order(order{Do: "flow", Delay: 2 * lasts})
	list.await("inside")
	must(t, lab.Narrow(1, 0, 600))
	time.Sleep(lasts) // the fault itself
	must(t, lab.Narrow(1, 0, 1500))
	all, ends := list.results()
	paths := 0
	for r := range list {
		if all[r].Wrong > 0 || ends[r].Err != "" {
			t.Errorf("rank %d: %d wrong elements: %s", r, all[r].Wrong, ends[r].Err)
		}
		paths += all[r].Paths
	}
	t.Logf("%d connections were lost", paths)
	list.finish()
}
