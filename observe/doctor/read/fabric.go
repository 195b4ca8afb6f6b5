package read

import (
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// Further tools of fabrics: ibswinfo, perftest, the list of unhealthy ports of a subnet
// manager, and NetQ's links.

var (
	swinfoPair  = regexp.MustCompile(`^(\s*)([A-Za-z#][\w #/().:-]*?)\s*\|\s*(.*?)\s*$`)
	perfTest    = regexp.MustCompile(`^\s*(RDMA_Write|RDMA_Read|Send)(?: Bidirectional)? (BW|Latency) Test`)
	perfDevice  = regexp.MustCompile(`Device\s*:\s*(\S+)`)
	perfTable   = regexp.MustCompile(`^\s*#bytes\s+#iterations\s+BW peak\[(\S+)\]\s+BW average\[(\S+)\]`)
	perfFigures = regexp.MustCompile(`^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+[\d.]+`)
	unhealthy   = regexp.MustCompile(`^\s*(0x[0-9a-fA-F]+), (\d+), "([^"]*)", (0x[0-9a-fA-F]+), (\d+),\s+"([^"]*)", \{([^}]*)\}(?:, (.*))?`)
	hot         = 95.0 // degrees at which a switch is near its limit
)

// readSwitchInfo reads ibswinfo: a table of a switch's state, fans and power supplies.
func readSwitchInfo(s *scan, b []byte) error {
	w := doctor.Switch{}
	n, part := 0, ""
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		m := swinfoPair.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		key, val := strings.ToLower(m[2]), m[3]
		if m[1] == "" {
			part = ""
			if strings.HasPrefix(key, "psu") {
				part = strings.Fields(m[2])[0]
			}
		}
		bad := func(what string) {
			w.Problems = append(w.Problems, s.at(n, strings.TrimSpace(part+" "+what+" is "+val)))
		}
		switch {
		case key == "guid":
			w.GUID = val
		case key == "node description" || key == "product name" && w.Name == "":
			w.Name = val
		case strings.HasSuffix(key, "status") || key == "dc power":
			if val != "" && !strings.EqualFold(val, "OK") && !strings.EqualFold(val, "not present") && !strings.EqualFold(val, "N/A") {
				if strings.HasPrefix(key, "psu") {
					bad("status")
				} else {
					bad(m[2])
				}
			}
		case key == "temperature (c)":
			if v, err := strconv.ParseFloat(val, 64); err == nil && v >= hot {
				bad("temperature")
			}
		case strings.HasPrefix(key, "fan#"):
			if v, err := strconv.ParseFloat(val, 64); err == nil && v == 0 {
				bad(m[2])
			} else if err != nil {
				s.note(doctor.Partial, "line %d: %s is %q, no number", n, m[2], clip(val))
			}
		}
	}
	w.At = s.at(1, "ibswinfo of "+w.Name+" "+w.GUID)
	s.c.Switches = append(s.c.Switches, w)
	return nil
}

// readPerfTest reads ib_write_bw and its kin.
func readPerfTest(s *scan, b []byte) error {
	op, device, unit := "", "", 1.0
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := perfTest.FindStringSubmatch(l); m != nil {
			op = map[string]string{"RDMA_Write": "ib_write", "RDMA_Read": "ib_read", "Send": "ib_send"}[m[1]] + map[string]string{"BW": "_bw",
				"Latency": "_lat"}[m[2]]
			device = ""
			continue
		}
		if m := perfDevice.FindStringSubmatch(l); m != nil {
			device = m[1]
		}
		if m := perfTable.FindStringSubmatch(l); m != nil {
			unit = map[string]float64{"MB/sec": 1e-3, "MiB/sec": 1.048576e-3, "Gb/sec": 0.125, "Gb/s": 0.125}[m[2]]
			continue
		}
		m := perfFigures.FindStringSubmatch(l)
		if m == nil || op == "" || unit == 0 {
			continue
		}
		row := doctor.Bench{At: s.at(n, op+" on "+device+": "+strings.Join(strings.Fields(l), " ")), Op: op, Device: device, Ranks: 2, Wrong: -1,
			Place: "out-of-place"}
		row.Size, _ = strconv.ParseInt(m[1], 10, 64)
		v, _ := strconv.ParseFloat(m[4], 64)
		row.Alg = v * unit
		row.Bus = row.Alg
		s.c.Bench = append(s.c.Bench, row)
	}
	return nil
}

// readUnhealthy reads the ports that a subnet manager holds to be ill.
func readUnhealthy(s *scan, b []byte) error {
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		m := unhealthy.FindStringSubmatch(strings.TrimRight(l, "\r\n"))
		if m == nil {
			continue
		}
		c := doctor.Cable{At: s.at(n, l), A: m[3], B: m[6], ASwitch: true, BSwitch: true, Problem: strings.TrimSpace(m[7])}
		c.APort, _ = strconv.Atoi(m[2])
		c.BPort, _ = strconv.Atoi(m[5])
		s.c.Cables = append(s.c.Cables, c)
	}
	return nil
}

// netq reads the links of a NetQ topology.
func (s *scan) netq(d *pdict) {
	for _, x := range d.list("links") {
		l, _ := x.(*pdict)
		if l == nil {
			continue
		}
		for _, y := range l.list("compounded_links") {
			c, _ := y.(*pdict)
			if c == nil {
				continue
			}
			var ends [][2]string
			for _, z := range c.list("interfaces") {
				if e, _ := z.(*pdict); e != nil {
					ends = append(ends, [2]string{e.text("node"), e.text("interface")})
				}
			}
			if len(ends) == 2 {
				s.c.Cables = append(s.c.Cables, doctor.Cable{At: s.at(0, c.text("id")), A: ends[0][0] + ":" + ends[0][1],
					B: ends[1][0] + ":" + ends[1][1], ASwitch: true, BSwitch: true})
			}
		}
	}
}
