package emit

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// TestKubernetesByDefinitions has the API server's own libraries judge all objects by the custom resource
// definitions of Kueue, JobSet, nv-ipam and NVIDIA's DRA driver: schemas, unknown fields and CEL rules. KUBE_CRDS names
// a folder with the definitions. The judge is a module of its own in testdata/crdcheck.
func TestKubernetesByDefinitions(t *testing.T) {
	crds := os.Getenv("KUBE_CRDS")
	if crds == "" {
		t.Skip("KUBE_CRDS names no folder with the definitions of Kueue, JobSet, nv-ipam and the DRA driver")
	}
	judge := filepath.Join(t.TempDir(), "crdcheck")
	build := bounded.Within(t, bounded.Build, "go", "build", "-o", judge, ".")
	build.Dir = "testdata/crdcheck"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	judged := func(data []byte) string {
		cmd := bounded.Command(t, judge, crds)
		cmd.Stdin = bytes.NewReader(data)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	valid := 0
	for _, name := range []string{"hall", "hpn", "lab", "nvl72", "rail-1k", "storage", "superpod-h100", "two-fabrics"} {
		var all []byte
		for _, f := range Kubernetes(example(t, name)) {
			all = append(append(all, f.Data...), "---\n"...)
		}
		for line := range strings.Lines(judged(all)) {
			switch {
			case strings.HasSuffix(line, ": valid\n"):
				valid++
			case !strings.HasSuffix(line, ": no definition\n") || !strings.HasPrefix(line, "v1/") && !strings.Contains(line, "NetworkAttachmentDefinition"):
				t.Errorf("%s: %s", name, line)
			}
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
