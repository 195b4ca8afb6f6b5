package emit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

// The oracle of these tests is Slurm itself where this machine has it (22.05,
// which knows trees and no blocks), and for blocks a reader of topology.conf
// that was written from Slurm's manual: it shares nothing with the encoder.

// examplePlans makes the plans of all cluster files in examples/, after edit changed their intent.
func examplePlans(t *testing.T, edit func(*cluster.Network)) map[string]*network.Plan {
	t.Helper()
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	out := map[string]*network.Plan{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cluster.Parse(file, data, nil)
		if err != nil {
			t.Fatal(err)
		}
		edit(&c.Network)
		out[strings.TrimSuffix(filepath.Base(file), ".yaml")] = makePlan(t, file, c)
	}
	return out
}

// TestSlurmStartsOnEveryExample: a real controller starts on every example's
// files, and its topology is the one that the cables make.
func TestSlurmStartsOnEveryExample(t *testing.T) {
	tool(t, "slurmctld", "slurmctld")
	tool(t, "scontrol", "slurm-client")
	for name, p := range examplePlans(t, func(n *cluster.Network) { n.Slurm.Version = "22.05" }) {
		t.Run(name, func(t *testing.T) {
			c := startSlurm(t, p)
			got := levels(t, command(t, nil, "scontrol", "show", "topology"))
			want := cabled(p.Graph)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("slurmctld has the switches\n%v\nthe cables make\n%v\n%s", got, want, c.said.String())
			}
			s := readBack(t, p)
			if fmt.Sprint(s.Levels()) != fmt.Sprint(got) && len(got) > 0 {
				t.Errorf("slurmctld has the switches\n%v\nweft net prove reads\n%v", got, s.Levels())
			}
			for _, v := range s.Prove() {
				if !v.Holds {
					t.Errorf("%+v", v)
				}
			}
		})
	}
}

// readBack has the prover read a plan's files for Slurm.
func readBack(t *testing.T, p *network.Plan) *prove.Slurm {
	t.Helper()
	list, err := Make(p, []string{"cables", "slurm"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range list {
		files[f.Path] = f.Data
	}
	n, err := prove.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return n.Slurm
}

// levels reads what scontrol shows: for every level the node sets of its switches, sorted.
func levels(t *testing.T, text string) [][]string {
	t.Helper()
	var out [][]string
	for line := range strings.Lines(text) {
		fields := map[string]string{}
		for _, f := range strings.Fields(line) {
			k, v, _ := strings.Cut(f, "=")
			fields[k] = v
		}
		if fields["SwitchName"] == "" {
			continue
		}
		level, err := strconv.Atoi(fields["Level"])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for len(out) <= level {
			out = append(out, nil)
		}
		out[level] = append(out[level], strings.Join(hostnames(t, fields["Nodes"]), " "))
	}
	for _, l := range out {
		slices.Sort(l)
	}
	return out
}

// hostnames has Slurm itself expand a host list.
func hostnames(t *testing.T, list string) []string {
	t.Helper()
	names := strings.Fields(command(t, nil, "scontrol", "show", "hostnames", list))
	slices.Sort(names)
	return names
}

// cabled computes the levels from the cables alone: hosts that switches of the
// lowest k tiers join are one switch of level k-1 to Slurm. A last level joins
// what the top tier leaves apart, as dragonflies and tori do.
func cabled(g *topo.Graph) [][]string {
	top := 0
	g.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) {
		if n.Fabric < 0 || !g.Fabrics[n.Fabric].Service {
			top = max(top, max(1, int(n.Tier)))
		}
	})
	if top == 0 {
		return nil
	}
	var out [][]string
	for tier := 1; tier <= top; tier++ {
		out = append(out, components(g, tier))
	}
	if len(out[top-1]) > 1 {
		all := make([]string, len(g.Hosts))
		for i := range g.Hosts {
			all[i] = g.Hosts[i].Name
		}
		slices.Sort(all)
		out = append(out, []string{strings.Join(all, " ")})
	}
	return out
}

