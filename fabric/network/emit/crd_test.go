package emit

import (
	"bytes"
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
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

// TestKubernetesByDefinitions has the API server's own libraries judge all objects by the custom resource
// definitions of Kueue, JobSet, nv-ipam and NVIDIA's DRA driver: schemas, unknown fields and CEL rules. KUBE_CRDS names
// a folder with the definitions. The judge is a module of its own in testdata/crdcheck.
func TestKubernetesByDefinitions(t *testing.T) {
	if os.Getenv("KUBE_CRDS") == "" {
		t.Skip("KUBE_CRDS names no folder with the definitions of Kueue, JobSet, nv-ipam and the DRA driver")
	}
	judged := crdJudge(t)
	valid := 0
	for name, p := range examplePlans(t, func(*cluster.Network) {}) {
		good, wrong := kubernetesVerdict(p, judged)
		valid += good
		for _, line := range wrong {
			t.Errorf("%s: %s", name, line)
		}
	}
	t.Logf("%d objects are valid", valid)
	good := string(kueue(example(t, "hpn"), 2).Data) + "---\n" + string(computeDomain(example(t, "nvl72")).Data)
	for _, x := range [][3]string{
		{"nodeLabel:", "nodeLabels:", "unknown fields"},
		{"nominalQuota: 256", "nominalQuota: few", "nominalQuota"},
		{"  - nodeLabel: kubernetes.io/hostname\n", "  - nodeLabel: kubernetes.io/hostname\n  - nodeLabel: other\n", "hostname"}, // a rule in CEL
		{"      name: train-channel", "      nam: train-channel", "unknown fields"},
	} {
		if !strings.Contains(good, x[0]) {
			t.Errorf("%q is not in the files", x[0])
		}
		if got := judged([]byte(strings.Replace(good, x[0], x[1], 1))); !strings.Contains(got, x[2]) {
			t.Errorf("%q: %s", x[1], got)
		}
	}
}

// crdJudge builds the judge, and gives what asks it.
func crdJudge(t *testing.T) func([]byte) string {
	t.Helper()
	judge := filepath.Join(t.TempDir(), "crdcheck")
	build := bounded.Within(t, bounded.Build, "go", "build", "-o", judge, ".")
	build.Dir = "testdata/crdcheck"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return func(data []byte) string {
		cmd := bounded.Within(t, bounded.Build, judge, os.Getenv("KUBE_CRDS")) // the largest example has 131,072 hosts
		cmd.Stdin = bytes.NewReader(data)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
}

// kubernetesVerdict counts the objects of a plan that are valid, and lists what is wrong with others. Core objects and
// NetworkAttachmentDefinitions, which have no schema, are not judged.
func kubernetesVerdict(p *network.Plan, judged func([]byte) string) (valid int, wrong []string) {
	var all []byte
	for _, f := range Kubernetes(p) {
		all = append(append(all, f.Data...), "---\n"...)
	}
	if len(all) == 0 {
		return 0, nil
	}
	for line := range strings.Lines(judged(all)) {
		switch {
		case strings.HasSuffix(line, ": valid\n"):
			valid++
		case !strings.HasSuffix(line, ": no definition\n") || !strings.HasPrefix(line, "v1/") && !strings.Contains(line, "NetworkAttachmentDefinition"):
			wrong = append(wrong, line)
		}
	}
	return valid, wrong
}

var verdicts = flag.Bool("emit.verdicts", false, "print what slurmctld and the API server's libraries say of every example")

// TestVerdicts prints one table: does a real slurmctld start on each example's files, with the switches that the cables make,
// and how many Kubernetes objects are valid.
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
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "example\thosts\tslurmctld 22.05\tKubernetes")
	slurm, kube := examplePlans(t, func(n *cluster.Network) { n.Slurm.Version = "22.05" }), examplePlans(t, func(*cluster.Network) {})
	for _, name := range slices.Sorted(maps.Keys(slurm)) {
		starts := "does not start"
		t.Run(name, func(t *testing.T) {
			startSlurm(t, slurm[name])
			got := levels(t, command(t, nil, "scontrol", "show", "topology"))
			if starts = fmt.Sprintf("starts, %d levels of switches as cabled", len(got)); fmt.Sprint(got) != fmt.Sprint(cabled(slurm[name].Graph)) {
				starts = "starts, other switches"
				t.Error(starts)
			}
		})
		valid, wrong := kubernetesVerdict(kube[name], judged)
		if len(wrong) > 0 {
			t.Errorf("%s: %q", name, wrong)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d valid, %d wrong\n", name, len(kube[name].Hosts), starts, valid, len(wrong))
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", out.String())
}
