package emit

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		case !strings.HasSuffix(line, ": no definition\n") || !strings.HasPrefix(line, "v1/") &&
			!strings.Contains(line, "NetworkAttachmentDefinition"):
			wrong = append(wrong, line)
		}
	}
	return valid, wrong
}
