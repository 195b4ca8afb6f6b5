//go:build linux

package lab

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/cluster"
)

var scale = flag.Bool("lab.scale", false, "start labs of 6, 64 and 200 routers and measure them")

// clos is the plan of a fabric of two tiers.
func clos(t *testing.T, spines, leaves int) *network.Plan {
	t.Helper()
	text := fmt.Sprintf(`name: scale
catalog:
  switches:
    big: {ports: 512, link: 400gbe, latency: 600 ns}
kinds:
  one: {devices: {cpu0: {kind: cpu}, gpu0: {kind: gpu, model: H100-SXM, parent: cpu0, link: pcie5}, nic0: {kind: nic, model: ConnectX-7-Ethernet, parent: cpu0, link: pcie5}}}
hosts: {"n[0-%d]": one}
fabric: {family: fat-tree, tiers: 2, leaf: {switch: big, down: 1, up: %d}, spine: {switch: big, count: %d}, link: 400gbe}
`, leaves-1, spines, spines)
	c, err := cluster.Parse("scale.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("scale.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRoutings: the three kinds of routing bring the same lab up, each leaf with all its ways, and the specs of labs without root hold
// no daemon that needs it.
func TestRoutings(t *testing.T) {
	p := clos(t, 2, 3)
	for _, routing := range []string{"bird", "static"} {
		t.Run(routing, func(t *testing.T) {
			s, err := NewSpec(p, fmt.Sprintf("%s-%d", routing, os.Getpid()), Options{Routing: routing, Setup: "plain"})
			if err != nil {
				t.Fatal(err)
			}
			i := bring(t, s)
			if err := until(30*time.Second, i.whole); err != nil {
				t.Fatal(err)
			}
			out, err := i.Run("n0", "ip", "-j", "route", "get", "10.160.0.5", "from", "10.160.0.1")
			if err != nil || !strings.Contains(string(out), `"dev":"nic0"`) {
				t.Errorf("n0's way to n2: %v %s", err, out)
			}
			got, err := i.trace([]flow{{"udp", addr("10.160.0.1:7"), addr("10.160.0.5:7")}})
			if err != nil || len(got[0]) != 4 {
				t.Errorf("a packet from n0 to n2 crosses %v, %v; want four cables", got, err)
			}
		})
	}
	for _, o := range []Options{{Routing: "ospf", Setup: "plain"}, {Routing: "frr", Setup: "ansible"}} {
		if _, err := NewSpec(p, "x", o); err == nil || !strings.Contains(err.Error(), "known: ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestScale measures how long labs of many routers take, and what they hold.
func TestScale(t *testing.T) {
	if !*scale {
		t.Skip("long; make lab-scale runs it")
	}
	t.Log("| routers | routing | cables | up | memory a router | processor time |")
	for _, c := range []struct {
		spines, leaves int
		routing        string
	}{{2, 4, "frr"}, {2, 4, "bird"}, {4, 60, "frr"}, {2, 198, "bird"}, {2, 198, "static"}} {
		s, err := NewSpec(clos(t, c.spines, c.leaves), fmt.Sprintf("scale-%d", os.Getpid()), Options{Routing: c.routing, Setup: "none"})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		i := bring(t, s)
		if err := until(2*time.Minute, i.whole); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		pss, cpu := held(t, i)
		t.Logf("| %d | %s | %d | %.1f s | %.1f MB | %.1f s |",
			len(s.Nodes), c.routing, len(s.Wires), took.Seconds(), float64(pss)/1e6/float64(len(s.Nodes)), cpu.Seconds())
		if err := Down(s.Name); err != nil {
			t.Fatal(err)
		}
	}
}

// held sums the memory and the processor time of the routing daemons of a lab.
func held(t *testing.T, i *Info) (pss int64, cpu time.Duration) {
	t.Helper()
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", i.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range processes(space) {
		dir := strings.TrimSuffix(link, "/ns/pid")
		name, _ := os.ReadFile(dir + "/comm")
		switch strings.TrimSpace(string(name)) {
		case "zebra", "bgpd", "bfdd", "mgmtd", "bird":
		default:
			continue
		}
		text, _ := os.ReadFile(dir + "/smaps_rollup")
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				kb, _ := strconv.ParseInt(f[1], 10, 64)
				pss += kb << 10
			}
		}
		stat, _ := os.ReadFile(dir + "/stat")
		if _, rest, ok := strings.Cut(string(stat), ") "); ok {
			if f := strings.Fields(rest); len(f) > 13 {
				user, _ := strconv.Atoi(f[11])
				system, _ := strconv.Atoi(f[12])
				cpu += time.Duration(user+system) * 10 * time.Millisecond
			}
		}
	}
	return pss, cpu
}
