package emit

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// TestKubernetesBySchemas has kubeconform judge the files by the schemas of the
// kinds. The schemas are the projects' own: KUBE_SCHEMAS names a folder with
// KIND_VERSION.json, cut from the CRDs of Kueue, JobSet, nv-ipam and Multus with
// additionalProperties false. Nodes are Kubernetes' own kind and not among them.
func TestKubernetesBySchemas(t *testing.T) {
	dir := os.Getenv("KUBE_SCHEMAS")
	if dir == "" {
		t.Skip("KUBE_SCHEMAS names no folder with schemas of Kueue, JobSet, nv-ipam and Multus")
	}
	if _, err := exec.LookPath("kubeconform"); err != nil {
		t.Skipf("%v; go install github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0", err)
	}
	judge := func(data []byte) (valid int, said string) {
		cmd := bounded.Command(t, "kubeconform", "-strict", "-ignore-missing-schemas", "-verbose", "-schema-location", filepath.Join(dir, "{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json"))
		cmd.Stdin = bytes.NewReader(data)
		out, _ := cmd.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			switch {
			case strings.HasSuffix(strings.TrimSpace(line), "is valid"):
				valid++
			case !strings.Contains(line, "skipped"):
				said += line
			}
		}
		return valid, said
	}
	for _, name := range []string{"rail-1k", "superpod-h100", "hpn", "two-fabrics", "nvl72"} {
		p := example(t, name)
		for _, f := range Kubernetes(p) {
			valid, said := judge(f.Data)
			if said != "" || valid == 0 && !strings.Contains(f.Path, "nodes") {
				t.Errorf("%s %s: %d valid, %s", name, f.Path, valid, said)
			}
			for _, typo := range [][2]string{{"nodeLabel:", "nodeLabels:"}, {"replicatedJobs:", "replicatedJob:"}, {"perNodeNetworkPrefix: ", "perNodeNetworkPrefix: x"}} {
				if wrong := bytes.Replace(f.Data, []byte(typo[0]), []byte(typo[1]), 1); !bytes.Equal(wrong, f.Data) {
					if _, said := judge(wrong); said == "" {
						t.Errorf("%s %s: %q is not found", name, f.Path, typo[1])
					}
				}
			}
		}
	}
	data, err := os.ReadFile("../../../deploy/jobset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if valid, said := judge(data); valid != 1 || said != "" {
		t.Errorf("deploy/jobset.yaml: %d valid, %s", valid, said)
	}
}
