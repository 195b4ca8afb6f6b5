package rendezvous

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
)

func TestMain(m *testing.M) {
	if os.Getenv("WEFT_MEET_CHILD") != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// child is a rank as a process of its own: it comes, gathers twice and waits
// for its end.
func child() {
	rank, _ := strconv.Atoi(os.Getenv("RANK"))
	size, _ := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := Join(ctx, Config{Addr: os.Getenv("WEFT_MEET_CHILD"), Rank: rank, Size: size, Token: "t"})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for round := range 2 {
		all, err := r.Gather(ctx, fmt.Appendf(nil, "%d/%d", rank, round))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Printf("%s\n", all)
	}
	<-ctx.Done()
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// joinAll makes a rendezvous of n ranks, each as change left its configuration.
func joinAll(ctx context.Context, l net.Listener, n int, change func(*Config)) ([]*Meeting, []error) {
	return joinEach(ctx, ctx, l, n, change)
}

// joinEach is joinAll with a context for rank 0 and one for the others.
func joinEach(first, others context.Context, l net.Listener, n int, change func(*Config)) ([]*Meeting, []error) {
	meetings, errs := make([]*Meeting, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			cfg, ctx := Config{Addr: l.Addr().String(), Rank: i, Size: n, Token: "t"}, others
			if i == 0 {
				cfg.Listener, ctx = l, first
			}
			if change != nil {
				change(&cfg)
			}
			meetings[i], errs[i] = Join(ctx, cfg)
		})
	}
	wg.Wait()
	return meetings, errs
}

func closeAll(meetings []*Meeting) {
	for _, r := range meetings {
		if r != nil {
			r.Close()
		}
	}
}

func TestGather(t *testing.T) {
	for _, n := range []int{1, 2, 5, 16} {
		meetings, errs := joinAll(within(t, 50*time.Second), listener(t), n, nil)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for round := range 5 {
			var wg sync.WaitGroup
			for i, r := range meetings {
				wg.Go(func() {
					mine := []byte(strings.Repeat(fmt.Sprint(i, round), i*round*100))
					all, err := r.Gather(t.Context(), mine)
					if err != nil || len(all) != n {
						t.Errorf("rank %d of %d, round %d: %d blobs, %v", i, n, round, len(all), err)
						return
					}
					for j, b := range all {
						if want := strings.Repeat(fmt.Sprint(j, round), j*round*100); string(b) != want {
							t.Errorf("rank %d of %d, round %d: rank %d gave %d bytes, want %d", i, n, round, j, len(b), len(want))
						}
					}
				})
			}
			wg.Wait()
		}
		for _, r := range meetings[1:] {
			if r.World() != meetings[0].World() {
				t.Error("the world differs")
			}
		}
		closeAll(meetings)
	}
}

