package read

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// DCGM: the table of dcgmi diag, and the metrics of dcgm-exporter.

var (
	diagRow  = regexp.MustCompile(`^\|\s*(.*?)\s*\|\s*(.*?)\s*\|$`)
	diagGPU  = regexp.MustCompile(`^GPU(\d+): Fail`)
	diagFail = regexp.MustCompile(`^Fail(?: - (?:GPUs?: ([\d, ]+)|(All)))?`)
	dcgmLine = regexp.MustCompile(`^(DCGM_FI_\w+)\{(.*)\} ([-+0-9.eE]+)`)
)

// readDiag reads dcgmi diag. A test's name stands in its first row alone. DCGM 4 has a row for the test as a whole, then one per GPU.
func readDiag(s *scan, b []byte) error {
	test, n := "", 0
	perGPU := bytes.Contains(b, []byte("GPU0: "))
	for l := range strings.Lines(string(b)) {
		n++
		m := diagRow.FindStringSubmatch(strings.TrimRight(l, "\r\n"))
		if m == nil {
			continue
		}
		if m[1] != "" {
			test = m[1]
		}
		for _, g := range diagFailed(m[2], perGPU) {
			k := doctor.Kernel{At: s.at(n, l), Kind: "gpu_diag", Host: s.host, Code: -1, Text: test, F: map[string]string{}}
			if g = strings.TrimSpace(g); g != "" {
				k.Device = "gpu" + g
			}
			s.addKernel(k)
		}
	}
	return nil
}

// diagFailed are the GPUs that failed by a result; a GPU without a name is one that the result does not tell.
func diagFailed(result string, perGPU bool) []string {
	if g := diagGPU.FindStringSubmatch(result); g != nil {
		return []string{g[1]}
	}
	f := diagFail.FindStringSubmatch(result)
	if f == nil || perGPU && f[1]+f[2] == "" {
		return nil
	}
	return strings.Split(f[1], ",")
}

var (
	healthGPU = regexp.MustCompile(`^-> (?:GPU )?(\d+)$|^GPU ID: (\d+)$`)
	healthOf  = regexp.MustCompile(`^(?:-> )?([A-Z][A-Za-z ]*(?:system|subsystem|memory|Memory|PCIe|InfoROM|Driver|NVLink|NvSwitch\w*))$`)
)

// healthReport is what is known while dcgmi health is read.
type healthReport struct {
	s    *scan
	gpu  string
	open bool // a sentence of the last error may go on
}

// readHealth reads dcgmi health -c: what is watched of each GPU, and in the rows below what is wrong with it.
func readHealth(s *scan, b []byte) error {
	h, n := &healthReport{s: s}, 0
	for l := range strings.Lines(string(b)) {
		n++
		if m := diagRow.FindStringSubmatch(strings.TrimRight(l, "\r\n")); m != nil {
			h.row(n, l, strings.TrimSpace(m[1]), strings.TrimSpace(m[2]))
		}
	}
	return nil
}

// row reads a row of dcgmi's table. A row without a left cell goes on with the text of the row above.
func (h *healthReport) row(n int, l, left, right string) {
	list := h.s.c.Kernel
	if left == "" {
		if h.open {
			list[len(list)-1].Text += " " + right
		}
		return
	}
	h.open = false
	if g := healthGPU.FindStringSubmatch(left); g != nil {
		h.gpu = g[1] + g[2]
		return
	}
	if m := healthOf.FindStringSubmatch(left); m != nil && h.gpu != "" && (right == "Failure" || right == "Warning") {
		h.s.addKernel(doctor.Kernel{At: h.s.at(n, l), Kind: "gpu_diag", Host: h.s.host, Device: "gpu" + h.gpu, Code: -1,
			Text: m[1] + ":", F: map[string]string{"status": right}})
		h.open = len(h.s.c.Kernel) > len(list)
	}
}

var (
	linkGPU = regexp.MustCompile(`^\s+gpuId (\d+):`)
	linkRow = regexp.MustCompile(`^\s+[UDX_](?: [UDX_])+\s*$`)
)

