package emit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// object is a Kubernetes object, as far as these tests read it.
type object map[string]any

// at follows keys and indices into an object; nil if there is nothing.
func (o object) at(path ...any) any {
	var v any = map[string]any(o)
	for _, k := range path {
		switch x := v.(type) {
		case map[string]any:
			v = x[fmt.Sprint(k)]
		case []any:
			i, ok := k.(int)
			if !ok || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func keys(v any) (out []string) {
	m, _ := v.(map[string]any)
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// TestKubernetesRefersToWhatIsThere: a job's queue leads to quotas for all that its pods ask for, every rail that
// they ask for is offered by the device plug-in under the name that its network has, and claims have templates.
func TestKubernetesRefersToWhatIsThere(t *testing.T) {
	for _, name := range []string{"hpn", "rail-1k", "nvl72", "storage", "meta-24k", "two-fabrics"} {
		all := map[string][]object{}
		for _, f := range Kubernetes(example(t, name)) {
			for doc := range strings.SplitSeq("\n"+string(f.Data), "\n---\n") {
				var o object
				if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
					t.Fatalf("%s %s: %v", name, f.Path, err)
				}
				if o != nil {
					kind := fmt.Sprint(o["kind"])
					all[kind] = append(all[kind], o)
				}
			}
		}
		refers(t, name, all)
	}
}

// refers follows the references of a job.
func refers(t *testing.T, name string, all map[string][]object) {
	t.Helper()
	named := func(kind string, want any) object {
		for _, o := range all[kind] {
			if o.at("metadata", "name") == want {
				return o
			}
		}
		t.Errorf("%s: there is no %s %v", name, kind, want)
		return object{}
	}
	job := all["JobSet"][0]
	local := named("LocalQueue", job.at("metadata", "labels", "kueue.x-k8s.io/queue-name"))
	if local.at("metadata", "namespace") != job.at("metadata", "namespace") {
		t.Errorf("%s: the job and its queue are in two namespaces", name)
	}
	queue := named("ClusterQueue", local.at("spec", "clusterQueue"))
	flavour := named("ResourceFlavor", queue.at("spec", "resourceGroups", 0, "flavors", 0, "name"))
	named("Topology", flavour.at("spec", "topologyName"))
	covered, _ := queue.at("spec", "resourceGroups", 0, "coveredResources").([]any)
	pod := object(job.at("spec", "replicatedJobs", 0, "template", "spec", "template").(map[string]any))
	for _, asked := range keys(pod.at("spec", "containers", 0, "resources", "limits")) {
		if !slices.Contains(covered, any(asked)) {
			t.Errorf("%s: the queue has no quota of %s, which pods ask for", name, asked)
		}
	}
	rails, _ := pod.at("metadata", "annotations", "k8s.v1.cni.cncf.io/networks").(string)
	var offered struct {
		List []struct{ ResourceName, ResourcePrefix string } `json:"resourceList"`
	}
	if rails != "" {
		config := named("ConfigMap", "sriovdp-config").at("data", "config.json")
		if err := json.Unmarshal([]byte(fmt.Sprint(config)), &offered); err != nil {
			t.Errorf("%s: %v in %v", name, err, config)
		}
	}
	for rail := range strings.SplitSeq(rails, ",") {
		if rail == "" {
			continue
		}
		want := named("NetworkAttachmentDefinition", rail).at("metadata", "annotations", "k8s.v1.cni.cncf.io/resourceName")
		if !slices.ContainsFunc(offered.List, func(r struct{ ResourceName, ResourcePrefix string }) bool {
			return r.ResourcePrefix+"/"+r.ResourceName == want
		}) {
			t.Errorf("%s: no device plug-in offers %v", name, want)
		}
	}
	if claim := pod.at("spec", "resourceClaims", 0, "resourceClaimTemplateName"); claim != nil || name == "nvl72" {
		if got := named("ComputeDomain", "train").at("spec", "channel", "resourceClaimTemplate", "name"); got != claim {
			t.Errorf("%s: pods claim %v, the compute domain makes %v", name, claim, got)
		}
	}
}
