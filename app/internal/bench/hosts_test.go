package bench_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/launch"
)

// hosts makes two network namespaces that see each other over one cable.
func hosts(t *testing.T) (names []string, addr string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip command: apt-get install iproute2")
	}
	a, b := fmt.Sprintf("weftb%da", os.Getpid()), fmt.Sprintf("weftb%db", os.Getpid())
	ip := func(args string) error {
		out, err := bounded.Command(t, "ip", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %v: %s", args, err, out)
		}
		return nil
	}
	for _, n := range []string{a, b} {
		if err := ip("netns add " + n); err != nil {
			t.Skipf("no network namespaces here: %v", err)
		}
		t.Cleanup(func() { _ = ip("netns del " + n) })
	}
	for _, args := range []string{
		"link add v0 netns " + a + " type veth peer name v0 netns " + b,
		"-n " + a + " addr add 10.213.0.1/24 dev v0", "-n " + b + " addr add 10.213.0.2/24 dev v0",
		"-n " + a + " link set v0 up", "-n " + b + " link set v0 up",
		"-n " + a + " link set lo up", "-n " + b + " link set lo up",
	} {
		if err := ip(args); err != nil {
			t.Fatal(err)
		}
	}
	return []string{a, b}, "10.213.0.1"
}

// Ranks of two hosts that are reached through a command of the user's.
func TestHosts(t *testing.T) {
	names, addr := hosts(t)
	remote, err := launch.ParseRemote("ip netns exec {host}")
	if err != nil {
		t.Fatal(err)
	}
	c := quick(bench.Op{Collective: sched.AllReduce}, 4)
	c.Transport, c.Require = "tcp", "tcp"
	r, err := bench.Measure(t.Context(), c, launch.Spec{Command: self, Hosts: names, Remote: remote, Addr: addr, Stderr: os.Stderr,
		Prefix: true}, func(bench.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 3 || r.Wrong != 0 || r.Ranks[3].Transport != "tcp" {
		t.Errorf("%d rows, %d wrong, rank 3 is %+v", len(r.Rows), r.Wrong, r.Ranks[3])
	}
}

// Before operations over two hosts of two ranks are predicted, everything that messages are simulated by was measured.
func TestGaugeOverHosts(t *testing.T) {
	names, addr := hosts(t)
	remote, err := launch.ParseRemote("ip netns exec {host}")
	if err != nil {
		t.Fatal(err)
	}
	c := quick(bench.Op{Collective: sched.AllReduce}, 4)
	c.Require, c.Predict, c.MinBytes, c.MaxBytes = "mixed", true, 4096, 4096
	r, err := bench.Measure(t.Context(), c, launch.Spec{Command: self, Hosts: []string{names[0], names[0], names[1], names[1]}, Remote: remote,
		Addr: addr, Stderr: os.Stderr, Prefix: true}, func(bench.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	g := r.Rows[0].Ran.Gauge
	for name, list := range map[string][]bench.Took{"pair": g.Pair, "one way": g.OneWay, "all": g.All, "chain": g.Chain, "near": g.Near,
		"inside": g.Inside, "seats": g.Seats, "leaders": g.Leaders, "passes": g.Passes} {
		if len(list) == 0 || list[0].Bytes != 8 || !(list[0].Least >= 0 && list[0].Least <= list[0].Mostly) || len(list[0].Batches) == 0 {
			t.Errorf("%s: %+v", name, list)
		}
	}
	if got, err := r.Rows[0].Ran.Predict(r.Rows[0].Bytes, 8); err != nil || got <= 0 {
		t.Errorf("4 KiB are simulated in %s, %v", got, err)
	}
}
