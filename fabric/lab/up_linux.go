package lab

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// address is where a lab listens: a name of the machine's own network namespace,
// not of its files, so that a lab that ended leaves none.
func address(name string) string {
	user := strconv.Itoa(os.Getuid())
	if inside := os.Getenv(userKey); inside != "" {
		user = inside
	}
	return fmt.Sprintf("@weft-lab-%s-%s", user, name)
}

// userKey is the variable with the number of the user outside a lab's user namespace. Ranks refuse unknown variables that begin with WEFT_.
const userKey = "LAB_OUTSIDE_USER"

// Enter makes this process root of the lab's user namespace, where it is not root
// already, by running it once more: a process with threads cannot move. What
// looks at nodes or breaks them needs it. It returns where nothing was to do.
func (i *Info) Enter() error {
	if os.Geteuid() == 0 {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path, err := exec.LookPath("nsenter")
	if err != nil {
		return fmt.Errorf("nsenter is missing; Debian has it in util-linux: %w", err)
	}
	args := append([]string{"nsenter", fmt.Sprintf("--user=/proc/%d/ns/user", i.PID), "--preserve-credentials", "--", self}, os.Args[1:]...)
	return syscall.Exec(path, args, append(os.Environ(), fmt.Sprintf("%s=%d", userKey, os.Getuid())))
}

// Check says what keeps a lab from starting here.
func Check(s *Spec) error {
	if os.Geteuid() != 0 && (s.Routing == "frr" || s.Setup == "networkd" || s.LLDP) {
		return errors.New("FRR, systemd-networkd and lldpd need root; without it: --routing bird (or static) --hosts plain --no-lldp")
	}
	for _, x := range []struct {
		needed       bool
		path, debian string
	}{{s.Routing == "frr", frrBin + "/bgpd", "frr"}, {s.Routing == "bird", "/usr/sbin/bird", "bird2"},
		{s.Setup == "networkd", "/lib/systemd/systemd-networkd", "systemd"}} {
		if _, err := os.Stat(x.path); x.needed && err != nil {
			return fmt.Errorf("%s is missing; Debian has it in %s", x.path, x.debian)
		}
	}
	for _, x := range []struct{ kind, device, module, why string }{{"bond", "bond", "bonding", "hosts are bonded"},
		{"vrf", "vrf table 1", "vrf", "tenants have VRFs"}} {
		args := append([]string{"--net", "ip", "link", "add", "name", "x", "type"}, strings.Fields(x.device)...)
		if s.makes(x.kind) && exec.Command("unshare", args...).Run() != nil {
			return fmt.Errorf("%s, and this kernel has no driver for them; load it (modprobe %s), or run the lab in an emulated kernel (go run ./internal/labkernel -- weft lab up ...)",
				x.why, x.module)
		}
	}
	for v, table := range map[string]string{"ipv4": "arp_cache", "ipv6": "ndisc_cache"} {
		key := "net." + v + ".neigh.default.gc_thresh3"
		data, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
		if err != nil {
			continue // only the machine's first namespace has it
		}
		limit, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if used := neighbours(table); err == nil && s.Neighbours()+used > limit*9/10 {
			return fmt.Errorf("%d cables need about %d entries of the neighbour table, which is one for the whole machine and has %d in use, and %s is %d: sysctl -w %s=%d",
				len(s.Wires), s.Neighbours(), used, key, limit, key, 2*(s.Neighbours()+used))
		}
	}
	return nil
}

// makes reports whether some switch makes devices of a kind.
func (s *Spec) makes(kind string) bool {
	for i := range s.Nodes {
		for _, f := range s.Nodes[i].Files {
			if strings.HasSuffix(f.Path, "weft-bridges") && bytes.Contains(f.Data, []byte(" type "+kind+" ")) {
				return true
			}
		}
	}
	return false
}

// neighbours is how many entries of a neighbour table are in use, in all namespaces together; 0 if nobody says.
func neighbours(table string) int {
	data, err := os.ReadFile("/proc/net/stat/" + table)
	if err != nil {
		return 0
	}
	_, rows, _ := strings.Cut(string(data), "\n") // below the names of the columns; the first is the count
	first, _, _ := strings.Cut(rows, " ")
	n, err := strconv.ParseInt(first, 16, 32)
	if err != nil {
		return 0
	}
	return int(n)
}

// Up brings a lab up and returns when it is ready; init goes on. progress hears
// how far it is.
func Up(s *Spec, progress func(Progress)) error {
	if c, err := net.Dial("unix", address(s.Name)); err == nil {
		c.Close()
		return fmt.Errorf("a lab named %s is up already; end it with weft lab down %s, or say --name", s.Name, s.Name)
	}
	l, err := net.Listen("unix", address(s.Name))
	if err != nil {
		return err
	}
	socket, err := l.(*net.UnixListener).File()
	l.Close() // the copy goes on
	if err != nil {
		return err
	}
	defer socket.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "lab-init")
	cmd.WaitDelay = outputTime
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	if os.Geteuid() != 0 { // root of a user namespace of its own
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return err
	}
	fail := func(err error) error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if said.Len() > 0 && err != nil {
			return fmt.Errorf("%w\n%s", err, strings.TrimSpace(said.String()))
		}
		return err
	}
	enc := json.NewEncoder(in)
	if err := enc.Encode(map[string]any{"Spec": s, "PID": cmd.Process.Pid}); err != nil {
		return fail(err)
	}
	dec := json.NewDecoder(out)
	for {
		var p Progress
		if err := dec.Decode(&p); err != nil {
			return fail(fmt.Errorf("the lab ended: %w", err))
		}
		if p.Error != "" {
			_ = fail(nil)
			return errors.New(p.Error)
		}
		progress(p)
		if p.Ready {
			break
		}
	}
	if err := enc.Encode("keep"); err != nil {
		return fail(err)
	}
	return cmd.Process.Release()
}

