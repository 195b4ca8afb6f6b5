package watch

import (
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/internal/health"
)

// Report is what an agent says of its host. A report has counters, ranks, or both: ranks
// are told every second or two, counters every ten.
type Report struct {
	Host  string  `json:"host"`
	Boot  string  `json:"boot,omitempty"`
	At    float64 `json:"at"`    // by the clock of the host, seconds since 1970
	Every float64 `json:"every"` // seconds until the next report

	Load     *Load     `json:"load,omitempty"`
	Counters *Counters `json:"counters,omitempty"`
	Ranks    []Rank    `json:"ranks,omitempty"`
	HasRanks bool      `json:"has_ranks,omitempty"` // Ranks is all there are, even if it is empty
	Dumps    []Dump    `json:"dumps,omitempty"`     // flight records of jobs that were found since the last report
	From     string    `json:"from,omitempty"`      // a scheduler that tells of jobs alone; Host is its name then
	Launches []Launch  `json:"launches,omitempty"`  // what launchers said since the last report that arrived
}

// Load is how busy a host is. Shares are of the last ten seconds, by the kernel's pressure stall information.
type Load struct {
	Lag    float64 `json:"lag,omitempty"`    // seconds that the agent itself came late, since it was not let run
	CPU    float64 `json:"cpu,omitempty"`    // share of the time in which a task waited for a processor
	Memory float64 `json:"memory,omitempty"` // for memory
	IO     float64 `json:"io,omitempty"`     // for a disk
}

// Starved says that tasks of the host wait so much that silence means little.
func (l *Load) Starved() bool { return l != nil && (l.Lag >= 0.5 || l.CPU >= 0.5 || l.Memory >= 0.5) }

// Launch is what a launcher says of a rank: that its process started, or how it ended;
// or how the whole job is over. Where a launcher says nothing, the agent tells what it
// learnt from the kernel.
type Launch struct {
	Event  string  `json:"event"` // started, ended, said or over
	At     float64 `json:"at"`    // by the clock of the launcher's host
	Job    string  `json:"job"`
	Rank   int     `json:"rank"`
	Size   int     `json:"size,omitempty"`
	Host   string  `json:"host,omitempty"`
	PID    int     `json:"pid,omitempty"` // 0 if the launcher does not know it
	Code   int     `json:"code,omitempty"`
	Signal int     `json:"signal,omitempty"`
	Asked  bool    `json:"asked,omitempty"` // the launcher had asked it to end
	How    string  `json:"how,omitempty"`   // finished, failed or cancelled
	Seen   bool    `json:"seen,omitempty"`  // the agent saw the end itself; whether somebody had asked for it is not known
	Why    string  `json:"why,omitempty"`   // the doctor's finding that explains the end
	Said   string  `json:"said,omitempty"`  // the line of the kernel or of the rank that says so
}

// Dump is a flight record of a rank of a job.
type Dump struct {
	Job string `json:"job"`
	doctor.Dump
}

// Answer is what a server says to a report.
type Answer struct {
	Pulse float64 `json:"pulse_s"` // how often it wants to hear of ranks, in seconds
	Names bool    `json:"names"`   // it does not know the names of the series, and took nothing
	Error string  `json:"error,omitempty"`
}

// Counters are the series of a host and the states of its checks.
type Counters struct {
	Schema string            `json:"schema"`          // names the list of names
	Names  []string          `json:"names,omitempty"` // left out if the server knows the schema
	Values []float64         `json:"values"`
	Ports  []Port            `json:"ports,omitempty"`
	States []health.Status   `json:"states,omitempty"` // those that are warn or bad
	Checks int               `json:"checks"`           // how many there are
	Facts  map[string]string `json:"facts,omitempty"`  // what should not change unnoticed: versions, rates, counts
}

// Port is a port of a NIC. Tx and Rx are bytes, Wait is the counter port_xmit_wait.
type Port struct {
	Device string  `json:"device"`
	Port   string  `json:"port"`
	Active bool    `json:"active"`
	Gbps   float64 `json:"gbps"`
	Tx     float64 `json:"tx"`
	Rx     float64 `json:"rx"`
	Wait   float64 `json:"wait"`
}

