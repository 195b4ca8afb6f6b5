package elastic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/internal/member"
)

// Ranks are goroutines of this process with communicators of their own over
// loopback, and measure it once for all tests.
func TestMain(m *testing.M) {
	cache, err := os.MkdirTemp("", "weft-elastic-test-")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CACHE_HOME", cache)
	os.Setenv("WEFT_TRANSPORT", "tcp")
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(cache)
		os.Exit(code)
	}))
}

// limit bounds what a test waits for; it is no measure of speed.
const limit = 30 * time.Second

// sockets are two connected ends of a pair as an agent makes it.
func sockets(t testing.TB) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return ends[0], ends[1]
}

// person is a rank and the agent's end of its connection.
type person struct {
	t     *testing.T
	id    int
	life  member.Life
	link  *Link
	conn  net.Conn // the agent's end
	addr  string
	words chan Word
	job   *labour
	leave context.CancelFunc
	done  chan error // what Run returned, once
}

// labour is a Job whose steps add up ones, and which stops where it is told to.
type labour struct {
	mu     sync.Mutex
	c      *comm.Comm
	e      Epoch
	formed []uint64 // epochs that formed
	steps  map[uint64]int
	total  int
	halted []uint64

	gate  chan struct{}                            // one step for each value, if set
	begun chan uint64                              // hears of steps that begin, as many as it holds, if set
	form  func(ctx context.Context, e Epoch) error // after the collective of Form
	step  func(e Epoch, total int) (last bool, err error)
	halt  error
}

func (j *labour) Form(ctx context.Context, c *comm.Comm, e Epoch) error {
	if j.form != nil {
		if err := j.form(ctx, e); err != nil {
			return err
		}
	}
	// Those that have taken more steps tell the others.
	total := []int64{int64(j.total)}
	if err := comm.AllReduce(ctx, c, total, comm.Max); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.c, j.e, j.total = c, e, int(total[0])
	j.formed = append(j.formed, e.Number)
	return nil
}

func (j *labour) Step(ctx context.Context) (last bool, err error) {
	select {
	case j.begun <- j.e.Number:
	default: // nobody waits for this step, and steps wait for nobody
	}
	if j.gate != nil {
		select {
		case <-j.gate:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	ones := []float64{1}
	if err := comm.AllReduce(ctx, j.c, ones, comm.Sum); err != nil {
		return false, err
	}
	if int(ones[0]) != len(j.e.Members) {
		return false, fmt.Errorf("%v ranks took part in a step of %d", ones[0], len(j.e.Members))
	}
	j.mu.Lock()
	j.total++
	j.steps[j.e.Number]++
	total := j.total
	j.mu.Unlock()
	if j.step != nil {
		return j.step(j.e, total)
	}
	return false, nil
}

func (j *labour) Halt(ctx context.Context, c *comm.Comm, e Epoch) error {
	if err := comm.Barrier(ctx, c); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.halted = append(j.halted, e.Number)
	return j.halt
}

// enter makes a rank that has said Hello; run sets it to work.
func enter(t *testing.T, id int) *person {
	t.Helper()
	ours, theirs := sockets(t)
	link, err := connect(theirs, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, id: id, life: member.Life(id + 1), link: link, conn: ours, words: make(chan Word, 10_000),
		job: &labour{steps: map[uint64]int{}}, done: make(chan error, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.words)
		_ = Lines(ours, func(w Word) {
			if w.Kind != Beat {
				p.words <- w
			}
		})
	}()
	t.Cleanup(func() {
		ours.Close()
		<-read
	})
	p.addr = p.hears(Hello, 0).Addr
	return p
}

// hears waits for a word of a kind, of an epoch if that is not 0.
func (p *person) hears(kind Kind, epoch uint64) Word {
	p.t.Helper()
	late := time.After(limit)
	var seen []string
	for {
		select {
		case w, ok := <-p.words:
			if !ok {
				p.t.Fatalf("slot %d: its connection ended, waiting for %q of epoch %d after %v", p.id, kind, epoch, seen)
			}
			if w.Kind == kind && (epoch == 0 || w.Epoch == epoch) {
				return w
			}
			seen = append(seen, fmt.Sprintf("%s %d %s", w.Kind, w.Epoch, w.Text))
		case <-late:
			p.t.Fatalf("slot %d: waiting for %q of epoch %d; it said %v", p.id, kind, epoch, seen)
		}
	}
}

func (p *person) run() {
	ctx, cancel := context.WithCancel(context.Background())
	p.leave = cancel
	go func() {
		err := Run(ctx, p.link, p.job)
		p.link.Close(err)
		p.done <- err
	}()
	p.t.Cleanup(func() {
		cancel()
		p.conn.Close()
		select {
		case <-p.done:
		case <-time.After(limit):
			p.t.Errorf("slot %d: Run does not end with its agent", p.id)
		}
	})
}

// ends waits for what Run returns.
func (p *person) ends() error {
	p.t.Helper()
	select {
	case err := <-p.done:
		p.done <- err // for whoever asks again
		return err
	case <-time.After(limit):
		p.t.Fatalf("slot %d: Run goes on", p.id)
		return nil
	}
}

func (p *person) say(w Word) {
	p.t.Helper()
	line, err := json.Marshal(w)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.conn.Write(append(line, '\n')); err != nil {
		p.t.Fatalf("slot %d: %v", p.id, err)
	}
}

// total is the number of steps that a rank has taken.
func (p *person) total() int {
	p.job.mu.Lock()
	defer p.job.mu.Unlock()
	return p.job.total
}

// crew makes n ranks at work.
func crew(t *testing.T, n int, set func(*person)) []*person {
	t.Helper()
	var list []*person
	for i := range n {
		p := enter(t, i)
		if set != nil {
			set(p)
		}
		list = append(list, p)
	}
	for _, p := range list {
		p.run()
	}
	return list
}

// epoch is one of these ranks, in the order of their ids.
func epoch(number uint64, members ...*person) *Epoch {
	e := &Epoch{Number: number, Addr: members[0].addr, Token: fmt.Sprintf("token of epoch %d", number), Reason: "as the test says"}
	for _, p := range members {
		e.Members = append(e.Members, Seat{ID: member.ID(p.id), Life: p.life})
	}
	return e
}

// tell tells ranks of an epoch, each with its own rank in it.
func tell(e *Epoch, to ...*person) {
	for _, p := range to {
		own := *e
		own.Rank = slices.Index(e.Members, Seat{ID: member.ID(p.id), Life: p.life})
		p.say(Word{Kind: Assign, Place: &own})
	}
}

// formed waits until ranks are at work in an epoch.
func formed(number uint64, list ...*person) {
	for _, p := range list {
		p.t.Helper()
		p.hears(Formed, number)
	}
}

// stop ends a crew through one of its ranks and checks that all have taken the
// same number of steps.
func stop(t *testing.T, through *person, list ...*person) {
	t.Helper()
	through.say(Word{Kind: Stop})
	for _, p := range list {
		if err := p.ends(); err != nil {
			t.Errorf("slot %d: %v", p.id, err)
		}
		if p.total() != list[0].total() {
			t.Errorf("slot %d stopped after %d steps, slot %d after %d", p.id, p.total(), list[0].id, list[0].total())
		}
	}
}

func isFatal(err error) bool {
	var f *Fatal
	return errors.As(err, &f)
}