// components floods from every host over the compute switches up to a tier.
func components(g *topo.Graph, tier int) []string {
	seen := make([]bool, len(g.Nodes))
	done := make([]bool, len(g.Hosts))
	var out []string
	for h := range g.Hosts {
		if done[h] {
			continue
		}
		hosts := []topo.HostID{topo.HostID(h)}
		done[h] = true
		for i := 0; i < len(hosts); i++ {
			var queue []topo.NodeID
			for j := range g.HostNodes(hosts[i]) {
				queue = append(queue, g.Hosts[hosts[i]].First+topo.NodeID(j))
			}
			for len(queue) > 0 {
				n := queue[0]
				queue = queue[1:]
				if host := g.Nodes[n].Host; host >= 0 && !done[host] {
					done[host] = true
					hosts = append(hosts, host)
				}
				for _, e := range g.Edges(n) {
					s := &g.Nodes[e.Peer]
					up := s.Kind == topo.Switch && max(1, int(s.Tier)) <= tier && (s.Fabric < 0 || !g.Fabrics[s.Fabric].Service)
					// Switches of tier 1 that only other switches join, as in a torus, do not make one leaf.
					flat := g.Nodes[n].Kind == topo.Switch && max(1, int(s.Tier)) == max(1, int(g.Nodes[n].Tier))
					if !seen[e.Peer] && (up && !flat || g.Nodes[n].Kind == topo.Switch && s.Kind == topo.NIC && s.Host >= 0) {
						seen[e.Peer] = true
						queue = append(queue, e.Peer)
					}
				}
			}
		}
		var names []string
		for _, h := range hosts {
			names = append(names, g.Hosts[h].Name)
		}
		slices.Sort(names)
		out = append(out, strings.Join(names, " "))
	}
	slices.Sort(out)
	return out
}

