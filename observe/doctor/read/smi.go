package read

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// xnode is an element of nvidia-smi -q -x. The tool's elements change with the
// driver, so they are looked up by name and none is required.
type xnode struct {
	name string
	id   string
	text string
	line int
	kids []*xnode
}

func (n *xnode) find(path string) *xnode {
	for part := range strings.SplitSeq(path, "/") {
		if n == nil {
			return nil
		}
		var next *xnode
		for _, k := range n.kids {
			if k.name == part {
				next = k
				break
			}
		}
		n = next
	}
	return n
}

// get is the text of the first of several paths that is there, "" if none.
func (n *xnode) get(paths ...string) string {
	for _, p := range paths {
		if x := n.find(p); x != nil {
			if t := strings.TrimSpace(x.text); t != "" && t != "N/A" && t != "[N/A]" {
				return t
			}
		}
	}
	return ""
}

var firstNumber = regexp.MustCompile(`-?\d+(?:\.\d+)?`)

func (n *xnode) num(paths ...string) float64 {
	if m := firstNumber.FindString(n.get(paths...)); m != "" {
		v, _ := strconv.ParseFloat(m, 64)
		return v
	}
	return -1
}

// readSMI reads nvidia-smi -q -x. XML that was cut gives the GPUs up to there.
func readSMI(s *scan, b []byte) error {
	root, cut, err := xmlTree(b)
	if err != nil {
		return err
	}
	log := root.find("nvidia_smi_log")
	if log == nil {
		return errNotThis
	}
	before := len(s.c.GPUs)
	err = s.smiGPUs(log)
	if cut != nil {
		s.note(doctor.Cut, "the XML ends in the middle (%v): %d GPUs were read, values of the last may be missing", cut, len(s.c.GPUs)-before)
	}
	return err
}

// smiGPUs takes all GPUs of a log.
func (s *scan) smiGPUs(log *xnode) error {
	i := 0
	for _, g := range log.kids {
		if g.name == "gpu" {
			s.c.GPUs = append(s.c.GPUs, s.smiGPU(g, i))
			i++
		}
	}
	return nil
}

func element(t xml.StartElement) *xnode {
	n := &xnode{name: t.Name.Local}
	for _, a := range t.Attr {
		if a.Name.Local == "id" {
			n.id = a.Value
		}
	}
	return n
}

// xmlTree reads elements, their text and their ids. cut is what stopped it before the end.
func xmlTree(b []byte) (root *xnode, cut, err error) {
	dec := xml.NewDecoder(strings.NewReader(string(b)))
	dec.Strict = false
	root = &xnode{}
	stack := []*xnode{root}
	for {
		t, err := dec.Token()
		if err == io.EOF {
			return root, nil, nil
		}
		if err != nil {
			return root, err, nil
		}
		top := stack[len(stack)-1]
		switch t := t.(type) {
		case xml.StartElement:
			if len(stack) > 64 {
				return nil, nil, fmt.Errorf("XML nested deeper than 64")
			}
			n := element(t)
			n.line, _ = dec.InputPos()
			top.kids = append(top.kids, n)
			stack = append(stack, n)
		case xml.EndElement:
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
		case xml.CharData:
			if len(top.text) < 1<<16 {
				top.text += string(t)
			}
		}
	}
}

