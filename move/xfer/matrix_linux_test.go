package xfer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/soft"
	"github.com/weft-fabric/weft/run/transport/ucx"
	"github.com/zeebo/xxh3"
)

var (
	allFaults  = flag.Bool("xfer.faults", false, "run the whole fault matrix and write docs/reference/tables/transfer-faults.md")
	faultsSeed = flag.Uint64("xfer.seed", 1, "of the fault matrix")
)

// A word that processes of the matrix exchange: one line of JSON each.
type word struct {
	Do      string          `json:"do,omitempty"` // to a process: open, post, reclaim, turn
	Blob    json.RawMessage `json:"blob,omitempty"`
	Op      Op              `json:"op,omitempty"`
	Timeout time.Duration   `json:"timeout,omitempty"`
	Seed    uint64          `json:"seed,omitempty"`

	Is   string `json:"is,omitempty"` // of a process: ready, posted, done, notice, reclaimed, published
	Err  string `json:"err,omitempty"`
	Code uint8  `json:"code,omitempty"`
	Who  string `json:"who,omitempty"`
	Hash uint64 `json:"hash,omitempty"` // of its region
}

const matrixSize = 6 << 20

// matrixAgent is a process of the matrix: an agent with one region.
func matrixAgent() {
	spec := strings.Split(os.Getenv("WEFT_XFER_AGENT"), ",") // name, path, kind, folder, seed, lease
	name, path, kind, dir := spec[0], spec[1], spec[2], spec[3]
	var seed uint64
	var lease int
	fmt.Sscan(spec[4], &seed)
	fmt.Sscan(spec[5], &lease)
	out := json.NewEncoder(os.Stdout)
	says := make(chan word, 100)
	go func() {
		for w := range says {
			_ = out.Encode(w)
		}
	}()
	fatal := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	a, err := New(Config{Name: name, Path: path, Token: "matrix", Lease: time.Duration(lease) * time.Millisecond})
	if err != nil {
		fatal(err)
	}
	b, err := a.Alloc(matrixSize)
	if path == "pull" {
		b = make([]byte, matrixSize) // which cannot be mapped
	}
	if err != nil {
		fatal(err)
	}
	noise(b, seed)
	s := Memory(b)
	switch kind {
	case "host":
	case "gpu":
		d := soft.New(gpu.Plain)
		at, err := d.Alloc(matrixSize)
		if err != nil {
			fatal(err)
		}
		x, err := NewDevice(d, at, matrixSize)
		if err == nil {
			err = x.WriteAt(context.Background(), b, 0)
		}
		if err != nil {
			fatal(err)
		}
		s = x
	default:
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			fatal(err)
		}
		if kind == "file" {
			s, err = OpenFile(filepath.Join(dir, name), FileOptions{NoSync: true, IO: "calls"})
		} else {
			s, err = NewObject(blob.NewDir(dir), name, matrixSize, ObjectOptions{})
		}
		if err != nil {
			fatal(err)
		}
	}
	r, err := a.Register("r", s, 0)
	if err != nil {
		fatal(err)
	}
	hash := func() uint64 {
		all := make([]byte, matrixSize)
		if err := (&place{mem: r.mem, store: r.store, region: r}).read(context.Background(), all, 0); err != nil {
			fatal(err)
		}
		return xxh3.Hash(all)
	}
	failed := func(w word, err error) word {
		var f *Failure
		if err != nil {
			w.Err, w.Code = err.Error(), Code(err)
			if errors.As(err, &f) {
				w.Who = f.Who
			}
		}
		return w
	}
	says <- word{Is: "ready", Blob: a.Describe()}
	go func() {
		for {
			n, err := a.NextNotice(context.Background())
			if err != nil {
				return
			}
			w := failed(word{Is: "notice"}, n.Err)
			if n.Err == nil {
				w.Hash = hash()
			}
			says <- w
		}
	}()
	var local, far *List
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var w word
		if err := json.Unmarshal(line, &w); err != nil {
			fatal(err)
		}
		switch w.Do {
		case "open":
			p, err := a.Open(w.Blob)
			if err != nil {
				fatal(err)
			}
			m, err := p.Region("r")
			if err != nil {
				fatal(err)
			}
			if local, err = a.Prepare(nil, []Desc{r.At(0, matrixSize)}); err != nil {
				fatal(err)
			}
			if far, err = a.Prepare(p, []Desc{m.At(0, matrixSize)}); err != nil {
				fatal(err)
			}
			if path == "ucx" { // UCX starts in a tenth of a second: faults shall meet requests that move
				// On a busy machine it may take longer than two agents have to greet one another: once more, then.
				for end := time.Now().Add(30 * time.Second); ; {
					_, err := p.link("ucx").get(context.Background())
					if err == nil {
						break
					}
					if time.Now().After(end) {
						fatal(err)
					}
				}
			}
			says <- word{Is: "open"}
		case "post":
			q, err := a.Post(Transfer{Op: w.Op, Local: local, Remote: far, Notice: []byte("n"), Timeout: w.Timeout})
			if err != nil {
				says <- failed(word{Is: "done"}, err)
				continue
			}
			says <- word{Is: "posted"}
			go func() {
				d := failed(word{Is: "done"}, q.Wait(context.Background()))
				if d.Err == "" {
					d.Hash = hash()
				}
				says <- d
			}()
		case "reclaim":
			// The owner takes its memory back and uses it for something else.
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			err := r.Reclaim(ctx, 0, matrixSize)
			cancel()
			if err == nil && r.mem != nil {
				noise(r.mem, w.Seed)
			}
			says <- failed(word{Is: "reclaimed"}, err)
		case "turn":
			// It takes its memory back, fills it with a number, and publishes that.
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			err := r.Reclaim(ctx, 0, matrixSize)
			if err == nil {
				err = fillWith(ctx, r, w.Seed)
			}
			cancel()
			if err == nil {
				err = r.Publish(0, matrixSize)
			}
			says <- failed(word{Is: "published", Seed: w.Seed, Blob: a.Describe(r)}, err)
		}
	}
}

