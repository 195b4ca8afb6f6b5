package emit

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/topo"
)

// Kubernetes writes what a scheduler needs to place pods by the fabric and to
// give each pod its rails: node labels, Kueue's topology, flavour and queues, a network,
// an address pool and a device plug-in's resource per rail, a compute domain where hosts
// share NVLink, and a JobSet that uses them.
func Kubernetes(p *network.Plan) []File {
	levels := tiersOf(p)
	out := []File{nodeLabels(p, levels), kueue(p, levels), jobSet(p)}
	if rails := railNetworks(p); len(rails.Data) > 0 {
		out = append(out, rails, devicePlugin(p))
	}
	if sharesNVLink(p) {
		out = append(out, computeDomain(p))
	}
	return out
}

// podRails are the rails that pods get as resources: routed ones.
func podRails(p *network.Plan) (out []*network.Rail) {
	for i := range p.Rails {
		if r := &p.Rails[i]; !r.InfiniBand && p.Intent.Backend.Links == "/31" {
			out = append(out, r)
		}
	}
	return out
}

// railDevice is what hosts call the interface of a rail.
func railDevice(p *network.Plan, rail int) string {
	for j := range p.Hosts {
		for k := range p.Hosts[j].Interfaces {
			if x := &p.Hosts[j].Interfaces[k]; x.Rail == rail {
				return x.Name
			}
		}
	}
	return ""
}

// resource is something that pods ask for, and how much of it the cluster has.
type resource struct {
	name  string
	total int
	pod   int // what a pod takes that has a host to itself
}

// resources are GPUs and rails.
func resources(p *network.Plan) (out []resource) {
	for _, r := range podRails(p) {
		x := resource{name: fmt.Sprintf("nvidia.com/rail%d", r.Number), pod: 1}
		for j := range p.Hosts {
			for k := range p.Hosts[j].Interfaces {
				if p.Hosts[j].Interfaces[k].Rail == r.Number {
					x.total++
				}
			}
		}
		out = append(out, x)
	}
	gpu := resource{name: "nvidia.com/gpu", total: p.Graph.Count(topo.GPU)}
	for _, k := range hostKinds(p) {
		gpu.pod = max(gpu.pod, len(k.gpus))
	}
	if gpu.pod > 0 {
		out = append(out, gpu)
	}
	return out
}

func sharesNVLink(p *network.Plan) bool {
	return len(p.Hosts) > 0 && domain(p, &p.Hosts[0]) != ""
}

// channelClaim is the claim template that a compute domain makes for the channels of its pods.
const channelClaim = "train-channel"

// computeDomain writes the domain in which a job's pods share GPU memory over NVLink: the driver runs the IMEX
// daemons on the nodes that its pods get.
func computeDomain(p *network.Plan) File {
	var t text
	t.head(p, "#")
	t.line("# For NVIDIA's DRA driver for GPUs, from Kubernetes 1.32 with DynamicResourceAllocation.")
	t.line("apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata:\n  name: train\n  namespace: default\nspec:\n  numNodes: 0\n  channel:\n    resourceClaimTemplate:\n      name: %s",
		channelClaim)
	return t.file("kubernetes/compute-domain.yaml", 0o644)
}

// devicePlugin writes what the SR-IOV network device plug-in offers: each rail's NIC as a resource of its own.
func devicePlugin(p *network.Plan) File {
	var list []map[string]any
	for _, r := range podRails(p) {
		list = append(list, map[string]any{"resourceName": fmt.Sprintf("rail%d", r.Number), "resourcePrefix": "nvidia.com",
			"selectors": []map[string]any{{"pfNames": []string{railDevice(p, r.Number)}, "isRdma": true}}})
	}
	var t text
	t.head(p, "#")
	t.line("# For the SR-IOV network device plug-in, also as part of NVIDIA's network operator.")
	config, err := json.MarshalIndent(map[string]any{"resourceList": list}, "    ", "  ")
	if err != nil {
		return File{} // maps of strings always marshal
	}
	t.line("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: sriovdp-config\n  namespace: kube-system\ndata:\n  config.json: |\n    %s",
		config)
	return t.file("kubernetes/device-plugin.yaml", 0o644)
}

