package check

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// Mistakes of configuration files that guides are full of.
const (
	Links      Kind = "links"       // of gres.conf: names where numbers belong
	AutoDetect Kind = "auto-detect" // of gres.conf: beside explicit lines
	Stanza     Kind = "stanza"      // a line that its reader passes over
	Flat       Kind = "flat-subnet" // several NICs in one subnet
	NoRule     Kind = "no-rule"     // a NIC whose packets leave by another
	IPoIB      Kind = "ipoib-mtu"   // more than IP over InfiniBand carries
	Standby    Kind = "standby"     // a bond that leaves a link idle
	Variable   Kind = "variable"    // of NCCL: left over from another cluster
)

// Dialects of configuration files that Config reads.
var ConfigDialects = []string{"gres.conf", "interfaces", "netplan", "nccl.conf"}

// dialectOf tells files apart by words that only one of them has, "" if there are none.
func dialectOf(text string) string {
	switch {
	case has(text, "Name=") && has(text, "File=") || has(text, "AutoDetect="):
		return "gres.conf"
	case has(text, "NCCL_") && !has(text, "network:"):
		return "nccl.conf"
	case has(text, "iface "):
		return "interfaces"
	case has(text, "network:"):
		return "netplan"
	}
	return ""
}

// Config finds mistakes in a configuration file that somebody wrote: gres.conf of Slurm, /etc/network/interfaces, netplan,
// nccl.conf or the variables of a job script. It needs no plan. dialect says which it is; "" for one that the text tells.
func Config(name, dialect string, data []byte) ([]Finding, error) {
	text := string(data)
	c := &config{name: name}
	switch cmp.Or(dialect, dialectOf(text)) {
	case "gres.conf":
		c.gres(text)
	case "nccl.conf":
		c.nccl(text)
	case "interfaces":
		c.nics(interfaces(text))
	case "netplan":
		list, err := netplan(data)
		if err != nil {
			return nil, err
		}
		c.nics(list)
	default:
		return nil, fmt.Errorf("%s is none of %s", name, strings.Join(ConfigDialects, ", "))
	}
	slices.SortStableFunc(c.found, func(a, b Finding) int { return cmp.Or(a.Line-b.Line, strings.Compare(a.Part, b.Part)) })
	return c.found, nil
}

// has reports whether a line, comments left out, holds a word.
func has(text, word string) bool {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if strings.Contains(line, word) {
			return true
		}
	}
	return false
}

type config struct {
	name  string
	found []Finding
}

func (c *config) add(line int, kind Kind, part, what, want, got, fix string) {
	c.found = append(c.found, Finding{State: Differ, Kind: kind, Device: c.name, Part: part, What: what, Want: want, Got: got, Line: line,
		Fix: fix})
}