// matrixProcess is such a process as the test sees it.
type matrixProcess struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	says chan word
	end  chan struct{}
	must bool // what is waited for must come
}

// startMatrix starts one. It ends after 50 seconds, or some time later.
func startMatrix(t *testing.T, name, path, kind, dir string, seed uint64, lease time.Duration, more ...time.Duration) *matrixProcess {
	t.Helper()
	limit := 50 * time.Second
	for _, d := range more {
		limit += d
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("WEFT_XFER_AGENT=%s,%s,%s,%s,%d,%d", name, path, kind, dir, seed, lease.Milliseconds()))
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &matrixProcess{name: name, cmd: cmd, in: in, says: make(chan word, 100), end: make(chan struct{})}
	go func() {
		defer close(p.end)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				break
			}
			var w word
			if json.Unmarshal(line, &w) == nil {
				p.says <- w
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.end
		cancel()
	})
	return p
}

func (p *matrixProcess) tell(t *testing.T, w word) {
	t.Helper()
	if err := json.NewEncoder(p.in).Encode(w); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
}

// hear waits for one of some words; "" if it has none in time, or has ended.
func (p *matrixProcess) hear(limit time.Duration, which ...string) word {
	after := time.After(limit)
	for {
		select {
		case w := <-p.says:
			if slices.Contains(which, w.Is) {
				return w
			}
		case <-after:
			if p.must {
				_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines, for whoever reads the failure
				<-p.end
			}
			return word{}
		case <-p.end:
			select {
			case w := <-p.says:
				if slices.Contains(which, w.Is) {
					return w
				}
				continue
			default:
				return word{}
			}
		}
	}
}

// matrixWays are paths, and what the target's region is made of. On the way of GPUs both ends have memory of one. Reading the memory of
// a process that is no child takes leave, which root has.
func matrixWays() [][2]string {
	ways := [][2]string{{"shm", "host"}, {"tcp", "host"}, {"tcp", "file"}, {"tcp", "object"}, {"unix", "file"}, {"unix", "object"},
		{"gpu", "gpu"}}
	if os.Geteuid() == 0 {
		ways = append(ways, [2]string{"pull", "host"})
	}
	if _, err := ucx.Version(); err == nil {
		ways = append(ways, [2]string{"ucx", "host"})
	}
	return ways
}

// A case of the matrix.
type faultCase struct {
	fault  string // kill, stop, lease
	path   string
	kind   string // of the target's region
	op     Op
	victim string // initiator or target
	moment int    // 0 before the post; else a time after it, of the seed
}

func (c faultCase) String() string {
	return fmt.Sprintf("%s/%s/%s/%s/%s/%d", c.fault, c.path, c.kind, c.op, c.victim, c.moment)
}

