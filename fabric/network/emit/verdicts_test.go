package emit

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

var verdicts = flag.Bool("emit.verdicts", false, "print what slurmctld and the API server's libraries say of every example")

var slurmRoots = flag.String("emit.slurm", "",
	"with -emit.verdicts: folders, separated by commas, with other Slurm releases, as internal/debroot makes them")

// TestVerdicts prints one table: does a real slurmctld of each release start on each example's files, with the switches that the
// cables make or the blocks that NVLink makes, and how many Kubernetes objects are valid.
func TestVerdicts(t *testing.T) {
	if !*verdicts {
		t.Skip("make verdicts runs it")
	}
	tool(t, "slurmctld", "slurmctld")
	tool(t, "scontrol", "slurm-client")
	judged := func([]byte) string { return "" }
	if os.Getenv("KUBE_CRDS") != "" {
		judged = crdJudge(t)
	}
	said := map[string][]string{} // by example: what releases say
	releases := []string{slurmVerdicts(t, "", said)}
	for _, root := range strings.Split(*slurmRoots, ",") {
		if root != "" {
			releases = append(releases, slurmVerdicts(t, root, said))
		}
	}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "example\thosts\tslurmctld %s\tKubernetes\n", strings.Join(releases, "\tslurmctld "))
	kube := examplePlans(t, func(*cluster.Network) {})
	for _, name := range slices.Sorted(maps.Keys(kube)) {
		valid, wrong := kubernetesVerdict(kube[name], judged)
		if len(wrong) > 0 {
			t.Errorf("%s: %q", name, wrong)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d valid, %d wrong\n", name, len(kube[name].Hosts), strings.Join(said[name], "\t"), valid, len(wrong))
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", out.String())
}

// slurmVerdicts starts one release on every example's files, made for that release, and returns which release it is.
func slurmVerdicts(t *testing.T, root string, said map[string][]string) string {
	if root != "" {
		t.Setenv("PATH", slurmOf(t, root)+":"+os.Getenv("PATH"))
	}
	_, version, _ := strings.Cut(strings.TrimSpace(command(t, nil, "slurmctld", "-V")), " ")
	release := strings.Join(strings.SplitN(version, ".", 3)[:2], ".")
	plans := examplePlans(t, func(n *cluster.Network) { n.Slurm.Version = release })
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		verdict := "does not start"
		t.Run(release+" "+name, func(t *testing.T) {
			c := startSlurm(t, plans[name])
			if verdict = topologyVerdict(t, plans[name]); strings.Contains(verdict, "other") {
				t.Errorf("%s\n%s", verdict, c.said.String())
			}
		})
		said[name] = append(said[name], verdict)
	}
	return release
}

// topologyVerdict compares what scontrol shows with the cluster.
func topologyVerdict(t *testing.T, p *network.Plan) string {
	text := command(t, nil, "scontrol", "show", "topology")
	if !strings.Contains(text, "BlockName=") {
		got, want := levels(t, text), cabled(p.Graph)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Sprintf("starts, other switches: %v, the cables make %v", got, want)
		}
		return fmt.Sprintf("starts, %d levels of switches as cabled", len(got))
	}
	var got []string
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, nodes, ok := strings.Cut(rest, "Nodes="); ok && strings.HasPrefix(name, "BlockName=") {
			nodes, _, _ = strings.Cut(nodes, " ")
			got = append(got, strings.Join(hostnames(t, nodes), " "))
		}
	}
	slices.Sort(got)
	if want := nvlinked(p.Graph); !slices.Equal(got, want) {
		return fmt.Sprintf("starts, other blocks: %q, NVLink makes %q", got, want)
	}
	return fmt.Sprintf("starts, %d blocks as NVLink joins hosts", len(got))
}

// nvlinked are the sets of hosts that accelerator links join, each as sorted names.
func nvlinked(g *topo.Graph) (out []string) {
	reached := map[topo.HostID]bool{}
	for h := range g.Hosts {
		if reached[topo.HostID(h)] {
			continue
		}
		seen, queue := map[topo.NodeID]bool{}, []topo.NodeID{}
		visit := func(n topo.NodeID) {
			if !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
		for i := range g.HostNodes(topo.HostID(h)) {
			visit(g.Hosts[h].First + topo.NodeID(i))
		}
		hosts := map[string]bool{}
		for len(queue) > 0 {
			n := queue[0]
			queue = queue[1:]
			if host := g.Nodes[n].Host; host != topo.None {
				reached[host] = true
				hosts[g.Hosts[host].Name] = true
			}
			for _, e := range g.Edges(n) {
				if g.Class(e.Link).Kind.Accelerator() {
					visit(e.Peer)
				}
			}
		}
		out = append(out, strings.Join(slices.Sorted(maps.Keys(hosts)), " "))
	}
	slices.Sort(out)
	return out
}

// inRoot runs a program of a folder as if the folder were the root, with this machine's devices, processes and temporary files.
const inRoot = `#!/bin/sh
exec unshare -m sh -c 'R=$0 P=$1; shift
for x in dev proc tmp; do mkdir -p "$R/$x" && mount --rbind "/$x" "$R/$x" || exit 1; done
exec chroot "$R" "$P" "$@"' %s %s "$@"
`

// slurmOf makes a folder with commands that run another release, which is below root.
func slurmOf(t *testing.T, root string) string {
	bin := t.TempDir()
	for _, file := range []string{"passwd", "group", "hosts"} {
		data, err := os.ReadFile("/etc/" + file)
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "etc", file), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, at := range map[string]string{"slurmctld": "/usr/sbin/slurmctld", "scontrol": "/usr/bin/scontrol"} {
		if _, err := os.Stat(filepath.Join(root, at)); err != nil { // Debian's name for it, which it asks for itself
			if err := os.Symlink(filepath.Base(at)+"-wlm", filepath.Join(root, at)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(bin, name), fmt.Appendf(nil, inRoot, root, at), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}
