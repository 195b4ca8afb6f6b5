package check

import (
	"encoding/json"
	"fmt"
	"strings"
)

// device is what a host or switch said, parsed. A nil part was not read.
type device struct {
	ifaces map[string]iface
	rules  []rule
	routes []route
	lldp   map[string]neighbour // by interface
	sysctl map[string]string
	asn    uint32
	peers  map[string]peer   // BGP sessions by interface
	bfd    map[string]string // status by interface
	rib    map[string]int    // ways by prefix
	bird   bool              // BIRD routes, not FRR
}

type iface struct {
	up, carrier bool
	mtu         int
	addrs       []string
}

type rule struct {
	priority        int
	from, to, table string
	used            bool
}

func (r rule) equal(o rule) bool {
	return r.priority == o.priority && r.from == o.from && r.to == o.to && r.table == o.table
}

func (r rule) String() string {
	to := ""
	if r.to != "" {
		to = " to " + r.to
	}
	return fmt.Sprintf("%d from %s%s lookup %s", r.priority, r.from, to, r.table)
}

type route struct {
	dst, via, dev, table string
	ways                 int
}

type neighbour struct{ device, port string }

type peer struct {
	state string
	as    uint32
}

// parse reads the output of one command.
func (d *device) parse(name string, data []byte) error {
	switch name {
	case "ip-addr.json":
		return d.parseAddr(data)
	case "ip-rule.json":
		return d.parseRule(data)
	case "ip-route.json":
		return d.parseRoute(data)
	case "lldp.json":
		return d.parseLLDP(data)
	case "sysctl.txt":
		return d.parseSysctl(data)
	case "bgp.json":
		return d.parseBGP(data)
	case "bfd.json":
		return d.parseBFD(data)
	case "rib.json":
		return d.parseRIB(data)
	case "bird-protocols.txt":
		return d.parseBird(data)
	case "bird-bfd.txt":
		return d.parseBirdBFD(data)
	}
	return fmt.Errorf("no reader knows %s", name)
}