// queues writes a queue over all GPUs and rails, and the name by which jobs of the namespace default reach it.
func queues(p *network.Plan, t *text) {
	all := resources(p)
	if len(all) == 0 {
		return
	}
	var names []string
	for _, r := range all {
		names = append(names, r.name)
	}
	t.line("---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata:\n  name: gpu\nspec:\n  namespaceSelector: {}\n  resourceGroups:\n  - coveredResources: [%s]\n    flavors:\n    - name: gpu\n      resources:",
		strings.Join(names, ", "))
	for _, r := range all {
		t.line("      - {name: %s, nominalQuota: %d}", r.name, r.total)
	}
	t.line("---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\nmetadata:\n  name: gpu\n  namespace: default\nspec:\n  clusterQueue: gpu")
}

const tierLabel, acceleratorLabel = "fabric.topograph.run/tier-", "accelerator.topograph.run/domain"

// tiersOf counts the levels of switches above a host that labels tell apart: its
// pod's leaves are one, and the fabric's whole is another where there are several.
func tiersOf(p *network.Plan) int {
	pods := map[int32]bool{}
	for i := range p.Hosts {
		pods[p.Graph.Hosts[p.Hosts[i].ID].Pod] = true
	}
	if len(pods) > 1 {
		return 2
	}
	return 1
}

// labelValue shortens a value that labels do not take.
func labelValue(s string) string {
	if len(s) <= 63 {
		return s
	}
	h := fnv.New64a()
	h.Write([]byte(s))
	return fmt.Sprintf("x%x", h.Sum64())
}

// pod names the leaves that a host shares: one name for all rails of a pod.
func pod(p *network.Plan, h *network.Host) string {
	n := p.Graph.Hosts[h.ID].Pod
	if n < 0 {
		for i := range h.Interfaces {
			if sw, _ := p.PeerPort(&h.Interfaces[i]); sw != nil && sw.Role == network.Backend {
				return sw.Name
			}
		}
		return p.Name
	}
	return fmt.Sprintf("pod%d", n)
}

// domain names the NVLink domain of a host that it shares with others, or nothing.
func domain(p *network.Plan, h *network.Host) string {
	first := p.Graph.Hosts[h.ID].First
	for i, n := range p.Graph.HostNodes(h.ID) {
		if n.Kind != topo.GPU {
			continue
		}
		for _, e := range p.Graph.Edges(first + topo.NodeID(i)) {
			if peer := &p.Graph.Nodes[e.Peer]; peer.Kind == topo.NVSwitch && peer.Host < 0 {
				return fmt.Sprintf("rack%d", peer.Rack)
			}
		}
		break
	}
	return ""
}

// nodeLabels writes the labels by which a scheduler places pods close to each other. They are applied with a field
// manager of their own, which leaves other labels alone.
func nodeLabels(p *network.Plan, levels int) File {
	var t text
	t.head(p, "#")
	t.line("# kubectl apply --server-side --field-manager=weft -f nodes.yaml")
	for i := range p.Hosts {
		h := &p.Hosts[i]
		t.line("---\napiVersion: v1\nkind: Node\nmetadata:\n  name: %s\n  labels:", strings.ToLower(h.Name))
		t.line("    %s0: %s", tierLabel, labelValue(pod(p, h)))
		if levels > 1 {
			t.line("    %s1: %s", tierLabel, labelValue(p.Name))
		}
		if d := domain(p, h); d != "" {
			t.line("    %s: %s", acceleratorLabel, labelValue(d))
		}
	}
	return t.file("kubernetes/nodes.yaml", 0o644)
}

func kueue(p *network.Plan, levels int) File {
	var t text
	t.head(p, "#")
	t.line("apiVersion: kueue.x-k8s.io/v1beta2\nkind: Topology\nmetadata:\n  name: fabric\nspec:\n  levels:")
	for l := levels - 1; l >= 0; l-- {
		t.line("  - nodeLabel: %s%d", tierLabel, l)
	}
	t.line("  - nodeLabel: kubernetes.io/hostname")
	t.line("---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata:\n  name: gpu\nspec:\n  nodeLabels:\n    %s%d: %s\n  topologyName: fabric",
		tierLabel, levels-1, labelValue(topLabel(p, levels)))
	queues(p, &t)
	return t.file("kubernetes/kueue.yaml", 0o644)
}