// readLinkStatus reads dcgmi nvlink --link-status: a letter per link, under its GPU.
func readLinkStatus(s *scan, b []byte) error {
	var gpu *doctor.GPU
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		switch m := linkGPU.FindStringSubmatch(l); {
		case m != nil:
			s.c.GPUs = append(s.c.GPUs, emptyGPU())
			gpu = &s.c.GPUs[len(s.c.GPUs)-1]
			gpu.At, gpu.Host, gpu.Bus = s.at(n, l), s.host, "gpu"+m[1]
			gpu.Index, _ = strconv.Atoi(m[1])
		case strings.HasPrefix(strings.TrimSpace(l), "NvSwitch"):
			gpu = nil
		case gpu != nil && linkRow.MatchString(l):
			for i, letter := range strings.Fields(l) {
				if letter == "U" || letter == "D" {
					gpu.Links = append(gpu.Links, doctor.NVLink{At: s.at(n, l), Index: i, GBps: -1, Active: letter == "U", Down: letter == "D"})
				}
			}
		}
	}
	return nil
}

// dcgmFields are the metrics that tell of a fault.
var dcgmFields = map[string]func(*doctor.GPU, float64){
	"DCGM_FI_DEV_ROW_REMAP_FAILURE": func(g *doctor.GPU, v float64) { g.RemapFail = v > 0 },
	"DCGM_FI_DEV_ROW_REMAP_PENDING": func(g *doctor.GPU, v float64) { g.RemapWait = v > 0 },
	"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": func(g *doctor.GPU, v float64) { g.ECC = int64(v) },
	"DCGM_FI_DEV_GPU_TEMP":          func(g *doctor.GPU, v float64) { g.Temp = v },
	"DCGM_FI_DEV_GPU_UTIL":          func(g *doctor.GPU, v float64) { g.Util = v },
	"DCGM_FI_DEV_POWER_USAGE":       func(g *doctor.GPU, v float64) { g.Power = v },
}

// readDCGM reads what dcgm-exporter gives to Prometheus.
func readDCGM(s *scan, b []byte) error {
	from, n := len(s.c.GPUs), 0
	for l := range strings.Lines(string(b)) {
		n++
		m := dcgmLine.FindStringSubmatch(l)
		if m == nil || dcgmFields[m[1]] == nil {
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			continue
		}
		label := map[string]string{}
		for _, x := range promLabel.FindAllStringSubmatch(m[2], -1) {
			label[x[1]] = x[2]
		}
		dcgmFields[m[1]](s.dcgmGPU(from, s.at(n, l), label), v)
	}
	return nil
}

// dcgmGPU is the GPU that a metric's labels name.
func (s *scan) dcgmGPU(from int, at doctor.Evidence, label map[string]string) *doctor.GPU {
	host, _, _ := strings.Cut(label["Hostname"]+label["hostname"], ".")
	i := slices.IndexFunc(s.c.GPUs[from:], func(g doctor.GPU) bool { return g.UUID == label["UUID"] && g.Host == host })
	if i >= 0 {
		return &s.c.GPUs[from+i]
	}
	index, _ := strconv.Atoi(label["gpu"])
	s.c.GPUs = append(s.c.GPUs, doctor.GPU{At: at, Host: host, Index: index, Name: label["modelName"], UUID: label["UUID"],
		Bus: "gpu" + label["gpu"], MemUsed: -1, MemTotal: -1, Util: -1, Power: -1, Cap: -1,
		Temp: -1, TempSlow: -1, ClockSM: -1, ClockSMMax: -1, PCIeGen: -1, PCIeGenMax: -1, Width: -1, WidthMax: -1, Replays: -1, RemapRows: -1})
	return &s.c.GPUs[len(s.c.GPUs)-1]
}

var (
	ipLink = regexp.MustCompile(`^\d+: ([\w.-]+)(?:@\S+)?: <[^>]*> mtu (\d+).*? state (\w+)`)
	ipAddr = regexp.MustCompile(`^\s+inet6? ([0-9a-fA-F.:]+/\d+)`)
)

// readIP reads ip link and ip address as people print them.
func readIP(s *scan, b []byte) error {
	n := 0
	var a *doctor.Address
	for l := range strings.Lines(string(b)) {
		n++
		if m := ipLink.FindStringSubmatch(l); m != nil {
			mtu, _ := strconv.Atoi(m[2])
			s.c.Addresses = append(s.c.Addresses, doctor.Address{At: s.at(n, l), Host: s.host, Name: m[1], State: m[3], MTU: mtu})
			a = &s.c.Addresses[len(s.c.Addresses)-1]
		} else if m := ipAddr.FindStringSubmatch(l); m != nil && a != nil {
			a.Prefixes = append(a.Prefixes, m[1])
		}
	}
	return nil
}
