// Package agent collects a host's health data: one process that samples port and PCIe
// counters and the kernel log, finds the processes of jobs, judges the samples with
// package health, and serves them as metrics and JSON.
//
// It reads /sys and /proc and loads NVIDIA's management library if installed. A device
// whose files are denied is skipped and reported, so that one restricted port does not
// hide the others.
package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
	"github.com/weft-fabric/weft/observe/internal/health"
)

// Config of an agent.
type Config struct {
	Root     string        // where /sys and /proc are; "" is this host's
	Host     string        // name under which it reports
	Interval time.Duration // between samples; at least a second, as NICs cache counters
	Site     *doctor.Site  // nil without a cluster file
	Log      *slog.Logger  // changes of state

	Pulse time.Duration           // between looks at the ranks of jobs; a second if 0
	Ranks func() []doctor.Process // the ranks of this host; nil finds them by their environment
	Send  Send                    // where reports go; nil for nowhere
}

// Default is what 'weft agent' starts with. Every 10 s costs a thousandth of a core
// with nine ports (docs/reference/tables/agent.md).
func Default() Config {
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	return Config{Host: host, Interval: 10 * time.Second, Log: slog.Default()}
}

// Agent samples one host.
type Agent struct {
	c       Config
	machine *health.Machine
	started time.Time

	mu      sync.Mutex // of what follows
	last    Snapshot
	events  []health.Event
	refused map[string]string // files that were refused, and why
	skipped map[string]bool   // devices of them: true for good, false until the next sample
	errors  int
	xids    map[string]int // by code
	kmsg    *kernelLog
	ethtool *ethtool
	nvlinks map[int]int64 // that were up at the start, by GPU

	beat  sync.Mutex // of pulse
	pulse *pulse
}

// eventsKept is how many changes of state an agent remembers.
const eventsKept = 1000

// Port is a port and its counters.
type Port struct {
	Device   string            `json:"device"`
	Port     string            `json:"port"`
	Layer    string            `json:"layer"`
	StateID  int               `json:"state_id"`
	PhysID   int               `json:"phys_state_id"`
	Rate     float64           `json:"gbps"`
	Where    string            `json:"where,omitempty"`
	Place    doctor.Place      `json:"place"`
	GUID     string            `json:"guid,omitempty"`
	Counters map[string]uint64 `json:"counters"`
}

// Snapshot is what an agent saw last.
type Snapshot struct {
	Host      string             `json:"host"`
	Boot      string             `json:"boot"`
	At        float64            `json:"at"` // seconds since 1970
	Took      float64            `json:"took_seconds"`
	Ports     []Port             `json:"ports"`
	Nets      map[string]float64 `json:"carrier_changes"`
	Ether     []Ether            `json:"ethtool"`
	Firmware  map[string]string  `json:"firmware,omitempty"`
	Memory    float64            `json:"memory_available_ratio"`
	PCI       []PCI              `json:"pci"`
	GPUs      []GPU              `json:"gpus"`
	Jobs      []Job              `json:"jobs"`
	TCP       map[string]float64 `json:"tcp"`
	ShmFree   float64            `json:"dev_shm_free_bytes"`
	States    []health.Status    `json:"states"`
	Events    []health.Event     `json:"events"`
	Refused   []string           `json:"refused"`
	Completed int                `json:"files_read"`
}

// Ether is an interface and the counters of its driver: errors, drops, pauses, marks.
type Ether struct {
	Device   string            `json:"device"`
	Counters map[string]uint64 `json:"counters"`
}

// PCI is a GPU or a NIC on PCIe.
type PCI struct {
	Addr     string             `json:"addr"`
	Width    float64            `json:"width"`
	WidthMax float64            `json:"width_max"`
	GTs      float64            `json:"gts"`
	AER      map[string]float64 `json:"aer"`
}

// Job is a rank of a job on this host.
type Job struct {
	Job  string `json:"job"`
	Rank int    `json:"rank"`
	PID  int    `json:"pid"`
	GPU  string `json:"gpu"`

	NIC doctor.Place `json:"place"`
}

