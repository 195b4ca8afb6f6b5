package read

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// Tools of InfiniBand: ibstat, ibstatus, perfquery, iblinkinfo, ibnetdiscover,
// ibdiagnet and mlxlink. Counters get the names they have in /sys.

func newPort() doctor.Port { return doctor.Port{SMLID: -1, Counters: map[string]uint64{}, LID: -1} }

var (
	statCA     = regexp.MustCompile(`^CA '([^']+)'`)
	statPort   = regexp.MustCompile(`^\s+Port (\d+):`)
	statFailed = regexp.MustCompile(`(?:IB device|CA|device) '?([\w.-]+)'? failed|can't open (?:UMAD port|device) \(?'?([\w.-]+)`)
	statPair   = regexp.MustCompile(`^\s*([A-Za-z][\w /]*?)\s*:\s*(.*)$`)
)

// readIBStat reads blocks "CA 'mlx5_0'" with "Port 1:". The tool may stop half-way
// and say so on a line of its own.
func readIBStat(s *scan, b []byte) error {
	var ca string
	var port *doctor.Port
	n := 0
	add := func() {
		if port != nil {
			s.c.Ports = append(s.c.Ports, *port)
		}
		port = nil
	}
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := statCA.FindStringSubmatch(l); m != nil {
			add()
			ca = m[1]
			continue
		}
		if m := statPort.FindStringSubmatch(l); m != nil && ca != "" {
			add()
			p := newPort()
			p.At, p.Host, p.Device = s.at(n, ca+" "+strings.TrimSpace(l)), s.host, ca
			p.Port, _ = strconv.Atoi(m[1])
			port = &p
			continue
		}
		if slices.ContainsFunc(statStops, func(text string) bool { return strings.Contains(l, text) }) {
			s.statStopped(n, l)
			continue
		}
		m := statPair.FindStringSubmatch(l)
		if m == nil || port == nil {
			continue
		}
		portField(port, m[1], m[2], s.at(n, ca+" port "+strconv.Itoa(port.Port)+": "+strings.TrimSpace(l)))
	}
	add()
	return nil
}

// statStops are in the lines with which ibstat gives up.
var statStops = []string{"ibpanic", "stat of IB device", "can't open"}

// statStopped keeps the line with which ibstat gave up, as a port that could not be read.
func (s *scan) statStopped(n int, l string) {
	s.note(doctor.Cut, "line %d: ibstat stopped: %s", n, strings.TrimSpace(l))
	p := newPort()
	p.At, p.Host, p.Problem = s.at(n, l), s.host, strings.TrimSpace(l)
	if m := statFailed.FindStringSubmatch(l); m != nil {
		p.Name = m[1]
	}
	s.c.Ports = append(s.c.Ports, p)
}

// stateName is the name in "4: ACTIVE", as ibstatus prints states.
func stateName(val string) string {
	if _, name, ok := strings.Cut(val, ": "); ok {
		return name
	}
	return val
}

// portField stores what ibstat and ibstatus call by slightly different names.
func portField(p *doctor.Port, key, val string, at doctor.Evidence) {
	val = strings.TrimSpace(val)
	switch strings.ToLower(key) {
	case "state":
		p.State = title(stateName(val))
		p.At = at
	case "physical state", "phys state":
		p.Phys = stateName(val)
	case "rate":
		if f := firstNumber.FindString(val); f != "" {
			p.Rate, _ = strconv.ParseFloat(f, 64)
		}
		if i := strings.Index(val, "("); i >= 0 {
			p.Width = lanes(val[i:])
		}
	case "base lid":
		p.LID = hexOrDec(val)
	case "sm lid":
		p.SMLID = hexOrDec(val)
	case "port guid":
		p.GUID = val
	case "link layer", "link_layer":
		p.Layer = val
	}
}

func title(s string) string {
	if s == "" {
		return s
	}
	s = strings.ToLower(s)
	return strings.ToUpper(s[:1]) + s[1:]
}

func hexOrDec(s string) int {
	v, err := strconv.ParseInt(strings.TrimSpace(s), 0, 64)
	if err != nil {
		return -1
	}
	return int(v)
}

var statusHead = regexp.MustCompile(`^Infiniband device '([^']+)' port (\d+) status:`)

// readIBStatus reads ibstatus.
func readIBStatus(s *scan, b []byte) error {
	var port *doctor.Port
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := statusHead.FindStringSubmatch(l); m != nil {
			p := newPort()
			p.At, p.Host, p.Device = s.at(n, l), s.host, m[1]
			p.Port, _ = strconv.Atoi(m[2])
			s.c.Ports = append(s.c.Ports, p)
			port = &s.c.Ports[len(s.c.Ports)-1]
			continue
		}
		if m := statPair.FindStringSubmatch(l); m != nil && port != nil {
			portField(port, m[1], m[2], s.at(n, port.Device+" port "+strconv.Itoa(port.Port)+": "+strings.TrimSpace(l)))
		}
	}
	return nil
}