// ask sends a word to a lab.
func ask(name, word string) (net.Conn, error) {
	c, err := net.Dial("unix", address(name))
	if err != nil {
		return nil, fmt.Errorf("no lab named %q is up; weft lab list says which are: %w", name, err)
	}
	if _, err := io.WriteString(c, word+"\n"); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Find asks a lab what it is.
func Find(name string) (*Info, error) {
	c, err := ask(name, "info")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var i Info
	if err := json.NewDecoder(c).Decode(&i); err != nil {
		return nil, err
	}
	return &i, nil
}

// Settled waits until neighbours in the lab have heard one another, which takes
// some seconds after it is up.
func (i *Info) Settled() error {
	c, err := ask(i.Spec.Name, "settled")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(2 * settleTime)); err != nil {
		return err
	}
	_, err = bufio.NewReader(c).ReadString('\n')
	return err
}

// List names the labs of this user.
func List() ([]string, error) {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	var out []string
	prefix := address("")
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) == 8 && strings.HasPrefix(f[7], prefix) && f[5] == "01" {
			out = append(out, strings.TrimPrefix(f[7], prefix))
		}
	}
	return out, nil
}

// Down ends a lab and waits until it is gone.
func Down(name string) error {
	c, err := ask(name, "down")
	if err != nil {
		return err
	}
	_, _ = bufio.NewReader(c).ReadString('\n')
	c.Close()
	return until(10*time.Second, func() error {
		c, err := net.Dial("unix", address(name))
		if err == nil {
			c.Close()
			return fmt.Errorf("lab %s does not end", name)
		}
		return nil
	})
}

// Command is a command line that runs inside a node of a lab. An empty node is
// the lab's own place: the gateway on the front end.
func (i *Info) Command(node string, args ...string) ([]string, error) {
	if node != "" && i.Spec.Node(node) == nil {
		return nil, fmt.Errorf("lab %s has no node %q", i.Spec.Name, node)
	}
	out := []string{"nsenter", "-t", strconv.Itoa(i.PID), "-m", "-p", "-n"}
	if os.Geteuid() != 0 {
		out = append(out, "-U", "--preserve-credentials")
	}
	out = append(out, "--")
	if node != "" {
		out = append(out, "nsenter", "--uts="+names+"/"+node, "--", "ip", "netns", "exec", node)
	}
	return append(out, args...), nil
}

// Entry is what stands before a command for it to use a node's network and bear
// its name. The command sees this machine's files and processes, and ends with its parent.
// {host} in node is left for others to fill in.
func (i *Info) Entry(node string) []string {
	out := []string{"nsenter", fmt.Sprintf("--net=/proc/%d/root/run/netns/%s", i.PID, node),
		fmt.Sprintf("--uts=/proc/%d/root%s/%s", i.PID, names, node)}
	if os.Geteuid() != 0 {
		out = append(out, fmt.Sprintf("--user=/proc/%d/ns/user", i.PID), "--preserve-credentials")
	}
	return out
}

// outputTime is how long a process that ended may leave its output to others that it started.
const outputTime = 5 * time.Second

// Run runs a command inside a node and gives what it prints.
func (i *Info) Run(node string, args ...string) ([]byte, error) {
	line, err := i.Command(node, args...)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.WaitDelay = outputTime
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out, nil
}
