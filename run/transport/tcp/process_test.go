//go:build linux

package tcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/internal/nslab"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/rendezvous"
)

// rankChild is a rank in a process of its own. It goes round a ring with the
// others, with messages of several pieces whose bytes it checks, until rank 0
// says that it is enough. Rank 0 waits after 10 rounds for a line of its standard
// input; the end of that is enough. It tells
// its rounds and, at the end, its counters.
func rankChild() error {
	rank, _ := strconv.Atoi(os.Getenv("RANK"))
	size, _ := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	room, err := rendezvous.Join(ctx, rendezvous.Config{Addr: os.Getenv("WEFT_TCP_RANK"), Rank: rank, Size: size, Token: "t"})
	if err != nil {
		return err
	}
	defer room.Close()
	cfg := Config{Rank: rank, Size: size, Gather: room.Gather, Token: "t", AllRails: true, Streams: 1}
	if list := os.Getenv("WEFT_TCP_INTERFACES"); list != "" { // one for each rank, which cannot reach one another
		cfg.AllRails, cfg.Interfaces = false, []string{strings.Split(list, ",")[rank]}
		var hurry context.CancelFunc
		ctx, hurry = context.WithTimeout(ctx, time.Second)
		defer hurry()
	}
	e, err := Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	members := make([]int, size)
	for i := range members {
		members[i] = i
	}
	p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: members})
	if err != nil {
		return err
	}
	var enough atomic.Bool
	stdin := bufio.NewReader(os.Stdin)
	stop := func() error { return ctx.Err() }
	right, left := (rank+1)%size, (rank+size-1)%size
	const n = 5*frame.PieceSize + 1001
	out, in, want := make([]byte, n), make([]byte, n), make([]byte, n)
	for k := uint64(1); ; k++ {
		p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: k}, stop)
		word := []byte{0}
		if rank == 0 {
			if enough.Load() {
				word[0] = 1
			}
			for r := 1; r < size; r++ {
				if err := p.Send(r, 1, word); err != nil {
					return fmt.Errorf("round %d: %w", k, err)
				}
			}
		} else if err := p.Recv(0, 1, word); err != nil {
			return fmt.Errorf("round %d: %w", k, err)
		}
		if word[0] == 1 {
			break
		}
		for i := range out {
			out[i], want[i] = byte(i>>8)+byte(k)*byte(2*rank+1), byte(i>>8)+byte(k)*byte(2*left+1)
		}
		p.Expect(left, 0, in)
		if err := p.Send(right, 0, out); err != nil {
			return fmt.Errorf("round %d: %w", k, err)
		}
		if err := p.Recv(left, 0, in); err != nil {
			return fmt.Errorf("round %d: %w", k, err)
		}
		if !bytes.Equal(in, want) {
			return fmt.Errorf("round %d: wrong bytes", k)
		}
		if rank == 0 {
			fmt.Printf("round %d\n", k)
		}
		if rank == 0 && k == 10 {
			if _, err := stdin.ReadString('\n'); err != nil {
				return err
			}
			go func() {
				_, _ = io.Copy(io.Discard, stdin)
				enough.Store(true)
			}()
		}
	}
	b, err := json.Marshal(e.Counters())
	fmt.Printf("counters %s\n", b)
	return errors.Join(err, p.Close())
}

// labRank is one of the processes.
type labRank struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	err   bytes.Buffer
}

// next waits for a line that begins with a word, and gives the rest.
func (r *labRank) next(t *testing.T, word string) string {
	t.Helper()
	for r.lines.Scan() {
		if rest, ok := strings.CutPrefix(r.lines.Text(), word+" "); ok {
			return rest
		}
	}
	_ = r.cmd.Wait()
	t.Fatalf("a rank ended without %q: %s", word, r.err.String())
	return ""
}

// startRanks runs a rank on every host of a lab.
func startRanks(t *testing.T, lab *nslab.Lab, hosts int) []*labRank {
	t.Helper()
	ranks := make([]*labRank, hosts)
	for i := range ranks {
		r := &labRank{cmd: bounded.Server(t, os.Args[0])}
		r.cmd.Env = append(os.Environ(), "WEFT_TCP_RANK="+netip.AddrPortFrom(nslab.Addr(0, 1), 29500).String(),
			fmt.Sprint("RANK=", i), fmt.Sprint("WORLD_SIZE=", hosts))
		r.cmd.Stderr = &r.err
		out, err := r.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if r.in, err = r.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		r.lines = bufio.NewScanner(out)
		if err := lab.Do(i, r.cmd.Start); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.cmd.Process.Kill(); _ = r.cmd.Wait() })
		ranks[i] = r
	}
	return ranks
}

// counters waits for the rank's end, and gives a way to look its counters up.
func (r *labRank) counters(t *testing.T) func(name string) uint64 {
	t.Helper()
	var cs []transport.Counter
	if err := json.Unmarshal([]byte(r.next(t, "counters")), &cs); err != nil {
		t.Fatal(err)
	}
	r.in.Close()
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, r.err.String())
	}
	return func(name string) uint64 {
		t.Helper()
		k := slices.IndexFunc(cs, func(c transport.Counter) bool { return c.Name == name })
		if k < 0 {
			t.Fatalf("no counter %s in %v", name, cs)
		}
		return cs[k].Value
	}
}

func goOn(t *testing.T, r *labRank) {
	t.Helper()
	if _, err := io.WriteString(r.in, "go on\n"); err != nil {
		t.Fatal(err)
	}
}

