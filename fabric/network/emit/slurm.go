package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/format"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// Slurm writes the nodes, the GPUs and the topology of a cluster, and a job to
// begin with.
func Slurm(p *network.Plan) []File {
	kinds := hostKinds(p)
	out := []File{slurmNodes(p, kinds), slurmGres(p, kinds)}
	return append(append(out, slurmTopology(p)...), slurmJob(p, kinds))
}

// hostKind is a sort of host: all of one model, with the same parts.
type hostKind struct {
	first *network.Host
	hosts []string
	addrs []string // on the front end
	gpus  []topo.NodeID
	cpus  []topo.NodeID
}

// hostKinds groups the hosts by model and number of GPUs, in their order.
func hostKinds(p *network.Plan) []*hostKind {
	var out []*hostKind
	index := map[string]*hostKind{}
	for i := range p.Hosts {
		h := &p.Hosts[i]
		var gpus, cpus []topo.NodeID
		first := p.Graph.Hosts[h.ID].First
		for j, n := range p.Graph.HostNodes(h.ID) {
			switch n.Kind {
			case topo.GPU:
				gpus = append(gpus, first+topo.NodeID(j))
			case topo.CPU:
				cpus = append(cpus, first+topo.NodeID(j))
			}
		}
		key := fmt.Sprintf("%s %d %d", p.Graph.Hosts[h.ID].Model, len(gpus), len(cpus))
		k := index[key]
		if k == nil {
			k = &hostKind{first: h, gpus: gpus, cpus: cpus}
			index[key] = k
			out = append(out, k)
		}
		k.hosts = append(k.hosts, h.Name)
		k.addrs = append(k.addrs, h.First(network.Frontend).Addr.Addr().String())
	}
	return out
}

// gpuType is the type of a GPU in gres: the catalogue's name in small letters.
func (k *hostKind) gpuType(p *network.Plan) string {
	if len(k.gpus) == 0 {
		return ""
	}
	return strings.ToLower(p.Graph.Nodes[k.gpus[0]].Model)
}

// coresASocket is assumed where nobody says how many cores a CPU has.
const coresASocket = 56

// slurmNodes writes the nodes by kind. Sockets and cores are assumed, and a comment says how to find the real ones.
func slurmNodes(p *network.Plan, kinds []*hostKind) File {
	var t text
	t.head(p, "#")
	t.line("# Include this from slurm.conf. Sockets and cores are assumed, %d a socket: take them from `slurmd -C` on one host of each kind.",
		coresASocket)
	if kind := p.Intent.Slurm.Topology; kind != "none" { // the default plug-in has had three names since 22.05
		t.line("TopologyPlugin=topology/%s", kind)
	}
	t.line("SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nGresTypes=gpu")
	var all []string
	for _, k := range kinds {
		gres := ""
		if len(k.gpus) > 0 {
			gres = fmt.Sprintf(" Gres=gpu:%s:%d", k.gpuType(p), len(k.gpus))
		}
		sockets := max(1, len(k.cpus))
		t.line("NodeName=%s NodeAddr=%s Sockets=%d CoresPerSocket=%d ThreadsPerCore=1%s State=UNKNOWN",
			hostlist.Slurm(k.hosts), hostlist.Slurm(k.addrs), sockets, coresASocket, gres)
		all = append(all, k.hosts...)
	}
	t.line("PartitionName=gpu Nodes=%s Default=YES MaxTime=INFINITE State=UP", hostlist.Slurm(all))
	return t.file("slurm/etc/slurm/weft-nodes.conf", 0o644)
}

// slurmGres writes one line a GPU: its cores are those of its socket, its links
// the number of NVLinks to every other GPU, with -1 for itself.
func slurmGres(p *network.Plan, kinds []*hostKind) File {
	var t text
	t.head(p, "#")
	t.line("# AutoDetect is off: lines that differ from what it finds would drain the node.")
	t.line("AutoDetect=off")
	for _, k := range kinds {
		nodes := hostlist.Slurm(k.hosts)
		for i, gpu := range k.gpus {
			cores := ""
			if at := slices.Index(k.cpus, p.Graph.CPUOf(gpu)); at >= 0 {
				cores = fmt.Sprintf(" Cores=%d-%d", at*coresASocket, (at+1)*coresASocket-1)
			}
			var links []string
			some := false
			for _, other := range k.gpus {
				n := -1
				if other != gpu {
					n = p.Graph.Connection(gpu, other).Links
					some = some || n > 0
				}
				links = append(links, fmt.Sprint(n))
			}
			joined := ""
			if some {
				joined = " Links=" + strings.Join(links, ",")
			}
			t.line("NodeName=%s Name=gpu Type=%s File=/dev/nvidia%d%s%s", nodes, k.gpuType(p), i, cores, joined)
		}
	}
	return t.file("slurm/etc/slurm/gres.conf", 0o644)
}

// slurmTopology writes the topology.conf that TopologyPlugin in slurm.conf reads.
// Without switches there is none.
func slurmTopology(p *network.Plan) []File {
	var t text
	t.head(p, "#")
	var err error
	switch p.Intent.Slurm.Topology {
	case "none":
		return nil
	case "block":
		err = format.SlurmBlocks(&t, p.Graph, p.Blocks(), p.Intent.Slurm.Block)
	default:
		err = format.SlurmTree(&t, p.Graph)
	}
	if err != nil { // network.Make chose a topology that this graph has
		panic(err)
	}
	return []File{t.file("slurm/etc/slurm/topology.conf", 0o644)}
}

func slurmJob(p *network.Plan, kinds []*hostKind) File {
	gpus := 0
	for _, k := range kinds {
		gpus = max(gpus, len(k.gpus))
	}
	var t text
	t.line("#!/bin/bash")
	t.head(p, "#")
	t.line("#SBATCH --job-name=weft\n#SBATCH --partition=gpu\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=%d", max(1, gpus))
	if gpus > 0 {
		t.line("#SBATCH --gpus-per-node=%d", gpus)
	}
	if p.Intent.Slurm.Topology == "tree" {
		t.line("#SBATCH --switches=1@30")
	}
	t.line("#SBATCH --exclusive\nulimit -l unlimited\nexport NCCL_CONF_FILE=/etc/nccl.conf\nsrun \"$@\"")
	return t.file("slurm/job.sh", 0o755)
}
