package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// Site knows where hosts and devices are in a cluster.
type Site struct{ g *topo.Graph }

// NewSite takes the cluster's graph. Its hosts must have the names that logs use.
func NewSite(g *topo.Graph) *Site { return &Site{g} }

var deviceNumber = regexp.MustCompile(`^(?:mlx\d_|nic|gpu|GPU|NIC|rail|bnxt_re|efa_|irdma)(\d+)$`)

// Where names rail, leaf and port of a device of a host, such as
// "n3:nic2: rail 2, leaf2 port 4"; without a device, of all its NICs. It is "" if
// the cluster has no such host.
func (s *Site) Where(host, device string) string {
	h, ok := s.g.HostByName(host)
	if !ok {
		return ""
	}
	var nics []topo.NodeID
	first := s.g.Hosts[h].First
	for i, n := range s.g.HostNodes(h) {
		if n.Kind == topo.NIC {
			nics = append(nics, first+topo.NodeID(i))
		}
	}
	if device == "" {
		return s.whereAll(h, nics)
	}
	nic := s.nic(nics, h, device)
	if nic == topo.None {
		return ""
	}
	text := s.g.NodeName(nic)
	if rail := s.g.Nodes[nic].Rail; rail >= 0 {
		text += fmt.Sprintf(": rail %d", rail)
	}
	if leaf, port := s.cabled(nic); leaf != "" {
		text += fmt.Sprintf(", %s port %d", leaf, port)
	}
	return text
}

// whereAll names a host's rack and the leaf ports that its NICs are cabled to.
func (s *Site) whereAll(h topo.HostID, nics []topo.NodeID) string {
	rack := ""
	if r := s.g.Hosts[h].Rack; r >= 0 {
		rack = fmt.Sprintf(", rack %d", r)
	}
	var ports []string
	for _, n := range nics {
		if leaf, port := s.cabled(n); leaf != "" {
			if at := fmt.Sprintf("%s port %d", leaf, port); !slices.Contains(ports, at) {
				ports = append(ports, at)
			}
		}
	}
	if len(ports) == 0 {
		return ""
	}
	return fmt.Sprintf("%s%s: %s", s.g.Hosts[h].Name, rack, few(ports))
}

// Place is where a device is: its NIC, rail and the switch port at the other end. Rail is
// -1 and the rest is empty where the cluster does not say.
type Place struct {
	NIC  string `json:"nic"`
	Rail int    `json:"rail"`
	Leaf string `json:"leaf"`
	Port int    `json:"port"`
}

// Place finds the NIC of a device of a host. A GPU's NIC is the one beside it.
func (s *Site) Place(host, device string) (Place, bool) {
	p := Place{Rail: -1}
	h, ok := s.g.HostByName(host)
	if !ok {
		return p, false
	}
	var nics []topo.NodeID
	first := s.g.Hosts[h].First
	for i, n := range s.g.HostNodes(h) {
		if n.Kind == topo.NIC {
			nics = append(nics, first+topo.NodeID(i))
		}
	}
	nic := s.nic(nics, h, device)
	if nic == topo.None {
		return p, false
	}
	p.NIC, p.Rail = s.g.Nodes[nic].Name, int(s.g.Nodes[nic].Rail)
	p.Leaf, p.Port = s.cabled(nic)
	return p, true
}

// Hosts are the names of the cluster's hosts.
func (s *Site) Hosts() []string {
	list := make([]string, 0, len(s.g.Hosts))
	for _, h := range s.g.Hosts {
		list = append(list, h.Name)
	}
	return list
}

// nic finds a NIC by the name of its RDMA device or interface, or by the number in
// it: mlx5_3 is the fourth. A GPU's NIC is the one beside it.
func (s *Site) nic(nics []topo.NodeID, h topo.HostID, device string) topo.NodeID {
	for _, n := range nics {
		a := s.g.Attrs[n]
		if s.g.Nodes[n].Name == device || a["smi.device"] == device || a["net.name"] == device || a["port.interface"] == device {
			return n
		}
	}
	m := deviceNumber.FindStringSubmatch(device)
	if m == nil {
		return topo.None
	}
	k, err := strconv.Atoi(m[1])
	if err != nil {
		return topo.None
	}
	if strings.HasPrefix(strings.ToLower(device), "gpu") {
		return s.nicOfGPU(h, k)
	}
	if k < len(nics) {
		return nics[k]
	}
	return topo.None
}

func (s *Site) nicOfGPU(h topo.HostID, k int) topo.NodeID {
	first := s.g.Hosts[h].First
	for j, n := range s.g.HostNodes(h) {
		if n.Kind != topo.GPU {
			continue
		}
		if k == 0 {
			return s.g.Near(first + topo.NodeID(j))
		}
		k--
	}
	return topo.None
}

// cabled is the switch and port at the other end of a NIC's cable.
func (s *Site) cabled(nic topo.NodeID) (leaf string, port int) {
	for _, e := range s.g.Edges(nic) {
		l := s.g.Links[e.Link]
		other, p := l.B, l.BPort
		if other == nic {
			other, p = l.A, l.APort
		}
		if s.g.Nodes[other].Kind == topo.Switch {
			return s.g.NodeName(other), int(p)
		}
	}
	return "", 0
}