func TestLateRankZero(t *testing.T) {
	l := listener(t)
	addr := l.Addr().String()
	l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := Join(within(t, 50*time.Second), Config{Addr: addr, Rank: 1, Size: 2, Token: "t"})
		if r != nil {
			defer r.Close()
		}
		done <- err
	}()
	// Rank 0 comes when rank 1 has been turned away by the closed port at least once, or later.
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Fatal("the port is open")
	}
	r, err := Join(within(t, 50*time.Second), Config{Addr: addr, Rank: 0, Size: 2, Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.Close()
}

func TestJoinErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   [2]string // on rank 0, on rank 2
	}{
		{"size", func(c *Config) {
			if c.Rank == 2 {
				c.Size = 5
			}
		}, [2]string{"rank 2 says there are 5 ranks, rank 0 says 3", "rank 2 says there are 5 ranks, rank 0 says 3"}},
		{"range", func(c *Config) {
			if c.Rank == 2 {
				c.Rank = 4
			}
		}, [2]string{"ranks 2 of 3", "rank 4 of 3: a rank is a number from 0 to size-1"}},
		{"duplicate", func(c *Config) {
			if c.Rank == 2 {
				c.Rank = 1
			}
		}, [2]string{"as rank 1: each needs a rank of its own (RANK)", "two processes came to 127.0.0.1"}},
		{"token", func(c *Config) {
			if c.Rank == 2 {
				c.Token = "other"
			}
		}, [2]string{"(turned away: hello.token 1)", "tokens differ"}},
		{"missing", func(c *Config) {
			if c.Rank == 2 {
				c.Addr = "nowhere"
			}
		}, [2]string{"rank 2 of 3 did not come to 127.0.0.1", `"nowhere"`}},
		{"open", func(c *Config) {
			if c.Rank == 2 {
				c.Addr, c.Token = "192.0.2.1:5", ""
			}
		}, [2]string{"rank 2 of 3 did not come", "WEFT_TOKEN"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// Where somebody is waited for in vain, long enough for all others to come; and
			// these are still there when rank 0 gives up.
			meetings, errs := joinEach(within(t, 4*time.Second), within(t, 10*time.Second), listener(t), 3, c.change)
			defer closeAll(meetings)
			for i, rank := range []int{0, 2} {
				err := errs[rank]
				want := strings.ReplaceAll(c.want[i], "ranks 2 of", "rank 2 of")
				if c.name == "duplicate" && rank == 2 && err != nil && !strings.Contains(err.Error(), "two processes") {
					err = errs[1] // which of the two came first is open
				}
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("rank %d: %v, want %q", rank, err, want)
				}
			}
			if errs[1] == nil {
				t.Error("rank 1 joined a rendezvous that never filled up")
			}
		})
	}
}

// A rank of an earlier epoch of a job learns so, and nothing of tokens, which differ in every epoch.
func TestEarlierEpoch(t *testing.T) {
	l := listener(t)
	var log strings.Builder
	_, errs := joinEach(within(t, 2*time.Second), within(t, 20*time.Second), l, 2, func(c *Config) {
		c.Epoch, c.Token = 5, "of 5"
		if c.Rank == 1 {
			c.Epoch, c.Token = 4, "of 4"
		} else {
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		}
	})
	for i, want := range []string{"hello.epoch 1", "belongs to epoch 5 of the job, this rank to epoch 4"} {
		if err := errs[i]; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "token") {
			t.Errorf("rank %d: %v, want %q", i, err, want)
		}
	}
	if got := log.String(); !strings.Contains(got, "kind=epoch") || !strings.Contains(got, "belongs to epoch 4 of the job, this is epoch 5") {
		t.Errorf("log: %s", got)
	}
}