// perfNames are perfquery's counters by the names of /sys.
var perfNames = map[string]string{
	"symbolerrorcounter": "symbol_error", "linkerrorrecoverycounter": "link_error_recovery", "linkdownedcounter": "link_downed",
	"portrcverrors": "port_rcv_errors", "portrcvremotephysicalerrors": "port_rcv_remote_physical_errors",
	"portrcvswitchrelayerrors": "port_rcv_switch_relay_errors", "portxmitdiscards": "port_xmit_discards",
	"portxmitconstrainterrors": "port_xmit_constraint_errors", "portrcvconstrainterrors": "port_rcv_constraint_errors",
	"locallinkintegrityerrors": "local_link_integrity_errors", "excessivebufferoverrunerrors": "excessive_buffer_overrun_errors",
	"vl15dropped": "VL15_dropped", "portxmitwait": "port_xmit_wait", "portxmitdata": "port_xmit_data", "portrcvdata": "port_rcv_data",
	"portxmitpkts": "port_xmit_packets", "portrcvpkts": "port_rcv_packets", "qp1dropped": "qp1_dropped",
	"portlocalphysicalerrors": "port_local_physical_errors", "portmalformedpkterrors": "port_malformed_packet_errors",
	"portbufferoverrunerrors": "excessive_buffer_overrun_errors",
	"portdlidmappingerrors":   "port_dlid_mapping_errors", "portvlmappingerrors": "port_vl_mapping_errors",
	"portloopingerrors": "port_looping_errors",
}

var (
	perfHead = regexp.MustCompile(`^# Port(?:RcvErrorDetails| extended)? counters: Lid (\d+) port (\d+)`)
	perfPair = regexp.MustCompile(`^([A-Za-z0-9]+):\.*\s*(0x[0-9a-fA-F]+|\d+)`)
	guidName = regexp.MustCompile(`0x[0-9a-fA-F]{16}`)
)

// readPerfquery reads counters by LID. Which host that is, is not in it.
func readPerfquery(s *scan, b []byte) error {
	var port *doctor.Port
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := perfHead.FindStringSubmatch(l); m != nil {
			p := newPort()
			p.At, p.Host = s.at(n, l), s.host
			p.LID, _ = strconv.Atoi(m[1])
			p.Port, _ = strconv.Atoi(m[2])
			p.GUID = guidName.FindString(s.file)
			p.Device = "lid " + m[1]
			s.c.Ports = append(s.c.Ports, p)
			port = &s.c.Ports[len(s.c.Ports)-1]
			continue
		}
		if m := perfPair.FindStringSubmatch(l); m != nil && port != nil {
			if name, ok := perfNames[strings.ToLower(m[1])]; ok {
				v, err := strconv.ParseUint(m[2], 0, 64)
				if err == nil {
					port.Counters[name] = v
				}
			}
		}
	}
	return nil
}