// Rank is a process of a job.
type Rank struct {
	Job    string  `json:"job"`
	Rank   int     `json:"rank"`
	Size   int     `json:"size"`
	PID    int     `json:"pid"`
	GPU    string  `json:"gpu,omitempty"`
	NIC    string  `json:"nic,omitempty"`
	State  string  `json:"state"`           // the letter of /proc/PID/stat; T is stopped
	CPU    float64 `json:"cpu"`             // seconds used
	Turns  *Turns  `json:"turns,omitempty"` // nil where the host is not starved, or its kernel does not count
	Memory int64   `json:"memory"`          // bytes resident
	Limit  int64   `json:"limit,omitempty"` // of its control group's memory, 0 for none
	Used   int64   `json:"used,omitempty"`  // of that
	Groups []Group `json:"groups,omitempty"`
	Links  []Link  `json:"links,omitempty"`
	Near   float64 `json:"near_bytes_per_s,omitempty"` // that its links inside a host reached when it began, 0 unknown
	Far    float64 `json:"far_bytes_per_s,omitempty"`  // and those to other hosts
}

// Turns are what the threads of a rank had of the processors, all together, while the agent looked at them, in seconds.
type Turns struct {
	Seen   float64 `json:"seen"`            // for which it looked
	Ran    float64 `json:"ran"`             // on a processor
	Waited float64 `json:"waited"`          // for a processor, ready to run
	Times  int64   `json:"times,omitempty"` // that they were given one
}

// Group is a communicator as one of its ranks sees it. Operations of a group have
// numbers in the order in which they are issued.
type Group struct {
	Name  string  `json:"name"`
	Ranks []int   `json:"ranks,omitempty"` // of the job, in the order of the group; none means all
	Done  int64   `json:"done"`            // the last operation that ended
	In    bool    `json:"in"`              // the next one is under way
	Op    string  `json:"op,omitempty"`    // its name, where it is known
	Since float64 `json:"since"`           // seconds since the last change of Done or In
	Ops   []Op    `json:"ops,omitempty"`   // that ended since the last report, or some of them
}

// Op is an operation that ended. All ranks leave together, so a rank that comes last has
// the shortest time.
type Op struct {
	Seq   int64   `json:"seq"`
	Name  string  `json:"name"`
	Bytes int64   `json:"bytes"`
	Took  float64 `json:"took"` // seconds from entering to leaving

	Predicted float64 `json:"predicted,omitempty"` // how long it should take, by the library that ran it; 0 unknown
}

// Link is a TCP connection of a rank.
type Link struct {
	Local  string  `json:"local"` // address and port
	Remote string  `json:"remote"`
	Acked  float64 `json:"acked"` // bytes sent and acknowledged
	Busy   float64 `json:"busy"`  // seconds during which there was something to send
	Lost   float64 `json:"lost"`  // segments sent again
	Queued float64 `json:"queued"`
}

// Incident is something that is or was wrong.
type Incident struct {
	ID         int             `json:"id"`
	Kind       string          `json:"kind"`
	Severity   doctor.Severity `json:"severity"`
	Confidence float64         `json:"confidence"`
	Job        string          `json:"job,omitempty"`
	Subject    doctor.Subject  `json:"subject"`
	Verdict    string          `json:"verdict"` // one sentence with names
	Cause      string          `json:"cause"`
	Fix        string          `json:"fix"`
	Where      []string        `json:"where,omitempty"` // rail, leaf and port
	Began      float64         `json:"began"`
	Seen       float64         `json:"seen"`            // when it was last so
	Ended      float64         `json:"ended,omitempty"` // 0: it goes on
	Evidence   []Evidence      `json:"evidence"`
	Follows    []string        `json:"consequences,omitempty"`
	Because    []int           `json:"because,omitempty"` // open incidents that explain this one, by id
	key        string
}

// Evidence is a measurement at an instant.
type Evidence struct {
	At   float64 `json:"at"`
	Text string  `json:"text"`
}