// New makes an agent; Run makes it work.
func New(c Config) *Agent {
	if c.Interval < time.Second {
		c.Interval = time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Pulse <= 0 {
		c.Pulse = time.Second
	}
	return &Agent{c: c, pulse: newPulse(c.Root), ethtool: newEthtool(), nvlinks: map[int]int64{}, machine: health.New(), started: time.Now(),
		refused: map[string]string{}, skipped: map[string]bool{}, xids: map[string]int{}, kmsg: openKernelLog(c.Root)}
}

// Run samples until the context ends.
func (a *Agent) Run(ctx context.Context) {
	defer a.kmsg.close()
	defer a.closePulse()
	defer a.ethtool.close()
	if a.c.Send != nil {
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			a.tell(ctx)
		}()
		defer wg.Wait()
	}
	t := time.NewTicker(a.c.Interval)
	defer t.Stop()
	for {
		a.Sample(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (a *Agent) closePulse() {
	a.beat.Lock()
	defer a.beat.Unlock()
	a.pulse.close()
}

func (a *Agent) path(p string) string {
	if a.c.Root == "" {
		return "/" + p
	}
	return filepath.Join(a.c.Root, p)
}

// never are the errors of a file that will not be read later either: drivers answer so for ports of which they show nothing, such as
// those inside a box. All others pass: a NIC that is being reset answers again.
var never = []error{syscall.EINVAL, syscall.EPERM, syscall.EACCES, syscall.ENOTSUP, syscall.EISDIR}

// text reads a small file. A refusal is remembered, and the file's device is left alone: from then on, or where the error may pass,
// until the next sample.
func (a *Agent) text(device, path string) (string, bool) {
	if _, skipped := a.skipped[device]; skipped {
		return "", false
	}
	b, err := os.ReadFile(path)
	if err == nil {
		delete(a.refused, path)
		return string(bytes.TrimSpace(b)), true
	}
	if os.IsNotExist(err) {
		return "", false
	}
	a.errors++
	forGood := slices.ContainsFunc(never, func(e error) bool { return errors.Is(err, e) })
	if a.refused[path] == "" {
		a.refused[path] = err.Error()
		a.c.Log.Warn("refused", "file", path, "error", err, "again", !forGood)
	}
	a.skipped[device] = forGood
	return "", false
}

func number(s string) float64 {
	s, _, _ = strings.Cut(s, " ")
	v, _ := strconv.ParseFloat(strings.TrimSuffix(s, ":"), 64)
	return v
}

// Sample reads everything once.
func (a *Agent) Sample(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := float64(now.UnixNano()) / 1e9
	maps.DeleteFunc(a.skipped, func(_ string, forGood bool) bool { return !forGood })
	s := Snapshot{Host: a.c.Host, At: at, Nets: map[string]float64{}, TCP: map[string]float64{}, Ports: []Port{}, PCI: []PCI{}, Jobs: []Job{},
		GPUs: []GPU{}}
	s.Boot, _ = a.text("boot", a.path("proc/sys/kernel/random/boot_id"))
	a.machine.Boot(s.Boot)
	observe := func(device, port, metric string, v float64) {
		if e, changed := a.machine.Observe(at, health.Key{Device: device, Port: port, Metric: metric}, v); changed {
			a.note(e)
		}
	}
	a.ports(&s, observe)
	a.nets(&s, observe)
	a.pci(&s, observe)
	a.gpus(&s, observe)
	a.kernel(observe)
	a.tcp(&s, observe)
	a.jobs(&s)
	if a.c.Root == "" {
		if free, ok := shmFree(); ok {
			s.ShmFree = free
			observe("/dev/shm", "", "dev_shm_free", free)
		}
		if part, ok := memoryAvailable(); ok {
			s.Memory = part
			observe("memory", "", "memory_available", part)
		}
	}
	for _, e := range a.machine.Lost(at, max(3*a.c.Interval.Seconds(), 30)) {
		a.note(e)
	}
	s.States = a.machine.States()
	s.Events = slices.Clone(a.events)
	for f, why := range a.refused {
		s.Refused = append(s.Refused, f+": "+why)
	}
	slices.Sort(s.Refused)
	s.Took = time.Since(now).Seconds()
	a.last = s
}

func (a *Agent) note(e health.Event) {
	if e.From == health.Unknown && e.To == health.Good {
		return
	}
	a.events = append(a.events, e)
	if n := len(a.events); n > eventsKept {
		a.events = a.events[n-eventsKept:]
	}
	a.c.Log.Info("state", "what", e.String())
}

// Last is the last sample.
func (a *Agent) Last() Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// ports reads RDMA ports from /sys. observe gets the values that health is judged by. A file that is not there is left
// out; drivers differ in what they have.
func (a *Agent) ports(s *Snapshot, observe func(device, port, metric string, v float64)) {
	devices, _ := os.ReadDir(a.path("sys/class/infiniband"))
	for _, d := range devices {
		ports, _ := os.ReadDir(a.path("sys/class/infiniband/" + d.Name() + "/ports"))
		for _, pd := range ports {
			base := a.path("sys/class/infiniband/" + d.Name() + "/ports/" + pd.Name())
			device := d.Name() + "/" + pd.Name()
			p := Port{Device: d.Name(), Port: pd.Name(), Counters: map[string]uint64{}}
			get := func(f string) string {
				t, ok := a.text(device, filepath.Join(base, f))
				if ok {
					s.Completed++
				}
				return t
			}
			p.Layer = get("link_layer")
			p.StateID = int(number(get("state")))
			p.PhysID = int(number(get("phys_state")))
			p.Rate = number(get("rate"))
			p.Place.Rail = -1
			if a.c.Site != nil {
				p.Where = a.c.Site.Where(a.c.Host, d.Name())
				if at, ok := a.c.Site.Place(a.c.Host, d.Name()); ok {
					p.Place = at
				}
			}
			p.GUID, _ = a.text(device, a.path("sys/class/infiniband/"+d.Name()+"/node_guid"))
			active := 0.0
			if p.StateID == 4 {
				active = 1
			}
			if p.StateID != 0 {
				observe(d.Name(), pd.Name(), "port_active", active)
			}
			for _, dir := range []string{"counters", "hw_counters"} {
				s.Completed += a.portCounters(&p, filepath.Join(base, dir), observe)
			}
			s.Ports = append(s.Ports, p)
		}
	}
}

// portCounters reads the files of a folder, each a counter, and returns how many could be read.
func (a *Agent) portCounters(p *Port, dir string, observe func(device, port, metric string, v float64)) (completed int) {
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		t, ok := a.text(p.Device+"/"+p.Port, filepath.Join(dir, f.Name()))
		if !ok {
			continue
		}
		completed++
		v, err := strconv.ParseUint(t, 10, 64)
		if err != nil {
			continue
		}
		p.Counters[f.Name()] = v
		observe(p.Device, p.Port, f.Name(), float64(v))
	}
	return completed
}

// nets reads physical interfaces.
func (a *Agent) nets(s *Snapshot, observe func(device, port, metric string, v float64)) {
	list, _ := os.ReadDir(a.path("sys/class/net"))
	for _, i := range list {
		// Filter before open: virtual interfaces come and go with containers.
		if _, err := os.Stat(a.path("sys/class/net/" + i.Name() + "/device")); err != nil {
			continue
		}
		if t, ok := a.text("net/"+i.Name(), a.path("sys/class/net/"+i.Name()+"/carrier_changes")); ok {
			s.Nets[i.Name()] = number(t)
			s.Completed++
			observe(i.Name(), "", "carrier_changes", number(t))
		}
		if a.c.Root == "" {
			a.driver(s, i.Name(), observe)
		}
	}
}

// kept are the counters of drivers that say something of the network's health; those of
// single queues are left out.
var kept = regexp.MustCompile(`pause|discard|drop|err|crc|ecn|cnp|out_of_buffer|_phy$|^(rx|tx)_(bytes|packets)$`)
var queue = regexp.MustCompile(`^(?:(?:rx|tx|ch)_?\d+_|(?:rx|tx)_queue_|.*_queue_?\d)`)
var prio = regexp.MustCompile(`^(?:rx|tx)_prio(\d)_(pause_duration|discards)$`)

// driver reads a NIC's own counters by ethtool: those that tell of the network's health, and none of single queues.
func (a *Agent) driver(s *Snapshot, name string, observe func(device, port, metric string, v float64)) {
	list, firmware := a.ethtool.counters(name)
	if firmware != "" && firmware != "N/A" {
		if s.Firmware == nil {
			s.Firmware = map[string]string{}
		}
		s.Firmware[name] = firmware
	}
	e := Ether{Device: name, Counters: map[string]uint64{}}
	for k, v := range list {
		if !kept.MatchString(k) || queue.MatchString(k) {
			continue
		}
		e.Counters[k] = v
		if m := prio.FindStringSubmatch(k); m != nil {
			observe(name, "prio "+m[1], map[bool]string{true: "prio_pause_us", false: "prio_discards"}[m[2] == "pause_duration"], float64(v))
		}
	}
	if len(e.Counters) > 0 {
		s.Completed++
		s.Ether = append(s.Ether, e)
	}
}

// pciClasses begin the classes of GPUs (3D controllers) and of NICs (Ethernet and InfiniBand).
var pciClasses = []string{"0x0302", "0x0200", "0x0207"}

// aerTotal is the sum at the end of a file of PCIe errors.
func aerTotal(text string) (total float64, ok bool) {
	for l := range strings.Lines(text) {
		if f := strings.Fields(l); len(f) == 2 && strings.HasPrefix(f[0], "TOTAL_") {
			total, ok = number(f[1]), true
		}
	}
	return total, ok
}

// pci reads the link width and the errors of GPUs, NICs and what else is in pciClasses.
func (a *Agent) pci(s *Snapshot, observe func(device, port, metric string, v float64)) {
	list, _ := os.ReadDir(a.path("sys/bus/pci/devices"))
	for _, d := range list {
		base := a.path("sys/bus/pci/devices/" + d.Name())
		class, _ := a.text("pci/"+d.Name(), base+"/class")
		if !slices.ContainsFunc(pciClasses, func(prefix string) bool { return strings.HasPrefix(class, prefix) }) {
			continue
		}
		p := PCI{Addr: d.Name(), AER: map[string]float64{}}
		get := func(f string) string {
			t, ok := a.text("pci/"+d.Name(), filepath.Join(base, f))
			if ok {
				s.Completed++
			}
			return t
		}
		p.Width, p.WidthMax, p.GTs = number(get("current_link_width")), number(get("max_link_width")), number(get("current_link_speed"))
		if p.Width > 0 && p.WidthMax > 0 && p.WidthMax < 64 {
			observe(d.Name(), "", "width_ratio", p.Width/p.WidthMax)
		}
		for _, kind := range []string{"correctable", "nonfatal", "fatal"} {
			if v, ok := aerTotal(get("aer_dev_" + kind)); ok {
				p.AER[kind] = v
				observe(d.Name(), "", "aer_"+kind, v)
			}
		}
		s.PCI = append(s.PCI, p)
	}
}

// kernel counts Xids and what else the kernel said since the last sample.
func (a *Agent) kernel(observe func(device, port, metric string, v float64)) {
	text := a.kmsg.read()
	c := &doctor.Case{}
	if len(text) > 0 {
		read.File(c, "/dev/kmsg", a.c.Host, bytes.NewReader(text))
	}
	for _, k := range c.Kernel {
		if k.Kind == "xid" || k.Kind == "sxid" {
			a.xids[fmt.Sprintf("%s %d", k.Kind, k.Code)]++
		}
	}
	if len(c.Kernel) > 0 {
		for _, f := range doctor.Diagnose(c, doctor.Options{}).Findings {
			if f.ID == "gpu-failed" || f.ID == "nvswitch-failed" {
				a.xids["fatal"]++
			}
		}
	}
	observe("kernel", "", "xid_fatal", float64(a.xids["fatal"]))
}

// tcpCounters reads pairs of lines that begin with prefix: one with the names, then one with the values.
func tcpCounters(text, prefix string, into map[string]float64) {
	var names []string
	for l := range strings.Lines(text) {
		f := strings.Fields(l)
		if len(f) == 0 || f[0] != prefix {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i := 1; i < min(len(f), len(names)); i++ {
			switch names[i] {
			case "RetransSegs", "OutSegs", "ListenOverflows", "ListenDrops":
				into[names[i]] = number(f[i])
			}
		}
		names = nil
	}
}

func (a *Agent) tcp(s *Snapshot, observe func(device, port, metric string, v float64)) {
	for file, prefix := range map[string]string{"proc/net/snmp": "Tcp:", "proc/net/netstat": "TcpExt:"} {
		t, ok := a.text(file, a.path(file))
		if !ok {
			continue
		}
		s.Completed++
		tcpCounters(t, prefix, s.TCP)
	}
	if v, ok := s.TCP["ListenDrops"]; ok {
		observe("tcp", "", "listen_drops", v)
	}
}

func (a *Agent) jobs(s *Snapshot) {
	a.beat.Lock()
	defer a.beat.Unlock()
	for _, p := range a.pulse.list(a.c.Host, a.c.Ranks) {
		s.Jobs = append(s.Jobs, Job{Job: p.Job, Rank: p.Rank, PID: p.PID, GPU: gpuOf(&p.Process), NIC: a.nicOf(&p.Process)})
	}
	slices.SortFunc(s.Jobs, func(x, y Job) int { return cmp.Or(cmp.Compare(x.Job, y.Job), cmp.Compare(x.Rank, y.Rank)) })
}

// nicOf is the place of the NIC beside the GPU of a rank, where the cluster file knows it.
func (a *Agent) nicOf(p *doctor.Process) doctor.Place {
	if a.c.Site != nil {
		if at, ok := a.c.Site.Place(a.c.Host, "gpu"+gpuOf(p)); ok {
			return at
		}
	}
	return doctor.Place{Rail: -1}
}