// outcome is what a case came to.
type outcome struct {
	done, failed int // ends that succeeded, and that got an error
	right        int // errors that name the victim
	wrong        int // wrong bytes
	hung         int // ends that heard nothing
	noticed      time.Duration
}

// Processes die, stop, and outlive their leases, at any moment of a request: no wrong bytes, no hangs, both ends
// hear of it, the right one is named. The hash of the source when the request was posted is compared with
// that of what landed.
func TestFaultMatrix(t *testing.T) {
	t.Parallel() // most of its time is spent waiting
	var cases []faultCase
	moments := 2
	if *allFaults {
		moments = 5
	}
	for _, way := range matrixWays() {
		for _, op := range []Op{Read, Write} {
			for m := range moments {
				for _, victim := range []string{"initiator", "target"} {
					cases = append(cases, faultCase{"kill -9", way[0], way[1], op, victim, m}, faultCase{"SIGSTOP", way[0], way[1], op, victim, m})
				}
				if op == Read && way[1] == "host" && m > 0 {
					cases = append(cases, faultCase{"stopped beyond its lease", way[0], way[1], op, "initiator", m})
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(*faultsSeed, 5))
	if !*allFaults {
		// A few of them, others on every day; all take minutes.
		if testing.Short() {
			t.Skip("starts processes")
		}
		r.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
		slices.SortStableFunc(cases, func(a, b faultCase) int { return strings.Compare(a.fault, b.fault) })
		var some []faultCase
		for i, c := range cases {
			if i == 0 || i%40 == 0 || c.fault != cases[i-1].fault {
				some = append(some, c)
			}
		}
		cases = some
	}
	type key struct{ fault, path, kind string }
	table := map[key]*outcome{}
	count := map[key]int{}
	var slow []time.Duration
	for _, c := range cases {
		ok := t.Run(c.String(), func(t *testing.T) {
			o := runFault(t, c, r)
			k := key{c.fault, c.path, c.kind}
			if table[k] == nil {
				table[k] = &outcome{}
			}
			x := table[k]
			count[k]++
			x.done, x.failed, x.right, x.wrong, x.hung = x.done+o.done, x.failed+o.failed, x.right+o.right, x.wrong+o.wrong, x.hung+o.hung
			if o.noticed > 0 {
				slow = append(slow, o.noticed)
				x.noticed = max(x.noticed, o.noticed)
			}
			if o.wrong > 0 || o.hung > 0 || o.right != o.failed {
				t.Errorf("%+v; replay with -xfer.seed %d", o, *faultsSeed)
			}
		})
		if !ok && !*allFaults {
			break
		}
	}
	if !*allFaults || t.Failed() {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		"| fault | path | region of the target | cases | ends that went on to the end | errors | right agent named | wrong bytes | hangs | longest until told |\n|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, fault := range []string{"kill -9", "SIGSTOP", "stopped beyond its lease"} {
		for _, way := range matrixWays() {
			k := key{fault, way[0], way[1]}
			if x := table[k]; x != nil {
				fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d | %d | %d | %v |\n",
					fault, way[0], way[1], count[k], x.done, x.failed, x.right, x.wrong, x.hung, x.noticed.Round(time.Millisecond))
			}
		}
	}
	if err := os.WriteFile("../../docs/reference/tables/transfer-faults.md", []byte(transferFaultsHead+b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// transferFaultsHead begins docs/reference/tables/transfer-faults.md.
const transferFaultsHead = `# Faults of transfers

Made by:

    make xfer-faults

[Reliability](../reliability.md#transfers) says what holds. Initiator and target are processes; the target's region is memory, a file or an
object. One of them is killed or stopped, before the request is posted or in its first milliseconds, as the seed draws. The source's
hash is compared with what landed, at both ends. An error must name the right agent and come within a second of the kill, or of the
deadline (700 ms). A reader stopped beyond its lease must have all the old bytes or an error, never a mixture.

`

func runFault(t *testing.T, c faultCase, r *rand.Rand) (o outcome) {
	dir := t.TempDir()
	lease := 20 * time.Second
	if c.fault == "stopped beyond its lease" {
		lease = 150 * time.Millisecond
	}
	mine := "host"
	if c.kind == "gpu" {
		mine = "gpu"
	}
	a := startMatrix(t, "a", c.path, mine, dir, 1, lease)
	b := startMatrix(t, "b", c.path, c.kind, dir, 2, lease)
	ready := b.hear(30*time.Second, "ready")
	if ready.Is == "" || a.hear(30*time.Second, "ready").Is == "" {
		t.Fatal("a process did not start")
	}
	a.tell(t, word{Do: "open", Blob: ready.Blob})
	if a.hear(40*time.Second, "open").Is == "" {
		t.Fatal("the agent did not open the other")
	}
	hashOf := func(seed uint64) uint64 {
		x := make([]byte, matrixSize)
		noise(x, seed)
		return xxh3.Hash(x)
	}
	source := hashOf(2)
	if c.op == Write {
		source = hashOf(1)
	}
	victim, other := a, b
	if c.victim == "target" {
		victim, other = b, a
	}
	const timeout = 700 * time.Millisecond
	limit := 20 * time.Second
	if c.fault == "SIGSTOP" {
		limit = timeout
	}
	sig := syscall.SIGKILL
	if c.fault != "kill -9" {
		sig = syscall.SIGSTOP
	}
	var began time.Time
	strike := func() {
		began = time.Now()
		if err := victim.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if c.moment == 0 {
		strike()
		if c.victim == "initiator" && c.fault == "kill -9" {
			return o // nobody ever posts
		}
	}
	_ = json.NewEncoder(a.in).Encode(word{Do: "post", Op: c.op, Timeout: limit})
	if c.moment > 0 {
		if a.hear(20*time.Second, "posted", "done").Is == "" {
			t.Fatal("nothing was posted")
		}
		pause := time.Duration(r.Int64N(int64(c.moment) * int64(2*time.Millisecond)))
		for end := time.Now().Add(pause); time.Now().Before(end); { // the moment of the fault
		}
		strike()
	}
	a.must = true
	switch c.fault {
	case "SIGSTOP":
		if other == a {
			// The initiator must not wait for a stopped target beyond its deadline.
			o.judge(a.hear(limit+20*time.Second, "done"), c, source, "b", began, limit)
		}
		time.Sleep(max(0, time.Until(began.Add(limit+300*time.Millisecond)))) // it is stopped for this long
		_ = victim.cmd.Process.Signal(syscall.SIGCONT)
		if victim == a {
			// Once it runs again it finds its deadline, or was done before.
			w := a.hear(20*time.Second, "done")
			o.judge(w, c, source, "", began, 0)
		}
		if n := b.hear(1200*time.Millisecond, "notice"); n.Is != "" { // else it never heard of the request
			o.judge(n, c, source, "", began, 0)
		}
		return o
	case "stopped beyond its lease":
		time.Sleep(lease + leaseGrace + 100*time.Millisecond) // it is stopped for this long
		b.tell(t, word{Do: "reclaim", Seed: 99})
		if w := b.hear(20*time.Second, "reclaimed"); w.Is == "" || w.Err != "" {
			t.Errorf("the owner could not have its memory back: %+v", w)
			o.hung++
		}
		_ = victim.cmd.Process.Signal(syscall.SIGCONT)
		w := a.hear(20*time.Second, "done")
		if w.Is == "" {
			o.hung++
			return o
		}
		if w.Err == "" {
			// It may have been stopped before it had its lease: then it has all the new bytes. Never some of each.
			o.done++
			if w.Hash != source && w.Hash != hashOf(99) {
				o.wrong++
			}
		} else {
			o.failed++
			o.right++ // a lease that is over is the reader's fault or the owner's; what counts is that it was noticed
		}
		return o
	}
	if other == a {
		o.judge(a.hear(20*time.Second, "done"), c, source, "b", began, time.Second)
		return o
	}
	n := b.hear(2500*time.Millisecond, "notice")
	if n.Is == "" {
		// A request that never reached the target is nobody's loss: its bytes are as they were.
		return o
	}
	o.judge(n, c, source, "a", began, time.Second)
	return o
}

// judge counts what an end heard. who is the one that an error must name; "" for anybody.
func (o *outcome) judge(w word, c faultCase, source uint64, who string, began time.Time, soon time.Duration) {
	switch {
	case w.Is == "":
		o.hung++
	case w.Err != "":
		o.failed++
		if who == "" || w.Who == who {
			o.right++
		}
		if soon > 0 {
			o.noticed = time.Since(began)
		}
	default:
		o.done++
		// Hash is of the end's own region: after a write that of the target, after a read that of the initiator.
		if (w.Is == "done") == (c.op == Read) && w.Hash != source {
			o.wrong++
		}
	}
}

func runMatrixAgent() { matrixAgent() }