// readDiagnet reads the port counters file of ibdiagnet: "Port=1 Lid=0x1 GUID=0x.."
// and then name=0xHEX.
func readDiagnet(s *scan, b []byte) error {
	head := regexp.MustCompile(`^Port=(\d+) Lid=(\S+) GUID=(\S+)(?:.*?Port Name=(.*))?`)
	pair := regexp.MustCompile(`^([a-z0-9_]+)=(0x[0-9a-fA-F]+|\d+)\s*$`)
	names := map[string]string{"link_down_counter": "link_downed", "link_error_recovery_counter": "link_error_recovery",
		"symbol_error_counter":            "symbol_error",
		"port_rcv_remote_physical_errors": "port_rcv_remote_physical_errors", "port_rcv_errors": "port_rcv_errors",
		"port_xmit_discard":            "port_xmit_discards",
		"port_rcv_switch_relay_errors": "port_rcv_switch_relay_errors", "excessive_buffer_errors": "excessive_buffer_overrun_errors",
		"local_link_integrity_errors": "local_link_integrity_errors",
		"port_rcv_constraint_errors":  "port_rcv_constraint_errors", "port_xmit_constraint_errors": "port_xmit_constraint_errors",
		"vl15_dropped":   "VL15_dropped",
		"port_xmit_data": "port_xmit_data", "port_rcv_data": "port_rcv_data", "port_xmit_pkts": "port_xmit_packets",
		"port_rcv_pkts": "port_rcv_packets", "port_xmit_wait": "port_xmit_wait",
		"port_xmit_data_extended": "port_xmit_data", "port_rcv_data_extended": "port_rcv_data", "port_xmit_pkts_extended": "port_xmit_packets",
		"port_rcv_pkts_extended": "port_rcv_packets"}
	var port *doctor.Port
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimSpace(l)
		if m := head.FindStringSubmatch(l); m != nil {
			p := newPort()
			p.At, p.GUID, p.Name = s.at(n, l), m[3], strings.TrimSpace(m[4])
			p.Port, _ = strconv.Atoi(m[1])
			p.LID = hexOrDec(m[2])
			p.Device = m[3]
			if p.Name != "" {
				p.Device = p.Name
			}
			p.Switch = true // not of this host: the fabric's view
			s.c.Ports = append(s.c.Ports, p)
			port = &s.c.Ports[len(s.c.Ports)-1]
			continue
		}
		if m := pair.FindStringSubmatch(l); m != nil && port != nil {
			v, err := strconv.ParseUint(m[2], 0, 64)
			if err != nil {
				continue
			}
			name, ok := names[m[1]]
			if !ok {
				name, ok = names[strings.TrimSuffix(m[1], "_extended")]
			}
			if ok {
				port.Counters[name] = max(port.Counters[name], v)
			} else {
				port.Counters[m[1]] = v
			}
		}
	}
	return nil
}

var (
	liSwitch = regexp.MustCompile(`^(CA|Switch|Router): (.*?):\s*$`)
	liGUID   = regexp.MustCompile(`^0x[0-9a-fA-F]{16} (.*)$`)
	liLine   = regexp.MustCompile(`^\s*(?:0x[0-9a-fA-F]+\s+)?(?:"?([^"]*?)"?\s+)?(\d+)\s+(\d+)\[\s*\]\s*==\(\s*(?:(\d+)X\s+)?(?:([\d.]+ Gbps|[A-Z]+\d*)\s+)?(\w+)\s*/\s*(\w+)\s*\)==>\s*(?:0x[0-9a-fA-F]+\s+)?(?:(\d+)\s+(\d+))?\s*\[\s*\]\s*"([^"]*)"\s*(?:\(\s*(.*?)\s*\))?`)
)

var (
	liWider  = regexp.MustCompile(`Could be (\d+)X`)
	liFaster = regexp.MustCompile(`Could be ([\d.]+ Gbps|[A-Z]+\d*)\b`)
)

// couldBe reads iblinkinfo's remark on a link that is narrower or slower than both of its ends allow.
func couldBe(remark string) (width int, speed string) {
	if w := liWider.FindStringSubmatch(remark); w != nil {
		width, _ = strconv.Atoi(w[1])
	}
	if w := liFaster.FindStringSubmatch(remark); w != nil && !strings.HasSuffix(w[1], "X") {
		speed = w[1]
	}
	return width, speed
}

// readLinkInfo reads iblinkinfo: a heading a node, then a line a port.
func readLinkInfo(s *scan, b []byte) error {
	node, isSwitch := "", false
	n, bad := 0, 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := liSwitch.FindStringSubmatch(l); m != nil {
			node, isSwitch = m[2], m[1] == "Switch"
			if g := liGUID.FindStringSubmatch(node); g != nil {
				node = g[1]
			}
			continue
		}
		if !strings.Contains(l, "==(") {
			continue
		}
		m := liLine.FindStringSubmatch(l)
		if m == nil {
			bad++
			continue
		}
		c := doctor.Cable{At: s.at(n, l), A: node, ASwitch: isSwitch, State: m[6] + "/" + m[7], B: m[10], Speed: strings.TrimSpace(m[5])}
		if node == "" {
			c.A = m[1]
		}
		c.APort, _ = strconv.Atoi(m[3])
		c.BPort, _ = strconv.Atoi(m[9])
		c.Width, _ = strconv.Atoi(m[4])
		c.WidthMax, c.SpeedMax = couldBe(m[11])
		s.c.Cables = append(s.c.Cables, c)
	}
	if bad > 0 {
		s.note(doctor.Partial, "%d port lines were not understood", bad)
	}
	return nil
}

