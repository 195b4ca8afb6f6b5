package failures

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// yearly is failures a year of one part of 16,384, of those that 54 days counted.
const yearly = 365. / 54 / 16384

// Rates of parts, failures a year, as measured on 16,384 H100 during 54 days (Llama 3, table 5: 419 stops): the GPU with its
// memory, a server's other parts, a NIC, and a port's switch or cable. Repair times are those of a trace of 400
// servers: log-normal, median 23 hours, a spread of 2.5 in the logarithm; software needs none.
const (
	gpuYearly    = 268 * yearly    // faulty, HBM, SRAM, processor, silent corruption, heat
	hostYearly   = 14 * yearly * 8 // power supply, chassis, board, CPU, DIMM, SSD
	nicYearly    = 7 * yearly
	portYearly   = 35 * yearly // switch or cable: the source cannot tell
	switchYearly = .02         // of one leaf switch, taken out of its ports' rate
	softYearly   = 95 * yearly // software (56), hosts taken out for maintenance (32), watchdogs without a known cause (7)
	repairMedian = 23.0
	repairSigma  = 1.6 // of one kind of part; kinds together spread by 2.5
	silentShare  = 0.10
	bursts       = 0.53 // shape of the Weibull gaps between faults of that trace: its daily counts vary 4.7 times as much as independent ones
)

// Parts are the counts of a cluster's parts that may fail a job.
type Parts struct {
	Hosts, GPUs, NICs, Ports, Leaves int
	HostsPerLeaf                     int     // hosts that one leaf switch takes
	Groups                           []Group // of hosts that go down together
}

// Group is a kind of failure domain above a host: racks, power feeds, cooling units, spines, planes. Nothing public says how often these
// fail, so they have a rate only where one is given.
type Group struct {
	Name  string // rack, power, cooling, spine, plane
	Count int
	Hosts int // that one of them takes; 0 if the job goes on with the same hosts after it has started again
}

// Domains are the failure domains that a graph's hosts and switches are in: racks as the cluster places hosts, spines and planes with
// the hosts that have no other way. Hosts without a rack are in none.
func Domains(g *topo.Graph) []Group {
	var out []Group
	racks := map[int32]int{}
	for _, h := range g.Hosts {
		if h.Rack != topo.None {
			racks[h.Rack]++
		}
	}
	most := 0
	for _, n := range racks {
		most = max(most, n)
	}
	if len(racks) > 0 {
		out = append(out, Group{"rack", len(racks), most})
	}
	spines, planes := 0, map[int8]bool{}
	g.Each(topo.Switch, func(_ topo.NodeID, n *topo.Node) {
		if n.Fabric == topo.None || g.Fabrics[n.Fabric].Service {
			return
		}
		planes[n.Fabric] = true
		if n.Tier > 1 {
			spines++
		}
	})
	if spines > 0 { // other spines carry its traffic; what was under way is lost
		hosts := 0
		if spines == 1 {
			hosts = len(g.Hosts)
		}
		out = append(out, Group{"spine", spines, hosts})
	}
	if len(planes) > 0 {
		hosts := 0
		if len(planes) == 1 {
			hosts = len(g.Hosts)
		}
		out = append(out, Group{"plane", len(planes), hosts})
	}
	return out
}

// Hazards gives the parts of a cluster the measured rates. yearly overrides a rate by name: gpu, host, nic, cable,
// switch; job-visible stops beyond hardware are "software".
func Hazards(p Parts, yearly map[string]float64) []Hazard {
	rate := func(name string, otherwise float64) float64 {
		if v, ok := yearly[name]; ok {
			return v
		}
		return otherwise
	}
	// 5% of the hosts make 35% of the faults: lemons. All faults of hosts come in bursts.
	gpu := rate("gpu", gpuYearly)
	lemons := (p.GPUs + 19) / 20
	list := []Hazard{
		{Name: "gpu", Count: p.GPUs - lemons, Yearly: gpu * .65 * float64(p.GPUs) / float64(max(p.GPUs-lemons, 1)), Shape: bursts, Hosts: 1,
			Repair: repairMedian, Sigma: repairSigma, Silent: silentShare},
		{Name: "gpu of a lemon host", Count: lemons, Yearly: gpu * .35 * float64(p.GPUs) / float64(max(lemons, 1)), Shape: bursts, Hosts: 1,
			Repair: repairMedian, Sigma: repairSigma, Silent: silentShare},
		{Name: "host", Count: p.Hosts, Yearly: rate("host", hostYearly), Shape: bursts, Hosts: 1, Repair: repairMedian, Sigma: repairSigma,
			Silent: .02},
		{Name: "nic", Count: p.NICs, Yearly: rate("nic", nicYearly), Shape: bursts, Hosts: 1, Repair: repairMedian, Sigma: repairSigma,
			Silent: silentShare},
		{Name: "cable", Count: p.Ports, Yearly: rate("cable", max(portYearly-switchYearly*float64(p.Leaves)/float64(max(p.Ports, 1)), 0)),
			Shape: bursts, Hosts: 1, Repair: 6, Sigma: 1, Silent: silentShare},
		{Name: "switch", Count: p.Leaves, Yearly: rate("switch", switchYearly), Hosts: max(p.HostsPerLeaf, 1), Repair: 6, Sigma: 1, Silent: .02},
		{Name: "software", Count: p.GPUs, Yearly: rate("software", softYearly), Hosts: 0, Repair: 0, Sigma: 0, Silent: silentShare},
	}
	for _, d := range p.Groups {
		if v := yearly[d.Name]; v > 0 {
			list = append(list, Hazard{Name: d.Name, Count: d.Count, Yearly: v, Hosts: min(d.Hosts, p.Hosts), Repair: 6, Sigma: 1, Silent: .02})
		}
	}
	return list
}

// Repair is how long one kind of part is away: log-normal.
type Repair struct {
	Median float64 // hours
	Sigma  float64 // standard deviation of the logarithm; below 0: the part keeps its own
}

// SetRepair gives a kind of part its repair times. GPUs of lemon hosts are repaired as all GPUs are.
func SetRepair(list []Hazard, part string, r Repair) error {
	var known []string
	found := false
	for i, h := range list {
		name, _, _ := strings.Cut(h.Name, " ")
		if h.Hosts == 0 { // the same hosts go on: nothing is away
			continue
		}
		if name == part {
			list[i].Repair, found = r.Median, true
			if r.Sigma >= 0 {
				list[i].Sigma = r.Sigma
			}
		}
		if !slices.Contains(known, name) {
			known = append(known, name)
		}
	}
	if !found {
		return fmt.Errorf("no part %s takes hosts away; known: %s", part, strings.Join(known, ", "))
	}
	return nil
}

// Requeue is the seconds until a job of that number of GPUs runs again with other hosts, as measured from 2,048 to 16,384
// GPUs: 454 s, and 105 s more for each doubling.
func Requeue(gpus int) float64 {
	t := 454.0
	for n := 2048; n < gpus; n *= 2 {
		t += 105
	}
	for n := 2048; n > gpus && t > 60; n /= 2 {
		t -= 60
	}
	return max(t, 60)
}

// CheckpointBytes is what a checkpoint holds: weights, master copy and two moments, 14 bytes a parameter.
func CheckpointBytes(params float64) float64 { return 14 * params }