// joined gives the lines of a file, comments left out, those that end with a backslash joined.
func joined(text string) (lines []string, numbers []int) {
	open, begin, number := "", 0, 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if open == "" {
			begin = number
		}
		if rest, more := strings.CutSuffix(line, `\`); more {
			open += rest + " "
			continue
		}
		if line = strings.TrimSpace(open + line); line != "" {
			lines, numbers = append(lines, line), append(numbers, begin)
		}
		open = ""
	}
	return lines, numbers
}

// gresGPU is a line of gres.conf that names GPUs.
type gresGPU struct {
	line    int
	files   []string // device files, expanded
	links   string
	hasLink bool
}

// gres checks the links between GPUs and who finds the devices.
func (c *config) gres(text string) {
	lines, numbers := joined(text)
	var gpus []gresGPU
	auto, autoLine := "", 0
	for i, line := range lines {
		entry := map[string]string{}
		for _, w := range strings.Fields(line) {
			k, v, _ := strings.Cut(w, "=")
			entry[strings.ToLower(k)] = v
		}
		if v := strings.ToLower(entry["autodetect"]); v != "" && v != "off" {
			auto, autoLine = v, numbers[i]
		}
		if _, named := entry["name"]; !named {
			if _, node := entry["nodename"]; node {
				c.add(numbers[i], Stanza, "NodeName", "the line has no Name: it says nothing about the lines that follow",
					"NodeName= on the line of each device", line, "write NodeName="+entry["nodename"]+" at the beginning of each line")
			}
			continue
		}
		if entry["name"] != "gpu" || entry["file"] == "" {
			continue
		}
		files, err := hostlist.Expand(entry["file"])
		if err != nil {
			files = []string{entry["file"]}
		}
		links, ok := entry["links"]
		gpus = append(gpus, gresGPU{numbers[i], files, links, ok})
	}
	if auto != "" && len(gpus) > 0 {
		c.add(autoLine, AutoDetect, "AutoDetect", "AutoDetect beside explicit lines: where they differ in anything, the node is drained",
			"one of them", "AutoDetect="+auto+" and "+plural(len(gpus), "line"), "leave the lines out, or write AutoDetect=off")
	}
	count := 0
	for _, g := range gpus {
		count += len(g.files)
	}
	own := 0
	for _, g := range gpus {
		if g.hasLink {
			c.links(g, own, count)
		}
		own += len(g.files)
	}
}

// links checks Links= of one line. Slurm wants one number per device of the node, in the order of the file: the links to
// that device, and -1 for the line's own device. own is the device's number among count.
func (c *config) links(g gresGPU, own, count int) {
	if len(g.files) > 1 {
		c.add(g.line, Links, g.files[0], "Links for several devices in one line: each has its own",
			"one File a line", strings.Join(g.files, ","), "write a line for each device")
		return
	}
	var values []int
	bad := false
	for _, w := range strings.Split(g.links, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(w))
		values, bad = append(values, n), bad || err != nil
	}
	if !bad && own < len(values) && values[own] == -1 && len(values) == count {
		return
	}
	right := make([]string, count)
	for i := range right {
		right[i] = "0"
		if slices.Contains(values, i) {
			right[i] = "N"
		}
	}
	right[own] = "-1"
	c.add(g.line, Links, g.files[0],
		"Links is the number of links to each device, in order, with -1 for the device itself; these look like names of peers",
		"Links="+strings.Join(right, ","), "Links="+g.links,
		"put the number of NVLinks for N: nvidia-smi nvlink -s; weft net emit --only slurm writes it")
}

// byHand are NCCL's variables that are best left unset, and why.
var byHand = map[string]string{
	"NCCL_ALGO":             "NCCL chooses by size and topology; one algorithm for all sizes is slow for most",
	"NCCL_PROTO":            "NCCL chooses by size; LL128 where it is not safe gives wrong results",
	"NCCL_NTHREADS":         "NCCL's own choice knows the GPU",
	"NCCL_BUFFSIZE":         "NCCL's own choice is 4 MB, and more takes memory from the job",
	"NCCL_MIN_NCHANNELS":    "channels take processors of the GPU from the computation",
	"NCCL_MAX_NCHANNELS":    "channels take processors of the GPU from the computation",
	"NCCL_NET_GDR_LEVEL":    "NCCL reads the distance of NIC and GPU itself",
	"NCCL_IB_GID_INDEX":     "indices differ from host to host; NCCL_IB_ADDR_RANGE names the GID by its network (NCCL 2.21 and later)",
	"NCCL_IB_DISABLE":       "collectives go over sockets then",
	"NCCL_P2P_DISABLE":      "GPUs of a host do not use NVLink then",
	"NCCL_SHM_DISABLE":      "GPUs of a host go over the network then",
	"NCCL_NET_GDR_READ":     "NCCL chooses by the GPU",
	"NCCL_SOCKET_NTHREADS":  "it concerns sockets only, not RDMA",
	"NCCL_NSOCKS_PERTHREAD": "it concerns sockets only, not RDMA",
}

// nccl checks the variables of nccl.conf, or of a job script that exports them.
func (c *config) nccl(text string) {
	lines, numbers := joined(text)
	for i, line := range lines {
		for _, word := range strings.Fields(line) {
			name, value, ok := strings.Cut(word, "=")
			if !ok || !strings.HasPrefix(name, "NCCL_") {
				continue
			}
			c.variable(numbers[i], word, name, strings.Trim(value, `"'`))
		}
	}
}