// A rank of a later epoch waits until the earlier one has left the address.
func TestLaterEpoch(t *testing.T) {
	l := listener(t)
	addr := l.Addr().String()
	early, done := within(t, time.Second), make(chan error)
	go func() {
		_, err := Join(early, Config{Addr: addr, Rank: 0, Size: 2, Token: "of 4", Epoch: 4, Listener: l})
		done <- err
	}()
	late := within(t, 30*time.Second)
	go func() {
		<-done
		m, err := Join(late, Config{Addr: addr, Rank: 0, Size: 2, Token: "of 5", Epoch: 5})
		if m != nil {
			defer m.Close()
		}
		done <- err
	}()
	m, err := Join(late, Config{Addr: addr, Rank: 1, Size: 2, Token: "of 5", Epoch: 5})
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Ranks that gave up waiting before rank 0 does are not blamed for the one that never came.
func TestWhoGaveUpIsNotMissing(t *testing.T) {
	l := listener(t)
	first, giveUp := context.WithCancel(within(t, 50*time.Second))
	others, leave := context.WithCancel(first)
	var meetings [3]*Meeting
	var errs [3]error
	var wg sync.WaitGroup
	for i := range meetings {
		cfg, ctx := Config{Addr: l.Addr().String(), Rank: i, Size: 4, Token: "t"}, others
		if i == 0 {
			cfg.Listener, ctx = l, first
		}
		r, err := meeting(cfg)
		if err != nil {
			t.Fatal(err)
		}
		meetings[i] = r
		wg.Go(func() { errs[i] = r.join(ctx) })
	}
	known := func(i int, cond func(r *Meeting) bool) {
		r := meetings[i]
		r.mu.Lock()
		defer r.mu.Unlock()
		if err := r.until(first, func() bool { return cond(r) }); err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
	for _, i := range []int{1, 2} {
		known(i, func(r *Meeting) bool { return slices.Equal(r.wait, []int{3}) })
	}
	leave()
	known(0, func(r *Meeting) bool { return slices.Equal(r.missing(), []int{1, 2, 3}) })
	giveUp()
	wg.Wait()
	if err := errs[0]; err == nil || !strings.Contains(err.Error(), "rank 3 of 4 did not come") ||
		!strings.Contains(err.Error(), "ranks 1, 2 came and left again") {
		t.Errorf("rank 0: %v", err)
	}
	for _, rank := range []int{1, 2} {
		if err := errs[rank]; err == nil || !strings.Contains(err.Error(), "waited for rank 3 of 4") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// Rank 0 is interrupted while it waits. The other is told that, and not that time was over or that it was wrong.
func TestInterruptedMeeting(t *testing.T) {
	l := listener(t)
	first, giveUp := context.WithCancelCause(within(t, 50*time.Second))
	var errs [2]error
	var meetings [2]*Meeting
	var wg sync.WaitGroup
	for i := range meetings {
		cfg, ctx := Config{Addr: l.Addr().String(), Rank: i, Size: 3, Token: "t"}, within(t, 50*time.Second)
		if i == 0 {
			cfg.Listener, ctx = l, first
		}
		r, err := meeting(cfg)
		if err != nil {
			t.Fatal(err)
		}
		meetings[i] = r
		wg.Go(func() { errs[i] = r.join(ctx) })
	}
	r := meetings[1]
	r.mu.Lock()
	if err := r.until(first, func() bool { return slices.Equal(r.wait, []int{2}) }); err != nil {
		t.Error(err)
	}
	r.mu.Unlock()
	giveUp(errors.New("somebody pressed Ctrl-C"))
	wg.Wait()
	for i, err := range errs {
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "rank 0 gave up: somebody pressed Ctrl-C") {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// Whose time is over when it gathers gives up, and the others hear that from it.
func TestGatherTooLate(t *testing.T) {
	for late := range 2 {
		meetings, errs := joinAll(within(t, 50*time.Second), listener(t), 2, nil)
		defer closeAll(meetings)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		over, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		if _, err := meetings[late].Gather(over, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("rank %d, whose time is over: %v", late, err)
		}
		var err error
		for err == nil { // a round for which it had given its word is complete
			_, err = meetings[1-late].Gather(within(t, 50*time.Second), nil)
		}
		if !strings.Contains(err.Error(), "context deadline exceeded") || strings.Contains(err.Error(), "left the rendezvous") {
			t.Errorf("rank %d: %v", 1-late, err)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	l := listener(t)
	addr := l.Addr().String()
	l.Close()
	defer func(was time.Duration) { long = was }(long)
	long = 100 * time.Millisecond
	var log notes
	began := time.Now()
	_, err := Join(within(t, 3*time.Second), Config{Addr: addr, Rank: 3, Size: 4, Token: "t", Log: slog.New(slog.NewTextHandler(&log, nil))})
	lasted := time.Since(began)
	for _, want := range []string{"rank 3", "refused"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	_, said, _ := strings.Cut(fmt.Sprint(err), addr+" for ")
	said, _, _ = strings.Cut(said, ":")
	if d, err := time.ParseDuration(said); err != nil || d <= 0 || d > lasted+time.Millisecond {
		t.Errorf("it tried for %q, want at most the %s that it took", said, lasted)
	}
	if want := `waits_for="rank 0" at=` + addr; strings.Count(log.text(), want) != 1 {
		t.Errorf("log %q, want %q in it once", log.text(), want)
	}
}

// notes is a log that may be read while it is written.
type notes struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (n *notes) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.Write(b)
}

func (n *notes) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.String()
}

func TestStrangerListens(t *testing.T) {
	l := listener(t)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))
			_, _ = c.Read(make([]byte, 1000))
			c.Close()
		}
	}()
	_, err := Join(within(t, 50*time.Second), Config{Addr: l.Addr().String(), Rank: 1, Size: 2, Token: "t"})
	if err == nil || !strings.Contains(err.Error(), "not weft") {
		t.Error(err)
	}
}

func TestTell(t *testing.T) {
	type word struct {
		at, from int
		what     string
	}
	heard := make(chan word, 100)
	meetings, errs := joinAll(within(t, 50*time.Second), listener(t), 4, func(c *Config) {
		rank := c.Rank
		c.Heard = func(from int, b []byte) { heard <- word{rank, from, string(b)} }
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(meetings)
	for from, r := range meetings {
		if err := r.Tell([]byte("abort")); err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for range 3 {
			w := <-heard
			if w.from != from || w.what != "abort" || w.at == from || seen[w.at] {
				t.Errorf("%+v from %d", w, from)
			}
			seen[w.at] = true
		}
	}
}

// TestDeath kills a rank that is a process: all others are told, and a Gather
// under way fails with its number on all.
func TestDeath(t *testing.T) {
	l := listener(t)
	cmd := bounded.Server(t, os.Args[0])
	cmd.Env = append(os.Environ(), "WEFT_MEET_CHILD="+l.Addr().String(), "RANK=2", "WORLD_SIZE=3")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lost := make(chan [2]int, 10)
	ctx := within(t, 30*time.Second)
	meetings, errs := make([]*Meeting, 2), make([]error, 2)
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			cfg := Config{Addr: l.Addr().String(), Rank: i, Size: 3, Token: "t", Lost: func(rank int, _ error) { lost <- [2]int{i, rank} }}
			if i == 0 {
				cfg.Listener = l
			}
			if meetings[i], errs[i] = Join(ctx, cfg); errs[i] != nil {
				return
			}
			for range 2 {
				if _, err := meetings[i].Gather(ctx, []byte{byte(i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(meetings)
	buf := make([]byte, 100)
	n, _ := out.Read(buf)
	if !strings.Contains(string(buf[:n]), "2/0") {
		t.Errorf("the process printed %q", buf[:n])
	}
	for i := range 2 {
		wg.Go(func() {
			if _, err := meetings[i].Gather(ctx, nil); err == nil || !strings.Contains(err.Error(), "rank 2") {
				t.Errorf("rank %d gathered with %v", i, err)
			}
		})
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wg.Wait()
	told := map[int]bool{}
	for range 2 {
		w := <-lost
		if w[1] != 2 {
			t.Errorf("rank %d was told that rank %d is lost", w[0], w[1])
		}
		told[w[0]] = true
	}
	if len(told) != 2 || meetings[0].Alive(2) == nil || meetings[1].Alive(2) == nil || meetings[0].Alive(1) != nil {
		t.Error("not all know who died")
	}
}

// A rank that gathers already is told when another died before rank 0 gathers.
func TestDeathBeforeRankZeroGathers(t *testing.T) {
	ctx := within(t, 30*time.Second)
	lost := make(chan int, 10)
	meetings, errs := joinAll(ctx, listener(t), 3, func(c *Config) {
		if c.Rank == 0 {
			c.Lost = func(rank int, _ error) { lost <- rank }
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(meetings)
	heard := make(chan error, 1)
	go func() {
		_, err := meetings[1].Gather(ctx, []byte("here"))
		heard <- err
	}()
	zero := meetings[0]
	bounded.Until(t, 50*time.Second, "what rank 1 gave", func() bool {
		zero.mu.Lock()
		defer zero.mu.Unlock()
		return zero.blobs != nil && zero.blobs[1] != nil
	})
	meetings[2].mu.Lock()
	meetings[2].links[0].conn.Close()
	meetings[2].mu.Unlock()
	if rank := <-lost; rank != 2 {
		t.Fatalf("rank %d was lost", rank)
	}
	if _, err := zero.Gather(ctx, nil); err == nil || !strings.Contains(err.Error(), "rank 2") {
		t.Errorf("rank 0 gathered with %v", err)
	}
	if err := <-heard; err == nil || !strings.Contains(err.Error(), "rank 2") {
		t.Errorf("rank 1 gathered with %v", err)
	}
}

func TestLeave(t *testing.T) {
	meetings, errs := joinAll(within(t, 50*time.Second), listener(t), 2, func(c *Config) {
		c.Lost = func(rank int, why error) { t.Errorf("rank %d lost: %v", rank, why) }
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(meetings)
	meetings[1].Close()
	if _, err := meetings[0].Gather(within(t, 50*time.Second), nil); err == nil ||
		!strings.Contains(err.Error(), "rank 1 left the rendezvous: it took its leave") {
		t.Error(err)
	}
}

// Who gives up says why to those that wait for it.
func TestLeaveForAReason(t *testing.T) {
	for who := range 2 {
		meetings, errs := joinAll(within(t, 50*time.Second), listener(t), 2, nil)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		meetings[who].Leave(errors.New("the disk is full"))
		if _, err := meetings[1-who].Gather(within(t, 50*time.Second), nil); err == nil ||
			!strings.Contains(err.Error(), "it gave up: the disk is full") {
			t.Errorf("rank %d left: %v", who, err)
		}
		closeAll(meetings)
	}
}

func counter(cs []transport.Counter, name string) uint64 {
	for _, c := range cs {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// TestLateDuplicate comes with the right token to a rendezvous that is full: it is
// refused and the rendezvous goes on.
func TestLateDuplicate(t *testing.T) {
	l := listener(t)
	meetings, errs := joinAll(within(t, 50*time.Second), l, 2, nil)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(meetings)
	_, err := Join(within(t, 50*time.Second), Config{Addr: l.Addr().String(), Rank: 1, Size: 2, Token: "t"})
	if err == nil || !strings.Contains(err.Error(), "as rank 1: each needs") {
		t.Error(err)
	}
	if !bounded.Holds(20*time.Second, func() bool { return counter(meetings[0].Counters(), "hello.refused") == 1 }) { // once it was told so
		t.Fatal(meetings[0].Counters())
	}
	var wg sync.WaitGroup
	for _, r := range meetings {
		wg.Go(func() {
			if _, err := r.Gather(within(t, 50*time.Second), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A rank loses its connection while it waits for others, and rank 0 does not see that: it dials again and is let in, as one
// process. An attempt from before that comes late changes nothing.
func TestDialsAgainBeforeTheEndIsSeen(t *testing.T) {
	l := listener(t)
	between, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer between.Close()
	cut := make(chan net.Conn, 1) // rank 0's end of the connection that rank 1 lost
	go func() {
		for first := true; ; first = false {
			near, err := between.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				near.Close()
				return
			}
			go func() { _, _ = io.Copy(far, near) }()
			go func() {
				if !first {
					_, _ = io.Copy(near, far)
					near.Close()
					return
				}
				_, _ = io.CopyN(near, far, 300) // challenge, verdict and the word whom rank 0 waits for
				_ = near.(*net.TCPConn).SetLinger(0)
				near.Close()
				cut <- far
			}()
		}
	}()
	meetings, errs := make([]*Meeting, 3), make([]error, 3)
	var wg sync.WaitGroup
	wg.Go(func() {
		meetings[0], errs[0] = Join(within(t, 50*time.Second), Config{Listener: l, Size: 3, Token: "t"})
	})
	wg.Go(func() {
		meetings[1], errs[1] = Join(within(t, 50*time.Second), Config{Addr: between.Addr().String(), Rank: 1, Size: 3, Token: "t"})
	})
	select {
	case far := <-cut:
		defer far.Close()
	case <-time.After(40 * time.Second):
		t.Fatal("rank 1 was never told whom rank 0 waits for")
	}
	wg.Go(func() {
		meetings[2], errs[2] = Join(within(t, 50*time.Second), Config{Addr: l.Addr().String(), Rank: 2, Size: 3, Token: "t"})
	})
	wg.Wait()
	defer closeAll(meetings)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, r := range meetings {
		wg.Go(func() {
			if _, err := r.Gather(within(t, 50*time.Second), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Of two attempts of one process the later one counts, in whichever order they come in.
func TestTheLaterAttemptCounts(t *testing.T) {
	m, err := meeting(Config{Addr: "127.0.0.1:1", Size: 3})
	if err != nil {
		t.Fatal(err)
	}
	hello := func(attempt uint64) auth.Hello {
		return auth.Hello{Purpose: auth.Meet, Rank: 1, Size: 3, Extra: newVisit([8]byte{7}, attempt)}
	}
	if err := errors.Join(m.admit(hello(1)), m.admit(hello(2))); err != nil {
		t.Fatal(err)
	}
	if m.admit(hello(1)) == nil {
		t.Error("an attempt that was given up took the place of a later one")
	}
	first, other := net.Pipe()
	second, mine := net.Pipe()
	defer mine.Close()
	m.enter(record.New(second, nil, false, 4<<10), hello(2))
	m.enter(record.New(first, nil, false, 4<<10), hello(1))
	m.turnBack(hello(1))
	if _, err := other.Read(make([]byte, 1)); err == nil {
		t.Error("the first connection is still open")
	}
	if l := m.links[1]; l == nil || !l.in || l.conn.Conn != second {
		t.Errorf("rank 1 is not there by its later connection: %+v", l)
	}
	if err := m.admit(auth.Hello{Purpose: auth.Meet, Rank: 1, Size: 3, Extra: newVisit([8]byte{8}, 1)}); err == nil ||
		!strings.Contains(err.Error(), "two processes") {
		t.Errorf("another process as rank 1: %v", err)
	}
	m.Close()
}

// Rank 0 was given an address that its host does not have: it says so when nobody finds it there.
func TestAddressOfAnotherHost(t *testing.T) {
	_, err := Join(within(t, 300*time.Millisecond), Config{Addr: "203.0.113.7:0", Size: 2, Token: "t"})
	if err == nil || !strings.Contains(err.Error(), "rank 1 of 2 did not come to 203.0.113.7:") ||
		!strings.Contains(err.Error(), "203.0.113.7 is no address of rank 0's host: set MASTER_ADDR") {
		t.Error(err)
	}
}

// TLS on one side only is said to be that, whichever side it is.
func TestTLSOnOneSide(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS() // for its certificate
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	config := &tls.Config{Certificates: server.TLS.Certificates, RootCAs: pool}
	server.Close()
	for with := range 2 {
		l := listener(t)
		var b lockedBuffer
		log := slog.New(slog.NewTextHandler(&b, nil))
		configs := make([]*tls.Config, 2)
		configs[with] = config
		ctx := within(t, time.Second)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = Join(ctx, Config{Addr: l.Addr().String(), Rank: 1, Size: 2, Token: "t", TLS: configs[1]})
		})
		_, err := Join(ctx, Config{Listener: l, Size: 2, Token: "t", TLS: configs[0], Log: log})
		wg.Wait()
		if err == nil || !strings.Contains(err.Error(), "give all ranks the same WEFT_TLS)") ||
			!strings.Contains(b.String(), "TLS, and this end has") {
			t.Errorf("rank %d has TLS: %v\n%s", with, err, b.String())
		}
	}
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func FuzzFrame(f *testing.F) {
	header := func(h record.Header) []byte {
		var b [record.Size]byte
		h.Put(&b, auth.PlainKey())
		return b[:]
	}
	f.Add(append(header(record.Header{Kind: kindBlob, Call: 1, Number: 1, Length: 2, Sum: auth.PlainKey().Piece([]byte("ab"))}), "ab"...))
	f.Add(header(record.Header{Kind: kindBlobs, Call: 1, Length: 0x7fffffff}))
	f.Add(putBlobs([][]byte{nil, {1}, {2, 3}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, c := net.Pipe()
		go func() { _, _ = c.Write(b); c.Close() }()
		l := &link{conn: record.New(a, nil, false, 4<<10)}
		for {
			fr, err := l.receive()
			if err != nil {
				break
			}
			if len(fr.body) > len(b) {
				t.Fatalf("%d bytes out of %d", len(fr.body), len(b))
			}
		}
		a.Close()
		if blobs, err := getBlobs(b, 3); err == nil && string(putBlobs(blobs)) != string(b) {
			t.Fatal("blobs differ")
		}
		getRanks(b, 8)
	})
}

// A rank without the certificate that rank 0 asks for is told so at once.
func TestNoCertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS() // for its certificate
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	host := &tls.Config{Certificates: server.TLS.Certificates, RootCAs: pool}
	server.Close()
	l := listener(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	zero, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() { _, _ = Join(zero, Config{Listener: l, Size: 2, Token: "t", TLS: host}) })
	start := time.Now()
	_, err := Join(within(t, 20*time.Second), Config{Addr: l.Addr().String(), Rank: 1, Size: 2, Token: "t", TLS: &tls.Config{RootCAs: pool}})
	if err == nil || !strings.Contains(err.Error(), "certificate required") || time.Since(start) > 15*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
}

// Rank 0 tells those that came whom it waits for while another one comes in; the race detector looks on.
func TestToldWhileOneComesIn(t *testing.T) {
	m, err := meeting(Config{Addr: "127.0.0.1:1", Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.admit(auth.Hello{Purpose: auth.Meet, Rank: 1, Size: 2}); err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	links := slices.Clone(m.links)
	var wg sync.WaitGroup
	wg.Go(func() { m.enter(record.New(ours, nil, false, 4<<10), auth.Hello{Rank: 1}) })
	if err := m.spread(within(t, 10*time.Second), links, frame{kind: kindWaiting, body: putRanks([]int{1})}); err != nil {
		t.Error(err)
	}
	wg.Wait()
	theirs.Close()
	m.Close()
}

// names is a name server that does not know the name of the rendezvous at first: it answers "not known" so often, then 127.0.0.1.
func names(t *testing.T, unknown int) *net.Resolver {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			end := 12
			for end < n && b[end] != 0 {
				end += int(b[end]) + 1
			}
			if end += 5; end > n {
				continue
			}
			isA := b[end-3] == 1
			m := append([]byte{}, b[:end]...)
			m[2], m[3] = 0x85, 0x80
			copy(m[4:12], []byte{0, 1, 0, 0, 0, 0, 0, 0})
			switch {
			case unknown > 0:
				m[3] |= 3 // NXDOMAIN
				unknown--
			case isA:
				m[7] = 1
				m = append(m, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1)
			}
			_, _ = c.WriteTo(m, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

// A name that the name server learns later is waited for by all ranks, and the log says so; one that it never learns is named in the error.
func TestNameThatComesLater(t *testing.T) {
	was := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = was })
	for _, c := range []struct {
		unknown int
		limit   time.Duration
	}{{40, 50 * time.Second}, {1 << 30, 3 * time.Second}} {
		net.DefaultResolver = names(t, c.unknown)
		free := listener(t)
		_, port, _ := net.SplitHostPort(free.Addr().String())
		free.Close()
		var said strings.Builder
		log := slog.New(slog.NewTextHandler(&said, nil))
		var wg sync.WaitGroup
		var errs [2]error
		ctx := within(t, c.limit)
		for rank := range errs {
			wg.Go(func() {
				cfg := Config{Addr: net.JoinHostPort("rank-0.weft-test.example.", port), Rank: rank, Size: 2, Token: "t"}
				if rank == 1 {
					cfg.Log = log
				}
				var m *Meeting
				if m, errs[rank] = Join(ctx, cfg); errs[rank] == nil {
					defer m.Close()
					_, errs[rank] = m.Gather(ctx, nil)
				}
			})
		}
		wg.Wait()
		for rank, err := range errs {
			if late := c.unknown > 1000; late != (err != nil) || late && !strings.Contains(err.Error(), "rank-0.weft-test.example") {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		if n := strings.Count(said.String(), "is not known yet: waiting for it"); n != 1 {
			t.Errorf("the log says %d times that a name is waited for: %s", n, said.String())
		}
	}
}
