//go:build linux

package shm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

func init() {
	bodies["survivor"] = survivor
	bodies["full"] = fullDevShm
	bodies["watched"] = watched
}

// watched opens an endpoint, tells how many files the process has open, and then which ranks are gone as often as it is asked. Rank 3
// closes its endpoint instead, and its process stays.
func watched(c *conform.Child) error {
	before := files()
	e, err := opened(c)
	if err != nil {
		return err
	}
	if err := c.Say(fmt.Append(nil, files()-before)); err != nil {
		return err
	}
	for {
		b, err := c.Hear()
		if err != nil {
			return err
		}
		if string(b) == "close" {
			return e.Close()
		}
		var gone []int
		if err := json.Unmarshal(b, &gone); err != nil {
			return err
		}
		if slices.Contains(gone, -1) { // it is to leave, and to stay
			e.Close()
		}
		for _, r := range gone {
			for r >= 0 && e.Alive(r) == nil {
				runtime.Gosched()
			}
		}
		if err := c.Say(nil); err != nil {
			return err
		}
	}
}

func files() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

// Many ranks need no descriptor for each pair. All learn of the end of a process all the same, also if those that watched it have ended or
// left before.
func TestManyRanksWatchAFew(t *testing.T) {
	const n = 24
	c := conform.Spawn(t, n, "watched")
	if err := c.Gather(); err != nil {
		t.Fatal(err)
	}
	left := map[int]bool{}
	for r := range n {
		left[r] = true
		b, err := c.Hear(r)
		var got int
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		if err != nil {
			t.Fatalf("rank %d: %v\n%v", r, err, c.Wait())
		}
		if got > 10 { // the arena, an event, those that it watches, a poller
			t.Errorf("rank %d of %d has %d files more open than before", r, n, got)
		}
	}
	all := func(order string) {
		t.Helper()
		for r := range left {
			if err := c.Say(r, []byte(order)); err != nil {
				t.Fatal(err)
			}
		}
		for r := range left {
			if _, err := c.Hear(r); err != nil {
				t.Fatalf("rank %d: %v\n%v", r, err, c.Wait())
			}
		}
	}
	// Rank 3 leaves, and all that watched rank 4 die with it, or before it.
	if err := c.Say(3, []byte("[-1]")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Hear(3); err != nil {
		t.Fatal(err)
	}
	delete(left, 3)
	all("[3]")
	for _, r := range []int{2, 0, 20, 4, 12} {
		c.Kill(r)
		delete(left, r)
	}
	all("[3, 2, 0, 20, 4, 12]")
	c.Kill(5)
	delete(left, 5)
	all("[5]")
	for r := range left {
		if err := c.Say(r, []byte("close")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Say(3, []byte("close")); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
}

// report is what a survivor tells the parent.
type report struct {
	Why    string // the victim is gone
	Apart  bool   // it is of another namespace of process numbers
	Rounds int
	InUse  uint64 // bytes of the arena after all ports were closed
}

// survivor exchanges messages with all others until a rank is gone, then with
// those that are left.
func survivor(c *conform.Child) error {
	e, err := opened(c)
	if err != nil {
		return err
	}
	const victim = 1
	all := make([]int, c.Size)
	var left []int
	for r := range all {
		all[r] = r
		if r != victim {
			left = append(left, r)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(e.arena.file.Fd()), &st); err != nil {
		return err
	}
	if err := c.Say(fmt.Append(nil, st.Ino)); err != nil {
		return err
	}

	p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: all})
	if err != nil {
		return err
	}
	said := false
	rounds, err := exchange(e, p, 1, all, func() error { return e.Alive(victim) }, func(k int) error {
		if k < 5 || said {
			return nil
		}
		said = true
		return c.Say(nil) // in the middle of it
	})
	var gone *transport.Gone
	if !errors.As(err, &gone) || gone.Rank != victim {
		return fmt.Errorf("after %d rounds: %v, want that rank %d is gone", rounds, err, victim)
	}

	q, err := e.Port(transport.Group{ID: 1, Epoch: 2, Members: left})
	if err != nil {
		return err
	}
	enough := errors.New("enough")
	if _, err := exchange(e, q, 2, left, nil, func(k int) error {
		if k == 20 {
			return enough
		}
		return nil
	}); err != enough {
		return fmt.Errorf("among the survivors: %w", err)
	}
	if err := errors.Join(p.Close(), q.Close()); err != nil {
		return err
	}
	// A port's memory is given back once all others have closed theirs.
	if err := c.Say(nil); err != nil {
		return err
	}
	if _, err := c.Hear(); err != nil {
		return err
	}
	// Making one and closing it looks through those that were closed; it has no
	// other member, who might just be looking for it.
	last, err := e.Port(transport.Group{ID: 3, Epoch: 2, Members: []int{c.Rank}})
	if err != nil {
		return err
	}
	last.Close()
	r := report{Why: gone.Why, Apart: e.peers[victim].pidfd < 0, Rounds: rounds, InUse: e.arena.allocated}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := c.Say(b); err != nil {
		return err
	}
	if _, err := c.Hear(); err != nil {
		return err
	}
	return e.Close()
}

// exchange sends messages of all kinds to all members and checks those that
// come, until something ends it.
func exchange(e *Endpoint, p transport.Port, epoch uint32, members []int, stop transport.Stop, each func(k int) error) (int, error) {
	me := slices.Index(members, e.Rank())
	registered, err := e.Alloc(200 << 10)
	if err != nil {
		return 0, err
	}
	defer e.Free(registered)
	plain := make([]byte, 200<<10)
	for k := 0; ; k++ {
		if err := each(k); err != nil {
			return k, err
		}
		p.Begin(transport.Call{Epoch: epoch, Comm: 1, Seq: uint64(k + 1)}, stop)
		n := []int{0, 64, 3000, 9000, 150000}[k%5]
		out := plain[:n]
		if k%2 == 0 {
			out = registered[:n]
		}
		got := make([][]byte, len(members))
		for d := 1; d < len(members); d++ {
			to, from := (me+d)%len(members), (me+len(members)-d)%len(members)
			got[from] = make([]byte, n)
			p.Expect(from, 0, got[from])
			for i := range out {
				out[i] = byte(k + me*10 + to*50)
			}
			if err := p.Send(to, 0, out); err != nil {
				return k, err
			}
			if err := p.Recv(from, 0, got[from]); err != nil {
				return k, err
			}
			for i, x := range got[from] {
				if want := byte(k + from*10 + me*50); x != want {
					return k, fmt.Errorf("round %d from %d: byte %d is %d, want %d", k, from, i, x, want)
				}
			}
		}
	}
}

// mapped lists the processes that map one of the arenas.
func mapped(t *testing.T, inodes []uint64) (lines []string) {
	files, err := filepath.Glob("/proc/[0-9]*/maps")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 6 || !strings.Contains(f[5], "memfd:weft") {
				continue
			}
			for _, ino := range inodes {
				if f[4] == fmt.Sprint(ino) {
					lines = append(lines, line)
				}
			}
		}
	}
	return lines
}

