package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/launch"
	"golang.org/x/sys/unix"
)

// Namespaces are network namespaces of this machine that stand for hosts, joined by a
// switch for each rail. They share its cores and its memory bandwidth.
//
//	host 0       host 1
//	 r0  r1       r0  r1       10.79.0.1 and 10.79.1.1, 10.79.0.2 and 10.79.1.2, ...
//	==+===|========+===|===    bridges in a namespace of their own
//	======+============+===
type Namespaces struct {
	Names, Addrs []string
	Rails        int
	fabric       string
}

// Wiring says how hosts are joined.
type Wiring struct {
	Hosts int
	Rails int       // networks, 1 without it
	Rate  unit.Rate // of each rail, in each direction; 0 for what the cores can do
}

// rail is the first interface of a host.
const rail = "r0"

// NewNamespaces makes hosts; Close removes them. It needs root and the ip command, and tc for a rate.
func NewNamespaces(ctx context.Context, wire Wiring) (*Namespaces, error) {
	hosts, rails := wire.Hosts, max(wire.Rails, 1)
	if hosts < 2 || hosts > 200 {
		return nil, fmt.Errorf("%d hosts; want 2 to 200", hosts)
	}
	if rails > 8 {
		return nil, fmt.Errorf("%d rails; want 1 to 8", rails)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("hosts made of network namespaces need root")
	}
	sweep("/var/run/netns")
	n := &Namespaces{Rails: rails, fabric: fmt.Sprintf("weft%df", os.Getpid())}
	do := func(line string) error {
		args := strings.Fields(line)
		out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	for i := range hosts {
		n.Names, n.Addrs = append(n.Names, fmt.Sprintf("weft%dh%d", os.Getpid(), i)), append(n.Addrs, fmt.Sprintf("10.79.0.%d", i+1))
	}
	for _, line := range n.commands(wire.Rate) {
		if err := do(line); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// commands make a switch for each rail, and join every host to all of them.
func (n *Namespaces) commands(rate unit.Rate) []string {
	lines := []string{"ip netns add " + n.fabric}
	for r := range n.Rails {
		lines = append(lines, fmt.Sprintf("ip -n %s link add sw%d type bridge", n.fabric, r),
			fmt.Sprintf("ip -n %s link set sw%d up", n.fabric, r))
	}
	for i, name := range n.Names {
		lines = append(lines, "ip netns add "+name, "ip -n "+name+" link set lo up")
		for r := range n.Rails {
			port, end := fmt.Sprintf("p%dr%d", i, r), fmt.Sprintf("r%d", r)
			lines = append(lines, "ip -n "+n.fabric+" link add "+port+" type veth peer name "+end+" netns "+name,
				fmt.Sprintf("ip -n %s link set %s master sw%d up", n.fabric, port, r),
				fmt.Sprintf("ip -n %s addr add 10.79.%d.%d/24 dev %s", name, r, i+1, end),
				"ip -n "+name+" link set "+end+" up")
			if rate > 0 { // both ends: a link is as fast in as out
				shape := fmt.Sprintf("root tbf rate %dbit burst 96kb limit 16mb", int64(rate)*8)
				lines = append(lines, "tc -n "+name+" qdisc add dev "+end+" "+shape, "tc -n "+n.fabric+" qdisc add dev "+port+" "+shape)
			}
		}
	}
	return lines
}

var left = regexp.MustCompile(`^weft(\d+)(f|h\d+)$`)

// orphans are the namespaces in a folder whose process is gone: it was killed before it could remove them.
func orphans(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // without the folder there are none
	for _, e := range entries {
		m := left.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if pid, err := strconv.Atoi(m[1]); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			names = append(names, e.Name())
		}
	}
	return names
}

// sweep removes them. What cannot be removed is in nobody's way.
func sweep(dir string) {
	for _, name := range orphans(dir) {
		_ = exec.Command("ip", "netns", "del", name).Run()
	}
}

// Close removes the hosts.
func (n *Namespaces) Close() error {
	var errs []error
	for _, name := range append(slices.Clone(n.Names), n.fabric) {
		if _, err := os.Stat("/var/run/netns/" + name); err != nil {
			continue
		}
		if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("ip netns del %s: %w: %s", name, err, strings.TrimSpace(string(out))))
		}
	}
	return errors.Join(errs...)
}

// rails are the interfaces of a host.
func (n *Namespaces) rails() (list []string) {
	for r := range n.Rails {
		list = append(list, fmt.Sprintf("r%d", r))
	}
	return list
}

// Spec is how n ranks of ours start on these hosts, over all of their rails.
func (n *Namespaces) Spec(ranks int, command []string) launch.Spec {
	return n.on(ranks, command, "WEFT_INTERFACES="+strings.Join(n.rails(), ","))
}