// topLabel is the value that all nodes of the outermost level share.
func topLabel(p *network.Plan, levels int) string {
	if levels > 1 {
		return p.Name
	}
	return pod(p, &p.Hosts[0])
}

// railNetworks writes a network attachment and an address pool for each routed rail.
func railNetworks(p *network.Plan) File {
	var t text
	for _, r := range podRails(p) {
		if t.Len() == 0 {
			t.head(p, "#")
		}
		name, iface := fmt.Sprintf("rail%d", r.Number), railDevice(p, r.Number)
		config, err := json.Marshal(map[string]any{"cniVersion": "0.3.1", "name": name, "plugins": []map[string]any{
			{"type": "host-device", "device": iface, "ipam": map[string]any{"type": "nv-ipam", "poolName": name, "poolType": "cidrpool"}},
			{"type": "sbr"},
			{"type": "tuning", "mtu": p.Intent.Backend.MTU,
				"sysctl": map[string]string{"net.ipv4.conf.IFNAME.arp_ignore": "1", "net.ipv4.conf.IFNAME.arp_announce": "2"}},
		}})
		if err != nil {
			continue // maps of strings always marshal
		}
		t.line("---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: %s\n  annotations:\n    k8s.v1.cni.cncf.io/resourceName: nvidia.com/%s\nspec:\n  config: '%s'",
			name, name, config)
		t.line("---\napiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata:\n  name: %s\nspec:\n  cidr: %s\n  gatewayIndex: 0\n  perNodeNetworkPrefix: 31\n  staticAllocations:",
			name, r.Prefix)
		for j := range p.Hosts {
			for k := range p.Hosts[j].Interfaces {
				if x := &p.Hosts[j].Interfaces[k]; x.Rail == r.Number {
					t.line("  - {nodeName: %s, prefix: %s, gateway: %s}", strings.ToLower(p.Hosts[j].Name), x.Addr.Masked(), x.Gateway)
				}
			}
		}
	}
	return t.file("kubernetes/rails.yaml", 0o644)
}

func jobSet(p *network.Plan) File {
	var names, limits []string
	gpus := 0
	for _, r := range podRails(p) {
		names = append(names, fmt.Sprintf("rail%d", r.Number))
	}
	for _, r := range resources(p) {
		limits = append(limits, fmt.Sprintf("%s: %d", r.name, r.pod))
		if r.name == "nvidia.com/gpu" {
			gpus = r.pod
		}
	}
	var t text
	t.head(p, "#")
	t.line("apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata:\n  name: train\n  namespace: default\n  labels:\n    kueue.x-k8s.io/queue-name: gpu\nspec:\n  replicatedJobs:\n  - name: worker\n    replicas: 1\n    template:\n      spec:\n        parallelism: 2\n        completions: 2\n        completionMode: Indexed\n        backoffLimit: 0\n        template:\n          metadata:\n            annotations:")
	t.line("              kueue.x-k8s.io/podset-preferred-topology: %s0", tierLabel)
	if len(names) > 0 {
		t.line("              k8s.v1.cni.cncf.io/networks: %q", strings.Join(names, ","))
	}
	t.line("          spec:\n            restartPolicy: Never")
	if sharesNVLink(p) {
		t.line("            resourceClaims:\n            - name: channel\n              resourceClaimTemplateName: %s", channelClaim)
	}
	t.line("            containers:\n            - name: train\n              image: REPLACE-ME\n              command: [weft, run, --nproc, \"%d\", --, ./run/train]",
		max(1, gpus))
	t.line("              resources:\n                limits: {%s}", strings.Join(limits, ", "))
	if sharesNVLink(p) {
		t.line("                claims:\n                - name: channel")
	}
	t.line("              securityContext:\n                capabilities:\n                  add: [IPC_LOCK]")
	return t.file("kubernetes/jobset.yaml", 0o644)
}
