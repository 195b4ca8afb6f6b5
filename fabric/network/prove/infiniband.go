package prove

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Subnet is an InfiniBand fabric: what its cables join, and what its subnet manager's files make of it.
type Subnet struct {
	Name   string
	Unread []string // lines that the model does not know

	engines    []string // routing engines, tried in turn
	named      map[string]bool
	roots      []uint64
	guids      map[uint64]string // of switches and of adapters' ports, to their names
	adapterOf  map[string]uint64 // "n0:nic0" to its GUID
	partitions []partition
	doubles    []string // GUIDs and ports that are named twice

	switches []*ibSwitch
	adapters []*adapter
	trunks   int // cables between switches
	loose    []string
	routing  bool // there is an opensm.conf

	lanes  int        // that nue spreads paths over
	dumped []dumpLine // of opensm-lfts.dump
	tables *tables    // what they say; nil without them
}

// ibSwitch is a switch of a subnet; its number is its place in Subnet.switches.
type ibSwitch struct {
	name string
	guid uint64
	root bool
	next []ibLink
	hung []*adapter
}

// ibLink leads from a switch to another.
type ibLink struct {
	to, cable int32
	port      string
}

// adapter is a host's port.
type adapter struct {
	host, port string
	guid       uint64
	at         int32  // the switch it is plugged into
	plug       string // and by which of its ports
}

func (a *adapter) String() string { return a.host + ":" + a.port }

// partition is a line of partitions.conf.
type partition struct {
	name    string
	key     uint16
	mtu     int // bytes; 0 where IP does not use it
	all     bool
	allFull bool
	members map[uint64]bool // to whether they are full members
}

// member says what an adapter is in a partition.
func (p *partition) member(guid uint64) (in, full bool) {
	if full, in = p.members[guid]; in {
		return in, full
	}
	return p.all, p.allFull
}

// smOptions are options of opensm.conf that do not change who reaches whom.
var smOptions = []string{"sm_priority", "sweep_interval", "node_name_map_name", "qos", "qos_policy_file", "qos_max_vls", "qos_high_limit",
	"qos_vlarb_high", "qos_vlarb_low", "qos_sl2vl", "log_file", "log_flags", "max_op_vls"}

// smFiles are the options that name files, and the file that the model reads for each.
var smFiles = map[string]string{
	"root_guid_file":        "root_guids.conf",
	"cn_guid_file":          "cn_guids.conf",
	"partition_config_file": "partitions.conf",
}

// smEngines are the routing engines that are modelled.
var smEngines = []string{"ftree", "updn", "minhop", "nue"}

// rooted are those that count from root_guids.conf.
var rooted = []string{"ftree", "updn"}

func (n *Net) subnet(name string) *Subnet {
	s := n.subnets[name]
	if s == nil {
		s = &Subnet{Name: name, guids: map[uint64]string{}, adapterOf: map[string]uint64{}, named: map[string]bool{}, lanes: 1}
		n.subnets[name] = s
	}
	return s
}

// Subnets are the InfiniBand fabrics of which there are files, by name.
func (n *Net) Subnets() (out []*Subnet) {
	for _, name := range slices.Sorted(maps.Keys(n.subnets)) {
		out = append(out, n.subnets[name])
	}
	return out
}

// smLines gives the lines of a file of the subnet manager without comments.
func smLines(data []byte, each func(line, comment string) error) error {
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, 64<<20) // a partition is one line, however many members it has
	for number := 1; in.Scan(); number++ {
		line, comment, _ := strings.Cut(in.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := each(line, strings.TrimSpace(comment)); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return in.Err()
}

// openSM reads opensm.conf.
func (n *Net) openSM(name string, data []byte) error {
	s := n.subnet(name)
	s.routing = true
	return smLines(data, func(line, _ string) (err error) {
		key, value, _ := strings.Cut(line, " ")
		value = strings.TrimSpace(value)
		switch file, isFile := smFiles[key]; {
		case key == "routing_engine":
			s.engine(value)
		case key == "nue_max_num_vls":
			s.lanes, err = strconv.Atoi(value)
		case isFile && path.Base(value) == file:
			s.named[key] = true
		case !slices.Contains(smOptions, key):
			s.Unread = append(s.Unread, "opensm.conf: "+line)
		}
		return err
	})
}

// engine reads the routing engines. Without no_fallback the last one is minhop.
func (s *Subnet) engine(value string) {
	fallback := true
	for e := range strings.SplitSeq(value, ",") {
		switch e = strings.TrimSpace(e); {
		case e == "no_fallback":
			fallback = false
		case slices.Contains(smEngines, e):
			s.engines = append(s.engines, e)
		default:
			s.Unread = append(s.Unread, "opensm.conf: routing_engine "+e)
		}
	}
	if fallback {
		s.engines = append(s.engines, "minhop")
	}
}

func parseGUID(text string) (uint64, error) {
	v, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		err = fmt.Errorf("%q is no GUID", text)
	}
	return v, err
}