// variable checks one setting of NCCL, which the file has as word.
func (c *config) variable(line int, word, name, value string) {
	why, leave := byHand[name]
	switch {
	case leave && value != "0" && value != "":
		c.add(line, Variable, name, why, "unset", word, "remove the line; measure with and without it before you keep it")
	case name == "NCCL_SOCKET_IFNAME" && strings.HasPrefix(strings.TrimLeft(value, "=^"), "ib") && !strings.HasPrefix(value, "^"):
		c.add(line, Variable, name,
			"ranks find one another over IP over InfiniBand, which a fault of the fabric takes away with the data",
			"the front end's interface", word, "NCCL_SOCKET_IFNAME==front0, with the name of the front end's interface")
	case name == "NCCL_IB_HCA" && value != "" && !strings.ContainsAny(value[:1], "=^"):
		c.add(line, Variable, name, "without = at the beginning names are beginnings: mlx5_1 takes mlx5_10 to mlx5_19, too",
			"NCCL_IB_HCA=="+value, word, "NCCL_IB_HCA=="+value)
	}
}

// nic is an interface of a file.
type nic struct {
	name     string
	line     int
	prefixes []netip.Prefix
	mtu      int
	mtuLine  int
	rules    []string // sources of routing rules
	quiet    bool     // arp_ignore and arp_announce are set
	bond     string   // mode
	bondLine int
	ib       bool
	connect  bool // IPoIB's connected mode
}

// datagrams says whether the interface is IP over InfiniBand in its usual mode.
func (x *nic) datagrams() bool { return x.ib && !x.connect }

// nics checks the interfaces of a host against one another.
func (c *config) nics(list []nic) {
	for i := range list {
		x := &list[i]
		if x.datagrams() && x.mtu > network.IPoIBMTU {
			c.add(x.mtuLine, IPoIB, x.name, fmt.Sprintf("IP over InfiniBand carries at most %d bytes in datagram mode; 9000 is Ethernet's",
				network.IPoIBMTU), fmt.Sprint(network.IPoIBMTU), fmt.Sprint(x.mtu),
				fmt.Sprintf("mtu %d, with mtu=5 in partitions.conf", network.IPoIBMTU))
		}
		if x.bond == "active-backup" || x.bond == "1" {
			c.add(x.bondLine, Standby, x.name, "one link of the bond carries everything, the other waits; two switches of an MLAG pair both forward",
				"802.3ad", x.bond, "802.3ad with transmit-hash-policy layer3+4, and the pair's MLAG id on the switches")
		}
		for j := range i {
			y := &list[j]
			for _, p := range x.prefixes {
				for _, q := range y.prefixes {
					if p.Masked().Overlaps(q.Masked()) {
						c.oneSubnet(x, y, p, q)
					}
				}
			}
		}
	}
}

// oneSubnet judges two NICs with addresses p and q in one subnet: neither may answer for the other, and each needs a rule for
// what it sends.
func (c *config) oneSubnet(x, y *nic, p, q netip.Prefix) {
	if !x.quiet || !y.quiet {
		c.add(x.line, Flat, x.name,
			fmt.Sprintf("%s and %s are in one subnet: each answers ARP for the other, and packets come in by the wrong NIC", y.name, x.name),
			"a subnet a rail, or arp_ignore=1 and arp_announce=2 on both", p.String(),
			fmt.Sprintf("sysctl net.ipv4.conf.{%s,%s}.arp_ignore=1 and arp_announce=2, or a prefix a rail: weft net plan", y.name, x.name))
	}
	for _, z := range []*nic{y, x} {
		if !slices.ContainsFunc(z.rules, func(r string) bool { return r == p.Addr().String() || r == q.Addr().String() }) &&
			!c.told(NoRule, z.name) {
			c.add(z.line, NoRule, z.name, "no routing rule for its address: packets that bear it leave by whichever NIC comes first",
				"ip rule add from its address", "none",
				fmt.Sprintf("ip rule add from %s table N, with a route of the subnet by %s in table N", z.prefixes[0].Addr(), z.name))
		}
	}
}

func (c *config) told(k Kind, part string) bool {
	return slices.ContainsFunc(c.found, func(f Finding) bool { return f.Kind == k && f.Part == part })
}