// Change is a fact that became another one.
type Change struct {
	At   float64 `json:"at"`
	Host string  `json:"host"`
	What string  `json:"what"`
	From string  `json:"from"`
	To   string  `json:"to"`
}

// explains are kinds of incidents and what they can be the cause of, in one job. No kind is both.
var explains = map[string][]string{
	"slow-link":     {"slow-collective"},
	"slow-sender":   {"slow-collective"},
	"slow-receiver": {"slow-collective"},
	"link-cut":      {"slow-collective", "hang"},
	"straggler":     {"slow-collective"},
	"rank-stopped":  {"slow-collective", "hang"},
	"rank-dead":     {"slow-collective", "hang"},
	"node-lost":     {"slow-collective", "hang"},
}

// Kinds are the kinds of incidents, with what each means and what to do.
var Kinds = map[string]struct {
	Cause, Fix string
	Quiet      float64 // seconds after which it is over
}{
	"rank-dead": {"its process ended while others of the job go on",
		"look at its last output and the kernel log of the host (memory, Xid)", 60},
	"rank-absent": {"they were never started, or ended before anybody saw them; or their hosts have no agent",
		"look at the launcher's output: did all nodes start? WORLD_SIZE may be too large; start agents on all hosts", 10},
	"node-lost": {"the host does not report, and its job stopped with it: power, kernel, network or the machine itself",
		"ping the host and look at its console and BMC; drain it; weft doctor on the kernel log after it is back", 30},
	"rank-restarted": {"its process ended and another one took its place", "look at the last output of the one that ended", 60},
	"job-restarted": {"the processes of the job ended and others took their places: its launcher or the scheduler started it again",
		"look at what ended first: the last output, weft doctor on logs of the earlier attempt", 60},
	"rank-stopped": {"its process is stopped by a signal or a debugger", "kill -CONT PID, and find who stopped it", 5},
	"memory-full": {"the memory that the process may use is nearly used up; the kernel kills next",
		"raise the limit, or use less: batch, workers of the loader, pinned memory", 10},
	"straggler": {"the rank comes late to collectives and all others wait for it: processor, GPU clock or data on that rank",
		"compare clocks, power and processor use of its host with others; then drain it", 20},
	"slow-link":     {"one path is slower than others of its kind", "look at both ends: cable, port counters, route", 15},
	"slow-sender":   {"everything that the rank sends is slow: its NIC, PCIe or host", "look at its NIC, PCIe width and processor", 15},
	"slow-receiver": {"everything that the rank receives is slow: its NIC, PCIe or host", "look at its NIC, PCIe width and processor", 15},
	"link-cut":      {"data are queued and nothing is acknowledged", "look for a port that is down between the two", 10},
	"hang":          {"", "get a stack of the culprits (py-spy, gdb), then end the job", 5},
	"mismatch":      {"ranks of a group called different operations", "compare what the named ranks do at that place of the program", 60},
	"slow-collective": {"collectives of this size take longer than predicted for this cluster",
		"weft doctor on the hosts of the job; look for slow links and stragglers", 60},
	"port-slow": {"the port is slower than ports of the same role", "reseat or replace the cable", 30},
	"port-idle": {"the port carries less than half of what ports of the same rail carry for the same job",
		"NCCL_IB_HCA, topology file, rail cabling", 60},
	"port-congested": {"the port waits for credits far more than ports of its rail", "find the slow receiver behind it", 60},
	"host-starved": {"tasks of the host wait for processors or memory most of the time: ranks there are slow, not dead",
		"find what else runs there (top, systemd-cgtop); fewer workers of the data loader; give the job processors of its own", 30},
	"check": {"", "", 10},
	"leaf": {"several ports of one switch are bad: the switch, not the cables",
		"look at the switch: power, firmware, line card", 10},
	"agent-silent": {"no report came: the host, its agent or the network is down; its health is unknown",
		"ping the host; systemctl status weft-agent", 0},
	"clock-wrong": {"the clock of the host differs from the server's", "start a time service (chrony, ntpd, ptp4l) there", 60},
	"store":       {"history cannot be written", "make space, or give another --dir; what was stored is intact", 10},
}