// TestSlowRail makes one rail a tenth as fast as the other: the fast one carries
// more.
func TestSlowRail(t *testing.T) {
	lab := nslab.New(t, 2, 2)
	for host := range 2 {
		for rail, rate := range []uint64{100e6, 10e6} {
			if err := lab.Limit(host, rail, rate); err != nil {
				t.Skipf("no traffic control here: %v", err)
			}
		}
	}
	ranks := startRanks(t, lab, 2)
	goOn(t, ranks[0])
	for range 30 {
		ranks[0].next(t, "round")
	}
	ranks[0].in.Close()
	for i, r := range ranks {
		get := r.counters(t)
		fast, slow := get("rail.r0.sent.bytes"), get("rail.r1.sent.bytes")
		t.Logf("rank %d sent %d bytes over the fast rail and %d over the slow one", i, fast, slow)
		if fast <= slow || slow == 0 {
			t.Errorf("rank %d sent %d bytes over the fast rail and %d over the slow one", i, fast, slow)
		}
	}
}

// TestRails runs three hosts with two rails each: both carry, and when a cable
// is pulled in the middle of the run the rest goes over the other.
func TestRails(t *testing.T) {
	const hosts = 3
	lab := nslab.New(t, hosts, 2)
	ranks := startRanks(t, lab, hosts)
	rounds := func(n int) {
		for range n {
			ranks[0].next(t, "round")
		}
	}
	rounds(10)
	for rail := range 2 {
		if sent, _, err := lab.Bytes(1, rail); err != nil || sent < 5*frame.PieceSize {
			t.Errorf("rail %d of host 1 carried %d bytes before the cut: %v", rail, sent, err)
		}
	}
	if err := lab.Cut(1, 0); err != nil {
		t.Fatal(err)
	}
	goOn(t, ranks[0])
	rounds(20)
	ranks[0].in.Close()
	var lost, resent uint64
	for i, r := range ranks {
		get := r.counters(t)
		lost += get("paths.lost")
		resent += get("pieces.resent")
		for rail := range 2 {
			if n := get("rail." + nslab.Rail(rail) + ".sent.bytes"); n == 0 {
				t.Errorf("rank %d sent nothing on rail %d", i, rail)
			}
		}
	}
	if lost == 0 || resent == 0 {
		t.Errorf("%d paths lost and %d pieces sent again after a cut in mid-run", lost, resent)
	}
}

// TestWrongNetwork gives two ranks interfaces of different networks: the one that dials says which, and what to do.
func TestWrongNetwork(t *testing.T) {
	lab := nslab.New(t, 2, 3) // they meet over the second rail
	for host, rail := range []int{2, 0} {
		if err := lab.Cut(host, rail); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("WEFT_TCP_INTERFACES", nslab.Rail(0)+","+nslab.Rail(2))
	ranks := startRanks(t, lab, 2)
	said := ""
	for _, r := range ranks {
		for r.lines.Scan() {
		}
		if err := r.cmd.Wait(); err == nil {
			t.Error("ranks without a common network have met")
		}
		said += r.err.String()
	}
	if !strings.Contains(said, "has no route to") ||
		!strings.Contains(said, "use interfaces of one network, or add a route (WEFT_INTERFACES, WEFT_RAILS)") {
		t.Errorf("they said %q", said)
	}
}

// bodies are what ranks do in the processes that conform starts.
var bodies = map[string]conform.Body{
	// A scenario of the suite.
	"scenario": func(c *conform.Child) error {
		s, err := conform.Find(c.Args[0])
		if err != nil {
			return err
		}
		e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather, Token: "t"})
		if err != nil {
			return err
		}
		defer e.Close()
		if err := s.Run(e); err != nil {
			return err
		}
		_, err = c.Gather(context.Background(), nil) // what a rank sent is its own to deliver for a second only
		return err
	},
	// Waits for rank 2, which is killed.
	"victim": func(c *conform.Child) error {
		streams, _ := strconv.Atoi(c.Args[0])
		e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather, Token: "t", Streams: streams})
		if err != nil {
			return err
		}
		defer e.Close()
		p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1, 2}})
		if err != nil {
			return err
		}
		p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, patience())
		if err := c.Say([]byte("ready")); err != nil {
			return err
		}
		err = p.Recv(2, 0, make([]byte, 1<<20))
		var gone *transport.Gone
		if !errors.As(err, &gone) || gone.Rank != 2 || e.Alive(2) == nil {
			return fmt.Errorf("got %v, want that rank 2 is gone", err)
		}
		return c.Say(fmt.Appendf(nil, "%d", time.Now().UnixNano()))
	},
}

// TestProcesses runs scenarios between processes.
func TestProcesses(t *testing.T) {
	for _, name := range []string{"order", "channels", "all to all", "different calls", "fetch and add"} {
		t.Run(name, func(t *testing.T) {
			s, err := conform.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			c := conform.Spawn(t, s.Ranks, "scenario", name)
			for range 2 {
				if err := c.Gather(); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Gather(); err != nil {
				for r := range s.Ranks {
					c.Kill(r)
				}
				t.Error(err)
			}
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestKilled kills a rank for which the others wait.
func TestKilled(t *testing.T) {
	for _, streams := range []string{"1", "2"} {
		c := conform.Spawn(t, 3, "victim", streams)
		for range 2 {
			if err := c.Gather(); err != nil {
				t.Fatal(err)
			}
		}
		for r := range 3 {
			if _, err := c.Hear(r); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		c.Kill(2)
		for r := range 2 {
			b, err := c.Hear(r)
			if err != nil {
				t.Fatal(err, c.Wait())
			}
			at, _ := strconv.ParseInt(string(b), 10, 64)
			t.Logf("with %s streams rank %d noticed after %s", streams, r, time.Unix(0, at).Sub(start).Round(10*time.Microsecond))
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
}
