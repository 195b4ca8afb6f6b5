package emit

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/topo"
)

// NCCL writes nccl.conf: few variables, a reason beside each, and why others are
// left out. One file serves all hosts of a kind.
func NCCL(p *network.Plan) []File {
	var out []File
	for _, k := range hostKinds(p) {
		if len(k.gpus) == 0 {
			continue
		}
		out = append(out, ncclConf(p, k.first).file("nccl/"+p.Graph.Hosts[k.first.ID].Model+"/etc/nccl.conf", 0o644))
	}
	return out
}

// ncclConf writes NCCL's settings for a host: those that follow from the cabling, with the reason of each, and none
// that NCCL finds better by itself.
func ncclConf(p *network.Plan, h *network.Host) *text {
	var t text
	t.head(p, "#")
	front := h.First(network.Frontend)
	t.line("# Rendezvous and out-of-band traffic go over the front end, and over no other interface (the second = asks for the exact name).")
	t.line("NCCL_SOCKET_IFNAME==%s", front.Name)
	var hcas []string
	ib, eth := false, false
	for i := range h.Interfaces {
		x := &h.Interfaces[i]
		if x.Role != network.Backend {
			continue
		}
		ib, eth = ib || x.IB, eth || !x.IB
		hcas = append(hcas, fmt.Sprintf("mlx5_%d", len(hcas)))
	}
	if len(hcas) == 0 {
		t.line("# This host has no NIC in a compute fabric: NCCL runs over NVLink and sockets.")
		return &t
	}
	t.line("# The compute NICs and no others: storage and front-end NICs are RDMA devices, too. Exact names, since mlx5_1 alone would take mlx5_10.")
	t.line("# Device names are assumed in the order of the rails; compare with `ibdev2netdev`.")
	t.line("NCCL_IB_HCA==%s", strings.Join(hcas, ","))
	if eth {
		t.line("# RoCE packets bear DSCP %d, which switches keep lossless in priority %d (traffic class = DSCP x 4 + ECN-capable).",
			p.Intent.RoCE.DSCP, p.Intent.RoCE.Priority)
		t.line("NCCL_IB_TC=%d", p.Intent.RoCE.DSCP<<2|2)
		t.line("# The GID whose address is in the backend is taken (NCCL 2.21 and later); NCCL_IB_GID_INDEX stays unset, indices differ from host to host.")
		t.line("NCCL_IB_ADDR_RANGE=%s", p.Intent.Backend.Prefix)
		t.line("# A rail is a prefix of %d bits: peers are reached over the NIC of their rail (NCCL 2.30 and later).", p.Rails[0].Prefix.Bits())
		t.line("NCCL_IB_SUBNET_AWARE_ROUTING=1\nNCCL_IB_SUBNET_PREFIX_LEN=%d", p.Rails[0].Prefix.Bits())
	}
	if ib && len(p.Intent.Partitions) > 0 {
		t.line("# Jobs of a partition set NCCL_IB_PKEY to the index of its key, and NCCL_IB_SL to its service level; see opensm/*/etc/opensm/partitions.conf.")
	}
	if railOnly(p) {
		t.line("# Rails meet at no switch: NCCL must not cross them.")
		t.line("NCCL_CROSS_NIC=0")
	} else {
		t.line("# NCCL_CROSS_NIC stays unset: rails meet at the spines, and NCCL's own choice (2) is best.")
	}
	t.line("# Left out on purpose: NCCL_ALGO, NCCL_PROTO, NCCL_NTHREADS, NCCL_BUFFSIZE, NCCL_MIN_NCHANNELS, NCCL_NET_GDR_LEVEL.")
	t.line("# NCCL finds these from the topology; values left over from another cluster make it slow.")
	return &t
}

// railOnly reports whether the rails of the compute fabric share no switch.
func railOnly(p *network.Plan) bool {
	for i := range p.Switches {
		s := &p.Switches[i]
		if s.Role != network.Backend {
			continue
		}
		rails := map[int16]bool{}
		for _, q := range s.Ports {
			if n := p.Graph.Nodes[q.Peer]; n.Kind == topo.NIC || n.Kind == topo.Switch {
				rails[n.Rail] = true
			}
		}
		if len(rails) > 1 || rails[-1] {
			return false
		}
	}
	return len(p.Rails) > 1
}