func (d *device) parseAddr(data []byte) error {
	var list []struct {
		Name  string   `json:"ifname"`
		Flags []string `json:"flags"`
		MTU   int      `json:"mtu"`
		Addrs []struct {
			Family string `json:"family"`
			Local  string `json:"local"`
			Len    int    `json:"prefixlen"`
			Scope  string `json:"scope"`
		} `json:"addr_info"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	d.ifaces = map[string]iface{}
	for _, l := range list {
		if l.Name == "" {
			continue // ip prints {} for what it filtered
		}
		x := iface{mtu: l.MTU}
		for _, f := range l.Flags {
			x.up = x.up || f == "UP"
			x.carrier = x.carrier || f == "LOWER_UP"
		}
		for _, a := range l.Addrs {
			if a.Family == "inet" && a.Scope != "host" {
				x.addrs = append(x.addrs, fmt.Sprintf("%s/%d", a.Local, a.Len))
			}
		}
		d.ifaces[l.Name] = x
	}
	return nil
}

func (d *device) parseRule(data []byte) error {
	var list []struct {
		Priority int    `json:"priority"`
		Src      string `json:"src"`
		SrcLen   *int   `json:"srclen"`
		Dst      string `json:"dst"`
		DstLen   *int   `json:"dstlen"`
		Table    string `json:"table"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	d.rules = []rule{}
	for _, r := range list {
		x := rule{priority: r.Priority, from: r.Src, to: r.Dst, table: r.Table}
		if r.SrcLen != nil {
			x.from += fmt.Sprintf("/%d", *r.SrcLen)
		}
		if r.DstLen != nil {
			x.to += fmt.Sprintf("/%d", *r.DstLen)
		}
		d.rules = append(d.rules, x)
	}
	return nil
}

func (d *device) parseRoute(data []byte) error {
	var list []struct {
		Dst      string `json:"dst"`
		Gateway  string `json:"gateway"`
		Dev      string `json:"dev"`
		Table    any    `json:"table"`
		Type     string `json:"type"`
		Nexthops []struct {
			Dev   string   `json:"dev"`
			Flags []string `json:"flags"`
		} `json:"nexthops"`
		Flags []string `json:"flags"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	d.routes = []route{}
	for _, r := range list {
		if r.Type != "" && r.Type != "unicast" {
			continue
		}
		x := route{dst: r.Dst, via: r.Gateway, dev: r.Dev, table: "main", ways: 1}
		if r.Table != nil {
			x.table = fmt.Sprint(r.Table)
		}
		if len(r.Nexthops) > 0 {
			x.ways = 0
			for _, n := range r.Nexthops {
				if !dead(n.Flags) {
					x.ways++
				}
			}
		} else if dead(r.Flags) {
			x.ways = 0
		}
		d.routes = append(d.routes, x)
	}
	return nil
}

func dead(flags []string) bool {
	for _, f := range flags {
		if f == "dead" || f == "linkdown" {
			return true
		}
	}
	return false
}

func (d *device) parseLLDP(data []byte) error {
	type value []struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	}
	var top struct {
		LLDP []struct {
			Interface []struct {
				Name    string `json:"name"`
				Chassis []struct {
					Name value `json:"name"`
				} `json:"chassis"`
				Port []struct {
					ID value `json:"id"`
				} `json:"port"`
			} `json:"interface"`
		} `json:"lldp"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		return err
	}
	if top.LLDP == nil {
		return fmt.Errorf("no lldp in it; ask with -f json0, whose form does not change with the number of neighbours")
	}
	d.lldp = map[string]neighbour{}
	for _, l := range top.LLDP {
		for _, i := range l.Interface {
			var n neighbour
			if len(i.Chassis) > 0 && len(i.Chassis[0].Name) > 0 {
				n.device, _, _ = strings.Cut(i.Chassis[0].Name[0].Value, ".")
			}
			if len(i.Port) > 0 && len(i.Port[0].ID) > 0 {
				n.port = i.Port[0].ID[0].Value
			}
			d.lldp[i.Name] = n
		}
	}
	return nil
}

// parseSysctl reads settings as sysctl prints them, or as grep does with the
// files' names before the values.
func (d *device) parseSysctl(data []byte) error {
	d.sysctl = map[string]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if path, isPath := strings.CutPrefix(line, "/proc/sys/"); isPath {
			key, value, ok = strings.Cut(path, ":")
			key = strings.ReplaceAll(key, "/", ".")
		}
		if !ok {
			return fmt.Errorf("%q is not a setting", clip(line))
		}
		d.sysctl[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return nil
}

func (d *device) parseBGP(data []byte) error {
	var top struct {
		V4 *struct {
			AS    uint32 `json:"as"`
			Peers map[string]struct {
				State    string `json:"state"`
				RemoteAS uint32 `json:"remoteAs"`
			} `json:"peers"`
		} `json:"ipv4Unicast"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		return err
	}
	d.peers = map[string]peer{}
	if top.V4 == nil {
		return nil // no BGP runs
	}
	d.asn = top.V4.AS
	for name, p := range top.V4.Peers {
		d.peers[name] = peer{p.State, p.RemoteAS}
	}
	return nil
}

func (d *device) parseBFD(data []byte) error {
	var list []struct {
		Interface string `json:"interface"`
		Status    string `json:"status"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	d.bfd = map[string]string{}
	for _, x := range list {
		d.bfd[x.Interface] = x.Status
	}
	return nil
}

func (d *device) parseRIB(data []byte) error {
	var top map[string][]struct {
		Selected bool `json:"selected"`
		Nexthops []struct {
			Active bool `json:"active"`
			FIB    bool `json:"fib"`
		} `json:"nexthops"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		return err
	}
	d.rib = map[string]int{}
	for prefix, list := range top {
		for _, r := range list {
			if !r.Selected {
				continue
			}
			for _, n := range r.Nexthops {
				if n.Active {
					d.rib[prefix]++
				}
			}
		}
	}
	return nil
}

// parseBird reads the sessions of "birdc show protocols all". A session of links
// without numbers is told by the interface behind its neighbour's address.
func (d *device) parseBird(data []byte) error {
	text := string(data)
	if !strings.Contains(text, "Proto") || !strings.Contains(text, "State") {
		return fmt.Errorf("no list of protocols")
	}
	d.bird, d.peers = true, map[string]peer{}
	name, now := "", peer{}
	keep := func() {
		if name != "" {
			d.peers[name] = now
		}
		name, now = "", peer{}
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if line[0] != ' ' && line[0] != '\t' {
			keep()
			if len(f) >= 4 && f[1] == "BGP" {
				name, now.state = f[0], "down"
			}
			continue
		}
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if value = strings.TrimSpace(value); !ok || name == "" || value == "" {
			continue
		}
		switch key {
		case "BGP state":
			now.state = value
		case "Neighbor address":
			if _, iface, ok := strings.Cut(value, "%"); ok {
				name = iface
			}
		case "Neighbor AS", "Local AS":
			var n uint32
			if _, err := fmt.Sscan(value, &n); err != nil {
				return fmt.Errorf("%s: %q is no AS number", key, clip(value))
			}
			if key == "Neighbor AS" {
				now.as = n
			} else {
				d.asn = n
			}
		}
	}
	keep()
	return nil
}

// parseBirdBFD reads "birdc show bfd sessions".
func (d *device) parseBirdBFD(data []byte) error {
	text := string(data)
	if !strings.Contains(text, "Interface") && !strings.Contains(text, "no BFD") && !strings.Contains(text, "There is no") {
		return fmt.Errorf("no list of BFD sessions")
	}
	d.bfd = map[string]string{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 4 && strings.ContainsAny(f[0], ":.") && f[0] != "IP" && !strings.HasSuffix(f[0], ":") {
			d.bfd[f[1]] = strings.ToLower(f[2])
		}
	}
	return nil
}