// A rank that is killed in the middle is gone for the others, which never get
// wrong data, go on without it, and give back what they shared with it.
func TestKill(t *testing.T) {
	for _, middle := range [][]int{{0, 1, 2}, {1}, {2, 1}} { // who has come to the middle when it happens
		kill(t, middle, nil)
	}
}

// Where ranks do not see one another's process numbers, they notice all the same.
func TestKillInOtherNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a namespace of process numbers")
	}
	for _, apart := range []int{0, 1} {
		kill(t, []int{1}, func(rank int, cmd *exec.Cmd) {
			if rank == apart {
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			}
		})
	}
}

func kill(t *testing.T, middle []int, change func(rank int, cmd *exec.Cmd)) {
	t.Helper()
	const victim = 1
	left := []int{0, 2}
	if change == nil {
		change = func(int, *exec.Cmd) {}
	}
	c := conform.SpawnWith(t, 3, change, "survivor")
	hear := func(ranks ...int) (last []byte) {
		t.Helper()
		for _, r := range ranks {
			b, err := c.Hear(r)
			if err != nil {
				t.Fatalf("rank %d: %v\n%v", r, err, c.Wait())
			}
			last = b
		}
		return last
	}
	say := func() {
		t.Helper()
		for _, r := range left {
			if err := c.Say(r, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Gather(); err != nil {
		t.Fatal(err)
	}
	inodes := make([]uint64, 3)
	for r := range inodes {
		if err := json.Unmarshal(hear(r), &inodes[r]); err != nil {
			t.Fatal(err)
		}
	}
	hear(middle...)
	if got := mapped(t, inodes); len(got) != 9 {
		t.Fatalf("3 processes have %d mappings of arenas, want 9", len(got))
	}
	pid := c.Pid(victim)
	c.Kill(victim)
	for _, r := range left {
		if !slices.Contains(middle, r) {
			hear(r)
		}
	}
	hear(left...) // that they have closed their ports
	say()
	for _, r := range left {
		var got report
		if err := json.Unmarshal(hear(r), &got); err != nil {
			t.Fatal(err)
		}
		if got.Why != fmt.Sprintf("process %d ended", pid) && (!got.Apart || got.Why != "its process ended") {
			t.Errorf("rank %d: the victim %d is gone because %q", r, pid, got.Why)
		}
		if got.InUse != 0 {
			t.Errorf("rank %d: %d bytes are in use after all ports were closed", r, got.InUse)
		}
	}
	say()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := mapped(t, inodes); len(got) != 0 {
		t.Errorf("still mapped: %q", got)
	}
}

// fullDevShm opens an endpoint where /dev/shm has room for nothing.
func fullDevShm(c *conform.Child) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount("tiny", "/dev/shm", "tmpfs", 0, "size=4k"); err != nil {
		return fmt.Errorf("a tiny /dev/shm: %w", err)
	}
	if err := os.WriteFile("/dev/shm/filler", make([]byte, 8<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("/dev/shm is not full: %v", err)
	}
	e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather})
	if err != nil {
		return err
	}
	s, err := conform.Find("all to all")
	if err != nil {
		return err
	}
	b, err := e.Alloc(32 << 20)
	if err != nil {
		return err
	}
	for i := range b {
		b[i] = 1
	}
	if err := s.Run(e); err != nil {
		return err
	}
	return e.Close()
}

// Arenas are in no file system, so a full /dev/shm does not matter.
func TestFullDevShm(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a tiny /dev/shm for itself")
	}
	c := conform.Spawn(t, 2, "full")
	if err := c.Gather(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
}
