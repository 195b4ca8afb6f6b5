package agent

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"github.com/weft-fabric/weft/observe/watch"
	"golang.org/x/sys/unix"
)

// connections asks the kernel for the TCP connections of processes: what was
// acknowledged, and for how long there was something to send. The time during which
// a receiver took nothing is not the link's.
func connections(procs []*process) map[int][]watch.Link {
	type space struct {
		path  string
		owner map[uint32]int // of inodes
	}
	spaces := map[string]*space{}
	for _, x := range procs {
		dir := x.dir
		ns, err := os.Readlink(dir + "/ns/net")
		if err != nil {
			continue
		}
		s := spaces[ns]
		if s == nil {
			s = &space{path: dir + "/ns/net", owner: map[uint32]int{}}
			spaces[ns] = s
		}
		fds, _ := os.ReadDir(dir + "/fd")
		for _, f := range fds {
			to, err := os.Readlink(dir + "/fd/" + f.Name())
			if n, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
				if inode, err := strconv.ParseUint(strings.TrimSuffix(n, "]"), 10, 32); err == nil {
					s.owner[uint32(inode)] = x.PID
				}
			}
		}
	}
	own, _ := os.Readlink("/proc/self/ns/net")
	out := map[int][]watch.Link{}
	for ns, s := range spaces {
		if len(s.owner) == 0 {
			continue
		}
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			list, err := diag(ns == own, s.path, family)
			if err != nil {
				break
			}
			for _, c := range list {
				if c.InetDiagMsg == nil || c.TCPInfo == nil || c.InetDiagMsg.State != netlink.TCP_ESTABLISHED {
					continue
				}
				pid, ok := s.owner[c.InetDiagMsg.INode]
				if !ok || len(out[pid]) >= 4096 {
					continue
				}
				t, id := c.TCPInfo, c.InetDiagMsg.ID
				out[pid] = append(out[pid], watch.Link{Local: end(id.Source, id.SourcePort), Remote: end(id.Destination, id.DestinationPort),
					Acked: float64(t.Bytes_acked), Busy: float64(t.Busy_time-min(t.Busy_time, t.Rwnd_limited)) / 1e6, Lost: float64(t.Total_retrans),
					Queued: float64(c.InetDiagMsg.WQueue)})
			}
		}
	}
	return out
}

// diag asks for all TCP sockets of a network namespace: this one, or that of a path.
func diag(here bool, path string, family uint8) ([]*netlink.InetDiagTCPInfoResp, error) {
	if here {
		return netlink.SocketDiagTCPInfo(family)
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return h.SocketDiagTCPInfo(family)
}

func end(ip net.IP, port uint16) string {
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	return fmt.Sprintf("%s:%d", ip, port)
}

// memoryAvailable is the part of the host's memory that programs can still get.
func memoryAvailable() (part float64, ok bool) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	var total, free float64
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) >= 2 {
			switch f[0] {
			case "MemTotal:":
				total = number(f[1])
			case "MemAvailable:":
				free = number(f[1])
			}
		}
	}
	return free / max(total, 1), total > 0
}