// name notes whose a GUID is.
func (s *Subnet) name(guid uint64, who string) {
	if other, twice := s.guids[guid]; twice && other != who {
		s.doubles = append(s.doubles, fmt.Sprintf("GUID 0x%016x is that of %s and of %s", guid, other, who))
	}
	s.guids[guid] = who
}

func (n *Net) rootGUIDs(name string, data []byte) error {
	s := n.subnet(name)
	return smLines(data, func(line, comment string) error {
		g, err := parseGUID(strings.Fields(line)[0])
		s.roots = append(s.roots, g)
		return err
	})
}

// cnGUIDs reads the ports of hosts: 0xGUID # n0 nic0.
func (n *Net) cnGUIDs(name string, data []byte) error {
	s := n.subnet(name)
	return smLines(data, func(line, comment string) error {
		g, err := parseGUID(strings.Fields(line)[0])
		if err != nil {
			return err
		}
		who := strings.Join(strings.Fields(comment), ":")
		if who == "" {
			s.doubles = append(s.doubles, fmt.Sprintf("GUID 0x%016x: cn_guids.conf does not say whose it is (0x%016x # HOST PORT)", g, g))
			return nil
		}
		if _, twice := s.adapterOf[who]; twice {
			s.doubles = append(s.doubles, who+" has two GUIDs")
		}
		s.name(g, who)
		s.adapterOf[who] = g
		return nil
	})
}

// nodeNames reads the names of switches: 0xGUID "leaf0".
func (n *Net) nodeNames(name string, data []byte) error {
	s := n.subnet(name)
	return smLines(data, func(line, _ string) error {
		guid, who, _ := strings.Cut(line, " ")
		g, err := parseGUID(guid)
		if err == nil {
			s.name(g, strings.Trim(strings.TrimSpace(who), `"`))
		}
		return err
	})
}

// partitionFile reads NAME=KEY, FLAGS : MEMBERS ; which may go on over several lines.
func (n *Net) partitionFile(name string, data []byte) error {
	s := n.subnet(name)
	var all strings.Builder
	if err := smLines(data, func(line, _ string) error {
		all.WriteString(line + " ")
		return nil
	}); err != nil {
		return err
	}
	for def := range strings.SplitSeq(all.String(), ";") {
		if def = strings.TrimSpace(def); def == "" {
			continue
		}
		head, members, ok := strings.Cut(def, ":")
		if !ok {
			return fmt.Errorf("%.60q has no members", def)
		}
		p, full, err := s.partitionHead(head)
		if err != nil {
			return err
		}
		if err := s.partitionMembers(p, members, full); err != nil {
			return fmt.Errorf("partition %s: %w", p.name, err)
		}
		s.partitions = append(s.partitions, *p)
	}
	return nil
}

// smMTU are the sizes of packets by their codes.
var smMTU = map[string]int{"1": 256, "2": 512, "3": 1024, "4": 2048, "5": 4096}

// partitionHead reads what stands before the members; full says what they are where they do not say.
func (s *Subnet) partitionHead(head string) (p *partition, full bool, err error) {
	p = &partition{members: map[uint64]bool{}}
	for i, word := range strings.Split(head, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(word), "=")
		switch {
		case i == 0:
			v, err := strconv.ParseUint(value, 0, 16)
			if err != nil {
				return nil, false, fmt.Errorf("%q: the key of a partition is a number", word)
			}
			p.name, p.key = key, uint16(v)&0x7fff
		case key == "ipoib":
			p.mtu = max(p.mtu, 2048)
		case key == "mtu":
			if p.mtu = smMTU[value]; p.mtu == 0 {
				return nil, false, fmt.Errorf("mtu=%s is none of 1 to 5", value)
			}
		case key == "defmember":
			full = value == "full"
		case key == "sl":
		default:
			s.Unread = append(s.Unread, "partitions.conf: "+p.name+": "+word)
		}
	}
	return p, full, nil
}

