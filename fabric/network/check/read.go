package check

import (
	"encoding/json"
	"fmt"
	"strings"
)

// device is what a host or switch said, parsed. A nil part was not read.
type device struct {
	ifaces  map[string]iface
	rules   []rule
	routes  []route
	lldp    map[string][]neighbour // by interface
	filters []filter               // of a host; nil where it has none or nobody asked
	sysctl  map[string]string
	asn     uint32
	peers   map[string]peer                      // BGP sessions by interface
	bfd     map[string]string                    // status by interface
	timers  map[string]timers                    // by interface
	conf    []string                             // running configuration, a line with its context each; nil if it was not read
	db      map[string]map[string]map[string]any // of SONiC
	rib     map[string]int                       // ways by prefix
	bird    bool                                 // BIRD routes, not FRR
}

type iface struct {
	up, carrier bool
	mtu         int
	addrs       []string
	master      string // the bridge, bond or VRF that it is in
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
	dst, via, dev, table, proto string
	ways                        int
	devs                        []string
}

type neighbour struct{ device, port string }

type peer struct {
	state string
	as    uint32
}

// parse reads the output of one command.
func (d *device) parse(name string, data []byte) error {
	reader := map[string]func([]byte) error{
		"ip-addr.json": d.parseAddr, "ip-rule.json": d.parseRule, "ip-route.json": d.parseRoute, "lldp.json": d.parseLLDP,
		"sysctl.txt": d.parseSysctl, filterFile: d.parseFilters,
		"bgp.json": d.parseBGP, "bgp-neighbors.json": d.parseNeighbours, "bfd.json": d.parseBFD, "rib.json": d.parseRIB,
		"running.txt":        d.parseRunning,
		"config_db.json":     func(data []byte) error { return json.Unmarshal(data, &d.db) },
		"bird-protocols.txt": d.parseBird, "bird-bfd.txt": d.parseBirdBFD,
	}[name]
	if reader == nil {
		return fmt.Errorf("no reader knows %s", name)
	}
	return reader(data)
}

// parseAddr reads ip -j address. An empty list is not the same as no reading: ifaces is not nil.
func (d *device) parseAddr(data []byte) error {
	var list []struct {
		Name   string   `json:"ifname"`
		Flags  []string `json:"flags"`
		MTU    int      `json:"mtu"`
		Master string   `json:"master"`
		Addrs  []struct {
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
		x := iface{mtu: l.MTU, master: l.Master}
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

// parseRoute reads ip -j route. Dead next hops do not count as ways; local and broadcast routes are the kernel's own
// and are left out.
func (d *device) parseRoute(data []byte) error {
	var list []struct {
		Dst      string `json:"dst"`
		Gateway  string `json:"gateway"`
		Dev      string `json:"dev"`
		Table    any    `json:"table"`
		Type     string `json:"type"`
		Protocol string `json:"protocol"`
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
		x := route{dst: r.Dst, via: r.Gateway, dev: r.Dev, table: "main", proto: r.Protocol, ways: 1, devs: []string{r.Dev}}
		switch r.Type {
		case "", "unicast":
		case "blackhole", "unreachable", "prohibit", "throw":
			x.via, x.devs = r.Type, nil
		default:
			continue // the kernel's own
		}
		if r.Table != nil {
			x.table = fmt.Sprint(r.Table)
		}
		if len(r.Nexthops) > 0 {
			x.ways, x.devs = 0, nil
			for _, n := range r.Nexthops {
				if !dead(n.Flags) {
					x.ways++
					x.devs = append(x.devs, n.Dev)
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

// parseLLDP reads lldpcli's neighbours in both of its forms: json0, where everything is a
// list, and json, where names are keys and a list of one is its element.
func (d *device) parseLLDP(data []byte) error {
	var top struct {
		LLDP any `json:"lldp"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		return err
	}
	if top.LLDP == nil {
		return fmt.Errorf("no lldp in it; ask with lldpcli -f json0 show neighbors")
	}
	d.lldp = map[string][]neighbour{}
	for _, l := range elements(top.LLDP) {
		for _, i := range elements(l["interface"]) {
			if name, ok := i["name"].(string); ok { // json0
				d.heard(name, i)
				continue
			}
			for name, body := range i {
				for _, b := range elements(body) {
					d.heard(name, b)
				}
			}
		}
	}
	return nil
}

// elements are the objects of a list, or the one object in its place.
func elements(v any) (out []map[string]any) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// heard notes a neighbour of an interface.
func (d *device) heard(name string, body map[string]any) {
	var n neighbour
	for _, chassis := range elements(body["chassis"]) {
		if text := value(chassis["name"]); text != "" {
			n.device = text
			break
		}
		for key, inside := range chassis { // json: the name is the key
			if _, object := inside.(map[string]any); object && key != "id" {
				n.device = key
			}
		}
	}
	n.device, _, _ = strings.Cut(n.device, ".")
	for _, port := range elements(body["port"]) {
		n.port = value(port["id"])
	}
	d.lldp[name] = append(d.lldp[name], n)
}

// value is the value of an object, or of the first of a list.
func value(v any) string {
	for _, m := range elements(v) {
		if text, ok := m["value"].(string); ok {
			return text
		}
	}
	return ""
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

// parseBGP reads the sessions of FRR. A router without BGP has an empty list; nil would be no reading.
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

// parseBFD reads the state and the timers of sessions, by interface.
func (d *device) parseBFD(data []byte) error {
	var list []struct {
		Interface string `json:"interface"`
		Status    string `json:"status"`
		Receive   int    `json:"receive-interval"`
		Transmit  int    `json:"transmit-interval"`
		Multi     int    `json:"detect-multiplier"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	d.bfd = map[string]string{}
	for _, x := range list {
		d.bfd[x.Interface] = x.Status
		d.timed(x.Interface, func(t *timers) { t.bfd = fmt.Sprintf("%d/%d ms x%d", x.Receive, x.Transmit, x.Multi) })
	}
	return nil
}

// parseRIB counts the active next hops of the selected route to each prefix, as the routing daemon has them. Compared
// with the kernel's routes it shows what was not installed.
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
			if len(f) >= 6 {
				d.timed(f[1], func(t *timers) { t.detect = f[5] })
			}
		}
	}
	return nil
}
