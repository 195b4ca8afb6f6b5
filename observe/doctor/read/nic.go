package read

import (
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

var mlxPair = regexp.MustCompile(`^([A-Za-z][^:]*?)\s*:\s*(.*)$`)

// mlxCounters are mlxlink's words for counters of /sys.
var mlxCounters = map[string]string{"link down counter": "link_downed", "link error recovery counter": "link_error_recovery"}

// errorRate reads a bit error rate. 15E-255 means that no error was seen.
func errorRate(val string) float64 {
	f, err := strconv.ParseFloat(strings.Fields(val + " 0")[0], 64)
	if err != nil || f < 1e-100 {
		return 0
	}
	return f
}

// readMLXLink reads mlxlink's report of one port.
func readMLXLink(s *scan, b []byte) error {
	p := newPort()
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = ansi.ReplaceAllString(strings.TrimSpace(l), "")
		m := mlxPair.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		val := strings.TrimSpace(m[2])
		switch key := strings.ToLower(m[1]); {
		case key == "state":
			p.State, p.At = title(val), s.at(n, l)
		case key == "physical state":
			p.Phys = val
		case key == "speed":
			if strings.Contains(val, "IB-") {
				p.Layer = "InfiniBand"
			} else if strings.HasSuffix(val, "G") || strings.Contains(val, "G_") {
				p.Layer = "Ethernet"
			}
		case key == "width":
			p.Width = lanes(val)
		case strings.HasPrefix(key, "raw physical ber"):
			p.RawBER = errorRate(val)
		case strings.HasPrefix(key, "effective physical ber"):
			p.EffBER = errorRate(val)
			if p.EffBER > 0 {
				p.At = s.at(n, l)
			}
		case mlxCounters[key] != "":
			if v, err := strconv.ParseUint(val, 10, 64); err == nil {
				p.Counters[mlxCounters[key]] = v
			}
		case key == "recommendation":
			if !strings.Contains(strings.ToLower(val), "no issue") && val != "" {
				p.Problem = val
			}
		case key == "device":
			p.Device = val
		}
	}
	p.Host = s.host
	if p.Device == "" {
		p.Device = strings.TrimSuffix(s.file[strings.LastIndexByte(s.file, '/')+1:], ".txt")
	}
	if p.At.File == "" {
		p.At = s.at(1, "mlxlink")
	}
	s.c.Ports = append(s.c.Ports, p)
	return nil
}

// readEthtool reads ethtool -S, of which the interface is in the file's name or in a
// line before each part.
func readEthtool(s *scan, b []byte) error {
	var e *doctor.Ether
	name := ""
	n := 0
	pair := regexp.MustCompile(`^\s+([A-Za-z0-9_\[\].-]+): (\d+)\s*$`)
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if strings.HasPrefix(l, "NIC statistics:") {
			s.c.Ether = append(s.c.Ether, doctor.Ether{At: s.at(n, l), Host: s.host, Device: name, Counters: map[string]uint64{}})
			e = &s.c.Ether[len(s.c.Ether)-1]
			if name == "" {
				e.Device = ifName(s.file)
			}
			name = ""
			continue
		}
		if m := pair.FindStringSubmatch(l); m != nil && e != nil {
			v, err := strconv.ParseUint(m[2], 10, 64)
			if err == nil {
				e.Counters[m[1]] = v
			}
			continue
		}
		if m := regexp.MustCompile(`([A-Za-z][\w.-]*)\s*:?\s*$`).FindStringSubmatch(l); m != nil && !strings.HasPrefix(l, " ") {
			name = m[1]
		}
	}
	return nil
}

var ifWord = regexp.MustCompile(`(?:^|[._/@-])((?:en|eth|ib|bond|rdma|rail|roce)[a-z0-9]*\d[a-z0-9]*)(?:[._/-]|$)`)

func ifName(file string) string {
	m := ifWord.FindAllStringSubmatch(file, -1)
	if m == nil {
		return ""
	}
	return m[len(m)-1][1]
}

var (
	pciHead = regexp.MustCompile(`^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:]+): (.*)`)
	pciLink = regexp.MustCompile(`Speed ([\d.]+)GT/s(?: \((\w+)\))?, Width x(\d+)(?: \((\w+)\))?`)
	pciType = regexp.MustCompile(`Express \(v\d+\) ([A-Za-z /-]+?)(?: \(|,|$)`)
)

// readLSPCI reads lspci. Where a link runs below what it could, its line is the evidence.
func readLSPCI(s *scan, b []byte) error {
	var d *doctor.PCI
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := pciHead.FindStringSubmatch(l); m != nil {
			s.c.PCI = append(s.c.PCI, doctor.PCI{At: s.at(n, l), Host: s.host, Addr: m[1], Class: m[2], Name: m[3],
				Bridge: strings.Contains(m[2], "bridge")})
			d = &s.c.PCI[len(s.c.PCI)-1]
			continue
		}
		if d == nil {
			continue
		}
		t := strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(t, "LnkCap:"):
			if m := pciLink.FindStringSubmatch(t); m != nil {
				d.SpeedMax, _ = strconv.ParseFloat(m[1], 64)
				d.WidthMax, _ = strconv.Atoi(m[3])
			}
		case strings.HasPrefix(t, "LnkSta:"):
			if m := pciLink.FindStringSubmatch(t); m != nil {
				d.Speed, _ = strconv.ParseFloat(m[1], 64)
				d.Width, _ = strconv.Atoi(m[3])
				if d.Width < d.WidthMax || d.Speed < d.SpeedMax {
					d.At = s.at(n, d.Addr+" "+t)
				}
			}
		case strings.HasPrefix(t, "ACSCtl:"):
			d.ACS = strings.TrimSpace(strings.TrimPrefix(t, "ACSCtl:"))
			if strings.Contains(d.ACS, "SrcValid+") && d.Bridge {
				d.At = s.at(n, d.Addr+" "+t)
			}
		case strings.HasPrefix(t, "Kernel driver in use:"):
			d.Driver = strings.TrimSpace(strings.TrimPrefix(t, "Kernel driver in use:"))
		case strings.Contains(t, "Express (v"):
			if m := pciType.FindStringSubmatch(t); m != nil {
				d.Type = m[1]
			}
		case strings.HasPrefix(t, "UESta:"):
			for _, f := range strings.Fields(strings.TrimPrefix(t, "UESta:")) {
				if strings.HasSuffix(f, "+") {
					d.Errors = append(d.Errors, strings.TrimSuffix(f, "+"))
				}
			}
		}
	}
	return nil
}