func (s *Subnet) partitionMembers(p *partition, list string, full bool) error {
	for word := range strings.SplitSeq(list, ",") {
		who, how, said := strings.Cut(strings.TrimSpace(word), "=")
		is := full
		if said {
			is = how == "full"
		}
		switch who {
		case "ALL", "ALL_CAS":
			p.all, p.allFull = true, is
		case "ALL_SWITCHES", "SELF", "":
		default:
			g, err := parseGUID(who)
			if err != nil {
				return err
			}
			p.members[g] = is
		}
	}
	return nil
}

// plugRows reads the cables behind the heading; at and network are the columns of their ends and of their fabric.
func (n *Net) plugRows(r *csv.Reader, at [4]int, network int) error {
	switches := map[string]map[string]int32{} // of each subnet, by name
	for {
		row, err := r.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if s := n.subnets[row[network]]; s != nil {
			if switches[s.Name] == nil {
				switches[s.Name] = map[string]int32{}
			}
			n.plugSubnet(s, switches[s.Name], [2][2]string{
				{strings.Clone(row[at[0]]), strings.Clone(row[at[1]])}, {strings.Clone(row[at[2]]), strings.Clone(row[at[3]])}})
		}
	}
}

// plugSubnets gives subnets their cables: those whose last column names them.
func (n *Net) plugSubnets(data []byte) error {
	if len(n.subnets) == 0 {
		return nil
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.ReuseRecord = true
	at, network, err := columns(r)
	if err == nil && network < 0 {
		err = errors.New("no column network, which names the fabric of a cable")
	}
	if err != nil {
		return err
	}
	if err := n.plugRows(r, at, network); err != nil {
		return err
	}
	for _, s := range n.subnets {
		s.identify()
		if len(s.dumped) > 0 {
			s.tables = s.tabled()
		}
	}
	return nil
}

// isAdapter says whether an end of a cable is a host's.
func (n *Net) isAdapter(s *Subnet, end [2]string) bool {
	_, named := s.adapterOf[end[0]+":"+end[1]]
	d := n.Devices[end[0]]
	return named || d != nil && !d.Router
}

func (n *Net) plugSubnet(s *Subnet, at map[string]int32, ends [2][2]string) {
	number := func(name string) int32 {
		i, ok := at[name]
		if !ok {
			i = int32(len(s.switches))
			at[name] = i
			s.switches = append(s.switches, &ibSwitch{name: name})
		}
		return i
	}
	if n.isAdapter(s, ends[0]) {
		ends[0], ends[1] = ends[1], ends[0]
	}
	switch {
	case n.isAdapter(s, ends[0]): // two hosts, without a switch
		s.loose = append(s.loose, fmt.Sprintf("%s:%s and %s:%s are joined without a switch", ends[0][0], ends[0][1], ends[1][0], ends[1][1]))
	case n.isAdapter(s, ends[1]):
		a := &adapter{host: ends[1][0], port: ends[1][1], at: number(ends[0][0]), plug: ends[0][1]}
		a.guid = s.adapterOf[a.String()]
		s.adapters = append(s.adapters, a)
		s.switches[a.at].hung = append(s.switches[a.at].hung, a)
	default:
		u, v := number(ends[0][0]), number(ends[1][0])
		s.switches[u].next = append(s.switches[u].next, ibLink{v, int32(s.trunks), ends[0][1]})
		s.switches[v].next = append(s.switches[v].next, ibLink{u, int32(s.trunks), ends[1][1]})
		s.trunks++
	}
}

// identify gives switches their GUIDs, and notes which GUIDs have no cable.
func (s *Subnet) identify() {
	byName := map[string]uint64{}
	for g, name := range s.guids {
		byName[name] = g
	}
	plugged := map[string]bool{}
	for _, a := range s.adapters {
		plugged[a.String()] = true
	}
	for _, x := range s.switches {
		x.guid = byName[x.name]
		slices.SortStableFunc(x.next, func(a, b ibLink) int { return slices.Compare(numbers(a.port), numbers(b.port)) })
		x.root = x.guid != 0 && slices.Contains(s.roots, x.guid)
		plugged[x.name] = true
	}
	for _, g := range slices.Sorted(maps.Keys(s.guids)) {
		if who := s.guids[g]; !plugged[who] {
			s.loose = append(s.loose, fmt.Sprintf("GUID 0x%016x of %s has no cable in cables.csv", g, who))
		}
	}
}

// numbers are those in a port's name: swp1s0 is 1 and 0.
func numbers(port string) (out []int) {
	for _, w := range strings.FieldsFunc(port, func(r rune) bool { return r < '0' || r > '9' }) {
		v, _ := strconv.Atoi(w)
		out = append(out, v)
	}
	return out
}