var (
	ndNode = regexp.MustCompile(`^(Switch|Ca|Rt)\s+(\d+) "([SHR]-[0-9a-fA-F]+)"\s*#\s*"([^"]*)"`)
	ndPort = regexp.MustCompile(`^\[(\d+)\](?:\([0-9a-fA-F]+\))?\s+"([SHR]-[0-9a-fA-F]+)"\[(\d+)\](?:\([0-9a-fA-F]+\))?\s*#?\s*(?:lid \d+ lmc \d+ )?"?([^"]*)"?.*?(\d+)x([A-Z]+\d*|\?\?\?)`)
	ndLine = regexp.MustCompile(`^(CA|SW|RT)\s+(\d+)\s+(\d+) (0x[0-9a-fA-F]+) (\d+)x (\S+)(?: - (CA|SW|RT)\s+(\d+)\s+(\d+) (0x[0-9a-fA-F]+) \( '(.*)' - '(.*)' \)|\s+'(.*)')`)
)

// readDiscover reads ibnetdiscover, the classic form and -p.
func readDiscover(s *scan, b []byte) error {
	names, named := map[string]string{}, map[string]bool{}
	node, desc := "", ""
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := ndLine.FindStringSubmatch(l); m != nil {
			if m[7] == "" {
				continue // a port without a cable
			}
			c := doctor.Cable{At: s.at(n, l), A: m[11], B: m[12], ASwitch: m[1] == "SW", BSwitch: m[7] == "SW", Speed: m[6], State: "Active/LinkUp"}
			c.APort, _ = strconv.Atoi(m[3])
			c.BPort, _ = strconv.Atoi(m[9])
			c.Width, _ = strconv.Atoi(m[5])
			s.c.Cables = append(s.c.Cables, c)
			continue
		}
		if m := ndNode.FindStringSubmatch(l); m != nil {
			node, desc = m[3], m[4]
			names[node] = desc
			continue
		}
		if m := ndPort.FindStringSubmatch(l); m != nil && node != "" {
			named[m[2]] = true
			c := doctor.Cable{At: s.at(n, l), A: desc, B: m[4], ASwitch: node[0] == 'S', BSwitch: m[2][0] == 'S', Speed: m[6],
				State: "Active/LinkUp"}
			if c.B == "" {
				c.B = names[m[2]]
			}
			c.APort, _ = strconv.Atoi(m[1])
			c.BPort, _ = strconv.Atoi(m[3])
			c.Width, _ = strconv.Atoi(m[5])
			s.c.Cables = append(s.c.Cables, c)
		}
	}
	s.discoverEnd(b, names, named)
	return nil
}

// discoverEnd notes that an output of ibnetdiscover is cut: every node has a block of its own, so one that others are
// connected to and that has none is missing.
func (s *scan) discoverEnd(b []byte, names map[string]string, named map[string]bool) {
	lost := 0
	for id := range named {
		if _, ok := names[id]; !ok {
			lost++
		}
	}
	switch {
	case lost > 0:
		s.note(doctor.Cut, "the output is cut: %d of %d nodes that others are connected to are not described", lost, len(names)+lost)
	case len(b) > 0 && b[len(b)-1] != '\n':
		s.note(doctor.Cut, "the output is cut: its last line has no end")
	}
}

// ipAddress reads an element of ip -j address.
func (s *scan) ipAddress(d *pdict) {
	a := doctor.Address{At: s.at(0, d.text("ifname")), Host: s.host, Name: d.text("ifname"), State: d.text("operstate"),
		MTU: int(d.int("mtu", 0))}
	for _, x := range d.list("addr_info") {
		if i, _ := x.(*pdict); i != nil && i.text("local") != "" {
			a.Prefixes = append(a.Prefixes, i.text("local")+"/"+i.text("prefixlen"))
		}
	}
	a.At.Text = strings.TrimSpace(a.Name + " " + a.State + " " + strings.Join(a.Prefixes, " "))
	s.c.Addresses = append(s.c.Addresses, a)
}

// A copy of /sys: one file an attribute, known by its path.

type attr struct{ kind, device, port, name string }

var (
	sysPort = regexp.MustCompile(`(?:^|/)([^/]+)/ports/(\d+)/(state|phys_state|rate|link_layer|lid|sm_lid|(?:counters|hw_counters)/\w+)$`)
	sysPCI  = regexp.MustCompile(`(?:^|/)([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/(current_link_speed|current_link_width|max_link_speed|max_link_width|aer_dev_(?:correctable|nonfatal|fatal)|class|vendor)$`)
)

// sysOther are attributes of an RDMA device that say nothing here.
var sysOther = regexp.MustCompile(`/(?:mlx|bnxt|efa|hfi|irdma|rxe|rocep|ibp|siw)[^/]*/(?:board_id|fw_ver|hca_type|node_desc|node_guid|node_type|sys_image_guid|hw_rev|dev|uevent|ports/\d+/(?:cap_mask|lid_mask_count|sm_sl|gid_attrs/.*|gids/.*|pkeys/.*|has_smi|cm_\w+/.*))$`)

