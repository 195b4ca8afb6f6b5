package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// frrBin is where FRR's daemons are.
const frrBin = "/usr/lib/frr"

// Init is the first process of a lab. It reads the spec from in, says on out how
// far it is, a JSON object a line, and then answers on the listener until it is
// told to end, or until in ends before the lab is up: whoever began it is gone.
func Init(in io.Reader, out io.Writer, l net.Listener) error {
	dec := json.NewDecoder(in)
	var begin struct {
		Spec Spec
		PID  int // as processes outside see init
	}
	if err := dec.Decode(&begin); err != nil {
		return err
	}
	b := &builder{spec: &begin.Spec, said: json.NewEncoder(out), spaces: map[string]netns.NsHandle{}, began: time.Now()}
	gone := make(chan error, 1)
	keep := make(chan struct{})
	go func() {
		var word string
		err := dec.Decode(&word)
		if err == nil && word == "keep" {
			close(keep)
			return
		}
		gone <- errors.New("the process that began the lab is gone")
	}()
	done := make(chan error, 1)
	go func() { done <- b.up() }()
	select {
	case err := <-done:
		if err != nil {
			b.say(Progress{Error: err.Error()})
			return err
		}
	case err := <-gone:
		return err
	}
	b.say(Progress{Ready: true, Seconds: time.Since(b.began).Seconds()})
	select {
	case <-keep:
	case err := <-gone:
		return err
	}
	settled := make(chan struct{})
	go func() { defer close(settled); b.settle() }()
	return serve(l, b.spec, begin.PID, settled)
}

// settleTime is how long a lab that is up may take until neighbours have heard one another.
const settleTime = 20 * time.Second

// settle waits until every lldpd has heard of what is plugged in, and every
// router of its neighbours by BFD. Routes are there before that.
func (b *builder) settle() {
	wires := map[string]int{}
	for _, w := range b.spec.Wires {
		wires[w.A]++
		wires[w.B]++
	}
	end := time.Now().Add(settleTime)
	wait := func(f func() bool) { // each look starts a process: a lab of many routers would be busy with them
		for pause := 100 * time.Millisecond; !f() && time.Now().Before(end); pause = min(2*pause, 800*time.Millisecond) {
			time.Sleep(pause)
		}
	}
	_ = b.each(func(n *Node) error {
		if _, err := exec.LookPath("lldpcli"); err == nil && b.spec.LLDP {
			answer := wires[n.Name] - b.bridged(n)
			wait(func() bool { return n.lldpHears(answer) })
		}
		if n.Router && b.spec.Routing == "frr" {
			conf, _ := os.ReadFile("/run/weft/" + n.Name + "/etc/frr/frr.conf")
			if bytes.Contains(conf, []byte("bfd profile")) {
				wait(n.bfdUp)
			}
		}
		return nil
	})
}

// bridged counts the wires of a node that end in a bridge, where nobody answers LLDP.
func (b *builder) bridged(n *Node) (count int) {
	for _, w := range b.spec.Wires {
		if w.A == n.Name && w.Bridge != "" {
			count++
		}
	}
	return count
}

func (n *Node) lldpHears(neighbours int) bool {
	out, err := exec.Command("lldpcli", "-u", "/run/weft/"+n.Name+"/lldpd.socket", "-f", "keyvalue", "show", "neighbors").Output()
	return err == nil && bytes.Count(out, []byte(".chassis.name=")) >= neighbours
}

// bfdUp says whether BFD hears a router on every uplink.
func (n *Node) bfdUp() bool {
	out, err := exec.Command("vtysh", "-N", n.Name, "-d", "bfdd", "-c", "show bfd peers brief").Output()
	return err == nil && len(regexp.MustCompile(`(?m)\bup\s*$`).FindAll(out, -1)) >= len(n.Uplink)
}