// on is a command with n ranks on these hosts, in order.
func (n *Namespaces) on(ranks int, command []string, env ...string) launch.Spec {
	return launch.Spec{N: ranks, Command: command, Hosts: n.Names, Remote: launch.Remote{"ip", "netns", "exec", "{host}"}, Addr: n.Addrs[0],
		Env: env}
}

// peers are those that can run on several hosts.
func (n *Namespaces) peers() []*Peer {
	var list []*Peer
	limit := &Peer{
		Name: "limit", Family: Limit, Transport: "mixed", Install: "gcc", tools: []string{"gcc"}, source: "hosts.c",
		build:    []string{"gcc", "-O3", "-march=native", "SRC", "-o", "BIN"},
		variants: map[string][]string{"all-reduce": {"spread", "leader"}, "broadcast": {"spread", "leader"}},
		start: func(bin string, ranks int, most int64, _ string) launch.Spec {
			args := []string{bin, strconv.Itoa(ranks / len(n.Names)), strconv.FormatInt(most, 10)}
			for i, name := range n.Names {
				args = append(args, name+"="+n.Addrs[i])
			}
			return launch.Spec{N: 1, Command: args}
		},
	}
	if n.Rails == 1 { // the limit knows one network
		list = append(list, limit)
	}
	for _, p := range Peers("shm") {
		switch {
		case p.Name == "open-mpi vader":
			// Where it shares memory between hosts all the same, its tcp everywhere is left to compare with.
			for name, more := range map[string]string{"open-mpi": "", "open-mpi han": "--mca coll_han_priority 100",
				"open-mpi tcp": "--mca btl self,tcp"} {
				q := *p
				q.Name, q.Transport = name, "mixed"
				q.start = func(bin string, ranks int, _ int64, dir string) launch.Spec { return n.mpi(bin, ranks, dir, more) }
				list = append(list, &q)
			}
		case p.Family == Gloo:
			q := *p
			q.Transport = "mixed"
			q.start = func(bin string, ranks int, _ int64, dir string) launch.Spec {
				return n.on(ranks, []string{bin, dir, rail})
			}
			list = append(list, &q)
		case p.Family == TorchGloo:
			q := *p
			q.Transport = "mixed"
			q.start = func(bin string, ranks int, _ int64, _ string) launch.Spec {
				return n.on(ranks, []string{"python3", bin}, "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME="+rail)
			}
			list = append(list, &q)
		}
	}
	slices.SortStableFunc(list, func(a, b *Peer) int {
		return cmp.Or(strings.Compare(a.Family, b.Family), strings.Compare(a.Name, b.Name))
	})
	return list
}

// mpi starts Open MPI with a node a host. Nodes are told apart by their names, so each has one of its own.
func (n *Namespaces) mpi(bin string, ranks int, dir, more string) launch.Spec {
	agent := filepath.Join(dir, "agent")
	script := "#!/bin/sh\nhost=$1\nshift\nexec ip netns exec $host unshare --uts sh -c \"" + named("$host") + "; $*\"\n"
	if err := os.WriteFile(agent, []byte(script), 0o755); err != nil {
		return launch.Spec{N: 1, Command: []string{"false"}}
	}
	var hosts []string
	for _, name := range n.Names {
		hosts = append(hosts, fmt.Sprintf("%s:%d", name, ranks/len(n.Names)))
	}
	ways := "self,vader,tcp"
	if ranks == len(n.Names) || strings.Contains(more, "--mca btl ") { // there is no memory to share
		ways, more = "self,tcp", strings.TrimPrefix(more, "--mca btl self,tcp")
	}
	run := fmt.Sprintf("%s; exec mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -np %d --host %s --mca plm_rsh_agent %s --mca pml ob1 --mca btl %s --mca btl_tcp_if_include %s --mca oob_tcp_if_include %s --mca mpi_yield_when_idle 1 %s %s",
		named(n.Names[0]), ranks, strings.Join(hosts, ","), agent, ways, strings.Join(n.rails(), ","), rail, more, bin)
	return launch.Spec{N: 1, Command: []string{"ip", "netns", "exec", n.Names[0], "unshare", "--uts", "sh", "-c", run}}
}

// named gives the shell's host a name. Without one of its own Open MPI takes two hosts for one, and shares memory between them,
// so that nothing runs if it cannot be given. Small machines have no hostname command, and containers a /proc that is not written.
func named(host string) string {
	return fmt.Sprintf("hostname %[1]s 2>/dev/null || echo %[1]s 2>/dev/null >/proc/sys/kernel/hostname || python3 -c 'import socket, sys; socket.sethostname(sys.argv[1])' %[1]s || exit 1",
		host)
}