// TestSlurmBlocksFollowNVLink: a rack of 18 trays is a block, several sizes
// follow, slurm.conf names the plug-in, and older versions get a tree.
func TestSlurmBlocksFollowNVLink(t *testing.T) {
	tool(t, "scontrol", "slurm-client")
	conf := filepath.Join(t.TempDir(), "slurm.conf") // scontrol expands host lists only with one
	if err := os.WriteFile(conf, []byte("ClusterName=t\nSlurmctldHost=localhost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_CONF", conf)
	p := example(t, "nvl72")
	set := slurmSet(t, Slurm(p))
	if set.plugin != "topology/block" {
		t.Errorf("slurm.conf names the plug-in %q for a file of blocks", set.plugin)
	}
	if got, want := fmt.Sprint(set.sizes), "[18 36 72 144]"; got != want {
		t.Errorf("BlockSizes %s, want %s", got, want)
	}
	if len(set.blocks) != 8 {
		t.Errorf("%d blocks, want one for each of 8 racks", len(set.blocks))
	}
	for i, b := range set.blocks {
		for _, host := range b {
			if n, err := strconv.Atoi(strings.TrimPrefix(host, "t")); err != nil || n/18 != i {
				t.Errorf("%s is in block %d, its NVLink domain is rack %d", host, i, n/18)
			}
		}
	}
	for name, p := range examplePlans(t, func(*cluster.Network) {}) {
		if set := slurmSet(t, Slurm(p)); (set.plugin == "topology/block") != (name == "nvl72") {
			t.Errorf("%s: plug-in %s; only nvl72 has NVLink between hosts", name, set.plugin)
		}
	}
}

// slurmFiles is what Slurm's manual says that a set of files means.
type slurmFiles struct {
	plugin   string
	blocks   [][]string
	sizes    []int
	switches int
}

// slurmSet reads slurm.conf and topology.conf by the rules of slurm.conf(5) and
// topology.conf(5), and of the block plug-in: the first size is the base, every
// other one the base times a power of two, no block is smaller than the base
// (before 25.05), and every node is in one block.
func slurmSet(t *testing.T, files []File) slurmFiles {
	t.Helper()
	var out slurmFiles
	nodes, in := map[string]bool{}, map[string]int{}
	found := false
	for _, f := range files {
		base := filepath.Base(f.Path)
		if base != "weft-nodes.conf" && base != "topology.conf" {
			continue
		}
		found = found || base == "topology.conf"
		for line := range bytes.Lines(f.Data) {
			text, _, _ := strings.Cut(string(line), "#")
			fields := map[string]string{}
			for _, w := range strings.Fields(text) {
				k, v, ok := strings.Cut(w, "=")
				if !ok || fields[strings.ToLower(k)] != "" {
					t.Errorf("%s: %q", base, w)
				}
				fields[strings.ToLower(k)] = v
			}
			switch {
			case fields["topologyplugin"] != "":
				out.plugin = fields["topologyplugin"]
			case fields["nodename"] != "":
				for _, n := range hostnames(t, fields["nodename"]) {
					nodes[n] = true
				}
			case fields["blockname"] != "":
				out.blocks = append(out.blocks, hostnames(t, fields["nodes"]))
				for _, n := range out.blocks[len(out.blocks)-1] {
					in[n]++
				}
			case fields["blocksizes"] != "":
				for _, s := range strings.Split(fields["blocksizes"], ",") {
					n, err := strconv.Atoi(s)
					if err != nil {
						t.Errorf("BlockSizes %q", s)
					}
					out.sizes = append(out.sizes, n)
				}
			case fields["switchname"] != "":
				out.switches++
			}
		}
	}
	out.agree(t, found)
	for i, n := range out.sizes {
		level, rest := 0, n
		for rest > out.sizes[0] && rest%2 == 0 {
			rest, level = rest/2, level+1
		}
		if rest != out.sizes[0] || level > 15 || i > 0 && n <= out.sizes[i-1] {
			t.Errorf("block size %d is not %d times a power of two", n, out.sizes[0])
		}
	}
	for _, b := range out.blocks {
		if len(out.sizes) == 0 || len(b) < out.sizes[0] {
			t.Errorf("a block of %d nodes with the base %v", len(b), out.sizes)
		}
	}
	for n := range nodes {
		if len(out.blocks) > 0 && in[n] != 1 {
			t.Errorf("%s is in %d blocks", n, in[n])
		}
	}
	return out
}

// agree checks that the plug-in and the lines of topology.conf are of one kind.
func (s *slurmFiles) agree(t *testing.T, file bool) {
	t.Helper()
	want := ""
	switch {
	case len(s.blocks) > 0 && s.switches > 0:
		t.Error("topology.conf mixes blocks and switches")
	case len(s.blocks) > 0:
		want = "topology/block"
	case s.switches > 0:
		want = "topology/tree"
	case file:
		t.Error("topology.conf has neither switches nor blocks")
	}
	if s.plugin != want {
		t.Errorf("slurm.conf names %q, topology.conf is for %q", s.plugin, want)
	}
}

// controller is a running slurmctld.
type controller struct {
	conf string
	said bytes.Buffer // on standard output and standard error; read it after the test failed
}

// startSlurm runs slurmctld on a plan's files until the test ends, and returns when it answers.
func startSlurm(t *testing.T, p *network.Plan) *controller {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("slurmctld runs as root here")
	}
	dir := t.TempDir()
	write(t, Slurm(p), dir)
	etc := filepath.Join(dir, "slurm/etc/slurm")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{conf: filepath.Join(etc, "slurm.conf")}
	text := fmt.Sprintf(`ClusterName=t
SlurmctldHost=%s(127.0.0.1)
SlurmUser=root
SlurmctldPort=%d
SlurmdPort=%d
AuthType=auth/none
CredType=cred/none
StateSaveLocation=%s
SlurmdSpoolDir=%s
SlurmctldPidFile=%s/ctld.pid
SlurmdPidFile=%s/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
include %s/weft-nodes.conf
`, host, freePort(t), freePort(t), dir, dir, dir, dir, etc)
	if err := os.WriteFile(c.conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	devices(t, dir, filepath.Join(etc, "gres.conf"))
	t.Setenv("SLURM_CONF", c.conf)
	ctld := bounded.Server(t, "slurmctld", "-D", "-c", "-f", c.conf)
	ctld.Stdout, ctld.Stderr = &c.said, &c.said
	if err := ctld.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- ctld.Wait(); close(ended) }()
	t.Cleanup(func() {
		ctld.Process.Kill()
		<-ended
	})
	limit := time.After(5 * time.Minute) // with thousands of hosts on a busy machine it takes more than one
	for tick := time.Tick(50 * time.Millisecond); ; {
		select {
		case err := <-ended:
			t.Fatalf("slurmctld ended: %v\n%s", err, c.said.String())
		case <-limit:
			t.Fatal("slurmctld does not answer")
		case <-tick:
		}
		if bounded.Command(t, "scontrol", "ping").Run() == nil {
			return c
		}
	}
}

// devices makes the device files that gres.conf names: there are no GPUs here, any device file will do.
func devices(t *testing.T, dir, gres string) {
	t.Helper()
	data, err := os.ReadFile(gres)
	if err != nil {
		t.Fatal(err)
	}
	dev := filepath.Join(dir, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if out, err := bounded.Command(t, "mknod", fmt.Sprintf("%s/nvidia%d", dev, i), "c", "1", "3").CombinedOutput(); err != nil {
			t.Skipf("mknod: %v %s", err, out)
		}
	}
	if err := os.WriteFile(gres, bytes.ReplaceAll(data, []byte("/dev/nvidia"), []byte(dev+"/nvidia")), 0o644); err != nil {
		t.Fatal(err)
	}
}