// Progress is a line that init says while the lab comes up.
type Progress struct {
	Step    string  `json:"step,omitempty"`
	Ready   bool    `json:"ready,omitempty"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

type builder struct {
	spec   *Spec
	mu     sync.Mutex
	said   *json.Encoder
	spaces map[string]netns.NsHandle
	began  time.Time

	watching bool // BFD runs
}

func (b *builder) say(p Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.said.Encode(p) // nobody may be listening any more
}

func (b *builder) step(format string, args ...any) {
	b.say(Progress{Step: fmt.Sprintf(format, args...), Seconds: time.Since(b.began).Seconds()})
}

// up brings the lab up, step by step.
func (b *builder) up() error {
	if err := private(b.spec); err != nil {
		return err
	}
	runtime.LockOSThread() // the thread is given back by ending
	for i := range b.spec.Nodes {
		if err := b.space(b.spec.Nodes[i].Name); err != nil {
			return err
		}
	}
	if err := b.bridges(); err != nil {
		return err
	}
	for i := range b.spec.Wires {
		if err := b.wire(&b.spec.Wires[i]); err != nil {
			return fmt.Errorf("cable %s:%s - %s:%s: %w", b.spec.Wires[i].A, b.spec.Wires[i].AIf, b.spec.Wires[i].B, b.spec.Wires[i].BIf, err)
		}
	}
	b.step("%d namespaces, %d cables", len(b.spec.Nodes), len(b.spec.Wires))
	if err := b.each(b.node); err != nil {
		return err
	}
	b.step("routers and hosts run")
	// All routers run before the first is configured: who advertises itself to a
	// neighbour that does not listen yet waits for its next turn.
	if b.spec.Routing == "frr" {
		for _, f := range []func(*Node) error{b.daemons, b.configure} {
			if err := b.each(f); err != nil {
				return err
			}
		}
		b.step("routers are configured")
	}
	if b.spec.LLDP { // while routers wait for one another
		if err := b.each(b.lldp); err != nil {
			return err
		}
	}
	if err := b.converge(); err != nil || b.spec.Routing != "frr" {
		return err
	}
	return b.watch()
}

// each does a step for every node, four at a time: more only wait for one another.
func (b *builder) each(f func(*Node) error) error {
	var group sync.WaitGroup
	turns := make(chan struct{}, 4)
	errs := make([]error, len(b.spec.Nodes))
	for i := range b.spec.Nodes {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if err := f(&b.spec.Nodes[i]); err != nil {
				errs[i] = fmt.Errorf("%s: %w", b.spec.Nodes[i].Name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// private gives the lab its own view of files: what it mounts and writes below
// /run and /etc/frr ends with it.
func private(s *Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("a mount namespace of its own: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/etc/frr", "/var/tmp"} { // the last holds what networkd reads
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mounting a tmpfs on %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/run/netns", names, "/run/frr", "/run/weft", "/run/lock"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if s.Routing != "frr" {
		return nil
	}
	return own("/run/frr", "frr")
}

// own gives a folder to a user, where there is such a user.
func own(path, name string) error {
	u, err := user.Lookup(name)
	if err != nil {
		return nil
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return os.Chown(path, uid, gid)
}

// serve answers questions about the lab until it is told to end.
func serve(l net.Listener, s *Spec, pid int, settled <-chan struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-ctx.Done(); l.Close() }()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		go func() {
			defer c.Close()
			word, err := bufio.NewReader(c).ReadString('\n')
			if err != nil {
				return
			}
			switch strings.TrimSpace(word) {
			case "info":
				_ = json.NewEncoder(c).Encode(Info{PID: pid, Spec: *s})
			case "settled":
				select {
				case <-settled:
				case <-ctx.Done():
				}
				fmt.Fprintln(c, "settled")
			case "down":
				fmt.Fprintln(c, "ends")
				cancel()
			}
		}()
	}
}

// Info is what a running lab says of itself.
type Info struct {
	PID  int // of init, as processes outside see it
	Spec Spec
}