// smiGPU takes what nvidia-smi -q -x says of the i-th GPU.
func (s *scan) smiGPU(g *xnode, i int) doctor.GPU {
	gpu := doctor.GPU{At: s.at(g.line, "GPU "+g.id+" "+g.get("product_name")), Host: s.host, Index: i, Name: g.get("product_name"),
		UUID: g.get("uuid"), Bus: strings.ToLower(g.id)}
	mib := func(v float64) int64 {
		if v < 0 {
			return -1
		}
		return int64(v * (1 << 20))
	}
	gpu.MemUsed, gpu.MemTotal = mib(g.num("fb_memory_usage/used")), mib(g.num("fb_memory_usage/total"))
	gpu.Util = g.num("utilization/gpu_util")
	gpu.Power = g.num("gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw",
		"gpu_power_readings/average_power_draw")
	gpu.Cap = g.num("gpu_power_readings/current_power_limit", "gpu_power_readings/power_limit", "power_readings/enforced_power_limit",
		"power_readings/power_limit", "gpu_power_readings/enforced_power_limit")
	gpu.Temp = g.num("temperature/gpu_temp")
	gpu.TempSlow = g.num("temperature/gpu_temp_slow_threshold")
	gpu.ClockSM, gpu.ClockSMMax = g.num("clocks/sm_clock"), g.num("max_clocks/sm_clock")
	gpu.Perf = g.get("performance_state")
	gpu.PCIeGen = int(g.num("pci/pci_gpu_link_info/pcie_gen/current_link_gen"))
	gpu.PCIeGenMax = int(g.num("pci/pci_gpu_link_info/pcie_gen/max_link_gen"))
	gpu.Width = lanes(g.get("pci/pci_gpu_link_info/link_widths/current_link_width"))
	gpu.WidthMax = lanes(g.get("pci/pci_gpu_link_info/link_widths/max_link_width"))
	gpu.Replays = int64(g.num("pci/replay_counter"))
	gpu.RemapFail = strings.EqualFold(g.get("remapped_rows/remapped_row_failure"), "Yes")
	gpu.RemapWait = strings.EqualFold(g.get("remapped_rows/remapped_row_pending"), "Yes")
	gpu.RemapRows = int64(g.num("remapped_rows/remapped_row_unc"))
	gpu.ECC = eccErrors(g.find("ecc_errors/volatile"))
	gpu.FabricState, gpu.FabricCode = g.get("fabric/state"), g.get("fabric/status")
	gpu.Clique, gpu.ClusterUUID = g.get("fabric/cliqueId", "fabric/clique_id"), g.get("fabric/clusterUuid", "fabric/cluster_uuid")
	gpu.MIG = strings.EqualFold(g.get("mig_mode/current_mig"), "Enabled")
	for _, where := range []string{"clocks_event_reasons", "clocks_throttle_reasons"} {
		if r := g.find(where); r != nil {
			gpu.Throttle = append(gpu.Throttle, throttles(r)...)
		}
	}
	return gpu
}

// eccErrors counts those that could not be corrected; -1 where nvidia-smi does not say.
func eccErrors(v *xnode) int64 {
	if v == nil {
		return -1
	}
	sum := int64(0)
	for _, k := range v.kids {
		if strings.Contains(k.name, "uncorrectable") {
			if n, err := strconv.ParseInt(strings.TrimSpace(k.text), 10, 64); err == nil {
				sum += n
			}
		}
	}
	if n := v.num("double_bit/total"); n > 0 {
		sum += int64(n)
	}
	return sum
}

// throttles are the active reasons for lower clocks that are worth a word.
func throttles(r *xnode) (names []string) {
	for _, k := range r.kids {
		name := strings.TrimPrefix(strings.TrimPrefix(k.name, "clocks_event_reason_"), "clocks_throttle_reason_")
		harmless := []string{"gpu_idle", "sw_power_cap", "applications_clocks_setting", "sync_boost", "display_clocks_setting"}
		if strings.TrimSpace(k.text) == "Active" && !slices.Contains(harmless, name) {
			names = append(names, name)
		}
	}
	return names
}

func lanes(t string) int {
	if m := firstNumber.FindString(t); m != "" {
		n, _ := strconv.Atoi(m)
		return n
	}
	return -1
}

var (
	nvGPU  = regexp.MustCompile(`^GPU (\d+): (.*?) \(UUID: ([^)]*)\)`)
	nvLink = regexp.MustCompile(`^\s+Link (\d+): (.*)`)
	nvRate = regexp.MustCompile(`^([\d.]+) GB/s`)
	nvErr  = regexp.MustCompile(`^(.*?)(?: Errors?)?: (\d+)`)
)

