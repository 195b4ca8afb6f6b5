package failures

// Rates of parts, failures a year, as measured on 16,384 H100 during 54 days (Llama 3, table 5): the GPU with its
// memory, a server's other parts, a NIC, and a port's switch or cable. Repair times are those of a trace of 400
// servers: log-normal, median 23 hours, a spread of 2.5 in the logarithm; software needs none.
const (
	gpuYearly    = 0.111
	hostYearly   = 0.046
	nicYearly    = 0.0029
	portYearly   = 0.014
	softYearly   = 0.0326 // software, data, human: a GPU's share of what remains of Llama 3's 419
	repairMedian = 23.0
	repairSigma  = 1.6 // of one kind of part; kinds together spread by 2.5
	silentShare  = 0.10
)

// Parts are the counts of a cluster's parts that may fail a job.
type Parts struct {
	Hosts, GPUs, NICs, Ports, Leaves int
	HostsPerLeaf                     int // hosts that one leaf switch takes
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
	// 5% of the hosts make 35% of the faults, in bursts: lemons.
	gpu := rate("gpu", gpuYearly)
	lemons := (p.GPUs + 19) / 20
	return []Hazard{
		{Name: "gpu", Count: p.GPUs - lemons, Yearly: gpu * .65 * float64(p.GPUs) / float64(max(p.GPUs-lemons, 1)), Hosts: 1, Repair: repairMedian, Sigma: repairSigma, Silent: silentShare},
		{Name: "gpu of a lemon host", Count: lemons, Yearly: gpu * .35 * float64(p.GPUs) / float64(max(lemons, 1)), Shape: .53, Hosts: 1, Repair: repairMedian, Sigma: repairSigma, Silent: silentShare},
		{Name: "host", Count: p.Hosts, Yearly: rate("host", hostYearly), Hosts: 1, Repair: repairMedian, Sigma: repairSigma, Silent: .02},
		{Name: "nic", Count: p.NICs, Yearly: rate("nic", nicYearly), Hosts: 1, Repair: repairMedian, Sigma: repairSigma, Silent: silentShare},
		{Name: "cable", Count: p.Ports, Yearly: rate("cable", portYearly*.9), Hosts: 1, Repair: 6, Sigma: 1, Silent: silentShare},
		{Name: "switch", Count: p.Leaves, Yearly: rate("switch", .02), Hosts: max(p.HostsPerLeaf, 1), Repair: 6, Sigma: 1, Silent: .02},
		{Name: "software", Count: p.GPUs, Yearly: rate("software", softYearly), Hosts: 0, Repair: 0, Sigma: 0, Silent: silentShare},
	}
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