func sysAttr(name string) (attr, bool) {
	if m := sysPort.FindStringSubmatch(name); m != nil {
		return attr{"port", m[1], m[2], m[3]}, true
	}
	if m := sysPCI.FindStringSubmatch(name); m != nil {
		return attr{"pci", m[1], "", m[2]}, true
	}
	return attr{}, false
}

// sysFile reads one attribute. Those of one device in one tree of files belong to one port or PCI device.
func (s *scan) sysFile(a attr, val string) {
	root := s.file[:strings.Index(s.file, a.device)]
	switch a.kind {
	case "port":
		s.sysPort(a, root, val)
	case "pci":
		s.sysPCI(a, root, val)
	}
}

// sysPort reads an attribute of a port: its state, or else a counter.
func (s *scan) sysPort(a attr, root, val string) {
	p := s.portOf(a, root)
	switch a.name {
	case "state", "phys_state", "rate", "link_layer", "lid", "sm_lid":
		key := map[string]string{"phys_state": "phys state", "lid": "base lid", "sm_lid": "sm lid"}[a.name]
		if key == "" {
			key = a.name
		}
		portField(p, key, val, doctor.Evidence{File: root + a.device + "/ports/" + a.port + "/state", Line: 1,
			Text: a.device + " port " + a.port + " state " + val})
	default:
		if v, err := strconv.ParseUint(val, 10, 64); err == nil {
			p.Counters[a.name[strings.IndexByte(a.name, '/')+1:]] = v
		} else if val != "" && !strings.HasPrefix(val, "N/A") {
			s.note(doctor.Partial, "%s is %q, no number", a.name, clip(val))
		}
	}
}

// portOf returns the port that an attribute belongs to; the first attribute makes it. The pointer holds until the next
// port is made.
func (s *scan) portOf(a attr, root string) *doctor.Port {
	n, _ := strconv.Atoi(a.port)
	for i := len(s.c.Ports) - 1; i >= 0; i-- {
		if q := &s.c.Ports[i]; q.Device == a.device && q.Port == n && strings.HasPrefix(q.At.File, root) {
			return q
		}
	}
	p := newPort()
	p.At, p.Host, p.Device, p.Port = doctor.Evidence{File: root + a.device + "/ports/" + a.port}, s.host, a.device, n
	s.c.Ports = append(s.c.Ports, p)
	return &s.c.Ports[len(s.c.Ports)-1]
}

// sysPCI reads an attribute of a PCI device.
func (s *scan) sysPCI(a attr, root, val string) {
	d := s.pciOf(a, root)
	switch a.name {
	case "current_link_speed":
		d.Speed, _ = strconv.ParseFloat(firstNumber.FindString(val), 64)
	case "max_link_speed":
		d.SpeedMax, _ = strconv.ParseFloat(firstNumber.FindString(val), 64)
	case "current_link_width":
		d.Width = max(lanes(val), 0)
		d.At.Text = a.device + " x" + val
	case "max_link_width":
		d.WidthMax = max(lanes(val), 0)
	case "class":
		d.Bridge = strings.HasPrefix(val, "0x0604")
		d.Class = map[string]string{"0x0302": "3D controller", "0x0300": "VGA compatible controller", "0x0200": "Ethernet controller",
			"0x0207": "Infiniband controller"}[val[:min(len(val), 6)]]
	case "vendor":
		if val == "0x10de" && d.Name == "" {
			d.Name = "NVIDIA"
		}
	default:
		if n, ok := aerTotal(val); ok {
			d.AER[strings.TrimPrefix(a.name, "aer_dev_")] = n
		}
	}
}

// aerTotal finds the sum in a list of PCIe errors by kind.
func aerTotal(list string) (n int64, ok bool) {
	for l := range strings.Lines(list) {
		if f := strings.Fields(l); len(f) == 2 && strings.HasPrefix(f[0], "TOTAL_") {
			n, _ = strconv.ParseInt(f[1], 10, 64)
			ok = true
		}
	}
	return n, ok
}

// pciOf is portOf for PCI devices.
func (s *scan) pciOf(a attr, root string) *doctor.PCI {
	for i := len(s.c.PCI) - 1; i >= 0; i-- {
		if q := &s.c.PCI[i]; q.Addr == a.device && strings.HasPrefix(q.At.File, root) {
			return q
		}
	}
	s.c.PCI = append(s.c.PCI, doctor.PCI{At: doctor.Evidence{File: root + a.device}, Host: s.host, Addr: a.device, AER: map[string]int64{}})
	return &s.c.PCI[len(s.c.PCI)-1]
}