// readNVLink reads nvidia-smi nvlink -s and -e.
func readNVLink(s *scan, b []byte) error {
	var gpu *doctor.GPU
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := nvGPU.FindStringSubmatch(l); m != nil {
			s.c.GPUs = append(s.c.GPUs, emptyGPU())
			gpu = &s.c.GPUs[len(s.c.GPUs)-1]
			gpu.At, gpu.Host, gpu.Name, gpu.UUID = s.at(n, l), s.host, m[2], m[3]
			gpu.Index, _ = strconv.Atoi(m[1])
			continue
		}
		m := nvLink.FindStringSubmatch(l)
		if m == nil || gpu == nil {
			continue
		}
		i, _ := strconv.Atoi(m[1])
		k := slices.IndexFunc(gpu.Links, func(l doctor.NVLink) bool { return l.Index == i })
		if k < 0 {
			gpu.Links = append(gpu.Links, doctor.NVLink{At: s.at(n, l), Index: i, GBps: -1, Active: true, Errors: map[string]int64{}})
			k = len(gpu.Links) - 1
		}
		link := &gpu.Links[k]
		switch r := nvRate.FindStringSubmatch(m[2]); {
		case r != nil:
			link.GBps, _ = strconv.ParseFloat(r[1], 64)
		case strings.Contains(strings.ToLower(m[2]), "inactive"):
			link.GBps, link.Active, link.At = 0, false, s.at(n, l)
		default:
			if e := nvErr.FindStringSubmatch(m[2]); e != nil {
				v, _ := strconv.ParseInt(e[2], 10, 64)
				link.Errors[strings.ToLower(strings.TrimSpace(e[1]))] = v
				if v > 0 {
					link.At = s.at(n, l)
				}
			}
		}
	}
	return nil
}

func emptyGPU() doctor.GPU {
	return doctor.GPU{MemUsed: -1, MemTotal: -1, Util: -1, Power: -1, Cap: -1, Temp: -1, TempSlow: -1, ClockSM: -1, ClockSMMax: -1,
		PCIeGen: -1, PCIeGenMax: -1, Width: -1, WidthMax: -1, Replays: -1, RemapRows: -1, ECC: -1}
}

var nicLegend = regexp.MustCompile(`^\s*(NIC\d+): (\S+)`)

// matrixNames are the GPUs and NICs in the heading of a matrix; what follows them is about the processors near them.
func matrixNames(heading []string) []string {
	i := slices.IndexFunc(heading, func(x string) bool { return x == "CPU" || x == "NUMA" || x == "GPU" })
	if i < 0 {
		return heading
	}
	return heading[:i]
}

// readTopo reads the matrix of nvidia-smi topo -m.
func readTopo(s *scan, b []byte) error {
	m := doctor.Matrix{Host: s.host, Cell: map[[2]string]string{}, NICs: map[string]string{}}
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = ansi.ReplaceAllString(strings.TrimRight(l, "\r\n"), "")
		if g := nicLegend.FindStringSubmatch(l); g != nil {
			m.NICs[g[1]] = g[2]
			continue
		}
		f := strings.Fields(l)
		if len(f) == 0 {
			continue
		}
		if m.Names == nil {
			if f[0] == "GPU0" {
				m.At, m.Names = s.at(n, l), matrixNames(f)
			}
			continue
		}
		row := f[0]
		if !slices.Contains(m.Names, row) {
			continue
		}
		for i, x := range m.Names {
			if i+1 < len(f) {
				m.Cell[[2]string{row, x}] = f[i+1]
			}
		}
	}
	if m.Names == nil {
		return errNotThis
	}
	s.c.Paths = append(s.c.Paths, m)
	return nil
}