// interfaces reads /etc/network/interfaces.
func interfaces(text string) []nic {
	lines, numbers := joined(text)
	var list []nic
	var mask []string // of the addresses without a length
	for i, line := range lines {
		w := strings.Fields(line)
		if w[0] == "iface" && len(w) > 1 {
			list, mask = append(list, nic{name: w[1], line: numbers[i], ib: strings.HasPrefix(w[1], "ib")}), append(mask, "")
			continue
		}
		if len(list) == 0 || len(w) < 2 {
			continue
		}
		x := &list[len(list)-1]
		switch w[0] {
		case "address":
			if p, err := netip.ParsePrefix(w[1]); err == nil {
				x.prefixes = append(x.prefixes, p)
			} else if a, err := netip.ParseAddr(w[1]); err == nil {
				x.prefixes = append(x.prefixes, netip.PrefixFrom(a, 32))
			}
		case "netmask":
			mask[len(mask)-1] = w[1]
		case "mtu":
			x.mtu, _ = strconv.Atoi(w[1])
			x.mtuLine = numbers[i]
		case "bond-mode", "bond_mode":
			x.bond, x.bondLine = w[1], numbers[i]
		case "mode":
			x.connect = w[1] == "connected"
		case "up", "post-up", "pre-up":
			x.command(line)
		}
	}
	for i := range list {
		bits, ok := maskBits(mask[i])
		for j, p := range list[i].prefixes {
			if ok && p.Bits() == 32 {
				list[i].prefixes[j] = netip.PrefixFrom(p.Addr(), bits)
			}
		}
	}
	return list
}

// command reads what a line does to an interface.
func (x *nic) command(line string) {
	w := strings.Fields(line)
	if strings.Contains(line, "arp_ignore=1") || strings.Contains(line, "arp_announce=2") {
		x.quiet = true
	}
	if i := slices.Index(w, "from"); strings.Contains(line, "ip rule add") && i > 0 && i+1 < len(w) {
		a, _, _ := strings.Cut(w[i+1], "/")
		x.rules = append(x.rules, a)
	}
}

// maskBits is the length of a netmask.
func maskBits(s string) (int, bool) {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n <= 32 {
		return n, true
	}
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is4() {
		return 0, false
	}
	bits := 0
	for _, b := range a.As4() {
		for b&0x80 != 0 {
			bits++
			b <<= 1
		}
	}
	return bits, true
}

// netplan reads a file of netplan.
func netplan(data []byte) ([]nic, error) {
	type device struct {
		Addresses  []any  `yaml:"addresses"`
		MTU        int    `yaml:"mtu"`
		Mode       string `yaml:"infiniband-mode"`
		Parameters struct {
			Mode string `yaml:"mode"`
		} `yaml:"parameters"`
		Policy []struct {
			From string `yaml:"from"`
		} `yaml:"routing-policy"`
	}
	var top struct {
		Network struct {
			Ethernets map[string]device `yaml:"ethernets"`
			Bonds     map[string]device `yaml:"bonds"`
		} `yaml:"network"`
	}
	if err := yaml.Unmarshal(data, &top); err != nil {
		return nil, err
	}
	var list []nic
	for _, group := range []map[string]device{top.Network.Ethernets, top.Network.Bonds} {
		var names []string
		for n := range group {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			d := group[n]
			at := lineOf(data, 0, n)
			x := nic{name: n, line: at, mtuLine: lineOf(data, at, "mtu"), bondLine: lineOf(data, at, "mode"), mtu: d.MTU, bond: d.Parameters.Mode,
				ib: strings.HasPrefix(n, "ib") || d.Mode != "", connect: d.Mode == "connected"}
			for _, a := range d.Addresses {
				if p, err := netip.ParsePrefix(fmt.Sprint(a)); err == nil {
					x.prefixes = append(x.prefixes, p)
				}
			}
			for _, r := range d.Policy {
				a, _, _ := strings.Cut(r.From, "/")
				x.rules = append(x.rules, a)
			}
			list = append(list, x)
		}
	}
	return list, nil
}

// lineOf is the first line from one on that has a key of YAML; that line where none has it.
func lineOf(data []byte, from int, key string) int {
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		if number < from {
			continue
		}
		for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n{,", r) }) {
			if strings.Trim(strings.TrimSuffix(word, ":"), `"'`) == key && strings.HasSuffix(word, ":") {
				return number
			}
		}
	}
	return from
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
