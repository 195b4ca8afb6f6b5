package prove

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// BIRD is not told by ports whom it speaks to, but by addresses, and its filters stand between routers as well as before
// their own networks. So a session of bird.conf counts where the other end has the address and the AS number, and a
// network does not pass a session whose filters reject it.

// birdFile is a bird.conf being read.
type birdFile struct {
	d         *Device
	sets      map[string][]Permit
	filters   map[string]birdPolicy
	templates map[string][]birdStatement
	sessions  []*birdSession
	direct    []birdDirect
	kernel    birdPolicy // what the kernel gets; nil without protocol kernel
	scans     bool       // there is a protocol device
	unread    []string
}

// birdDirect is a protocol direct: networks of which ports are known to BIRD.
type birdDirect struct {
	ports []string // patterns; those that begin with - leave ports out; none for all
	in    birdPolicy
}

// birdSession is a protocol bgp.
type birdSession struct {
	name       string
	local      uint32
	as         uint32     // of the other end; 0 for any other
	from, to   netip.Addr // from is invalid where BIRD finds out itself
	port       string     // "" where the address says it
	guard, off string
	extended   bool // networks of IPv4 pass although the session is of IPv6
	in, out    birdPolicy
}

// birdInert says how the statements of bird.conf begin that do not change where packets go.
var birdInert = map[string][]string{
	"":       {"log ", "debug ", "timeformat ", "watchdog ", "hostname ", "mrtdump ", "protocol bfd"},
	"device": {"scan time ", "description ", "debug "},
	"direct": {"description ", "debug ", "ipv6 "},
	"static": {"description ", "debug ", "ipv4 ", "ipv6 ", "scan time ", "check link "},
	"kernel": {"description ", "debug ", "scan time ", "persist ", "learn off ", "metric "},
	"bgp": {"description ", "debug ", "hold time ", "startup hold time ", "keepalive time ", "connect retry time ", "connect delay time ",
		"error wait time ", "error forget time ", "bfd ", "direct ", "graceful restart ", "strict bind ", "ipv6 "},
	"channel": {"next hop self ", "import keep filtered ", "graceful restart "},
}

// bird reads the routing of a switch.
func (n *Net) bird(name string, data []byte) error {
	f := &birdFile{d: n.device(name, true), sets: map[string][]Permit{}, filters: map[string]birdPolicy{},
		templates: map[string][]birdStatement{}}
	f.d.BGP = &BGP{named: map[string]bool{}, Groups: map[string]string{}, Guards: map[string]string{}, Relax: true, MaxPaths: 1}
	f.d.bird = f
	tokens, err := birdTokens(string(data))
	if err != nil {
		return err
	}
	list, err := birdStatements(tokens)
	if err != nil {
		return err
	}
	for i := range list {
		if err := f.top(&list[i]); err != nil {
			return fmt.Errorf("line %d: %q: %w", list[i].head[0].line, &list[i], err)
		}
	}
	return f.whole()
}

// whole looks for what BIRD does nothing without.
func (f *birdFile) whole() error {
	if f.d.BGP.ID == "" {
		f.unread = append(f.unread, "a bird.conf without router id: BIRD chooses one")
	}
	if f.kernel == nil {
		f.unread = append(f.unread, "a bird.conf without protocol kernel: no route gets to the kernel")
	}
	if !f.scans {
		f.unread = append(f.unread, "a bird.conf without protocol device: BIRD sees no port")
	}
	for _, s := range f.sessions {
		if s.local != f.d.BGP.ASN && f.d.BGP.ASN != 0 {
			f.unread = append(f.unread, fmt.Sprintf("bird.conf protocol %s: AS number %d, and others have %d", s.name, s.local, f.d.BGP.ASN))
		}
		f.d.BGP.ASN = s.local
	}
	return nil
}

// pass notes a statement that the model does not know, unless it changes nothing.
func (f *birdFile) pass(of string, s *birdStatement) error {
	text := s.String()
	if !slices.ContainsFunc(birdInert[of], func(x string) bool { return strings.HasPrefix(text+" ", x) }) {
		f.unread = append(f.unread, fmt.Sprintf("bird.conf line %d: %s", s.head[0].line, text))
	}
	return nil
}

// code reads what stands in a filter.
func (f *birdFile) code(in []birdToken) *birdCode { return &birdCode{in: in, sets: f.sets} }

// note keeps the first thing in a filter that is not modelled.
func (f *birdFile) note(c *birdCode) {
	if c.err == nil && c.at < len(c.in) {
		c.fail("is not modelled")
	}
	if c.err != nil {
		f.unread = append(f.unread, "bird.conf "+c.err.Error())
	}
}

// birdTop reads statements outside protocols by their first words and how many there are at least.
var birdTop = map[string]struct {
	least int
	read  func(*birdFile, *birdStatement) error
}{
	"router": {3, (*birdFile).routerID}, "filter": {2, (*birdFile).filter}, "define": {4, (*birdFile).define},
	"template": {3, (*birdFile).template}, "protocol": {2, (*birdFile).protocol},
}

// top reads a statement outside protocols.
func (f *birdFile) top(s *birdStatement) error {
	if r := birdTop[s.words[0]]; r.read != nil && len(s.words) >= r.least {
		return r.read(f, s)
	}
	return f.pass("", s)
}

func (f *birdFile) routerID(s *birdStatement) error {
	if len(s.words) != 3 || s.words[1] != "id" {
		return f.pass("", s)
	}
	f.d.BGP.ID = s.words[2]
	return nil
}

func (f *birdFile) filter(s *birdStatement) error {
	c := f.code(s.body)
	f.filters[s.words[1]] = c.filter()
	f.note(c)
	return nil
}

// define reads a set of networks; other constants are not modelled.
func (f *birdFile) define(s *birdStatement) error {
	if s.words[2] != "=" || s.words[3] != "[" {
		return f.pass("", s)
	}
	c := f.code(s.head[3:])
	f.sets[s.words[1]] = c.set()
	f.note(c)
	return nil
}

func (f *birdFile) protocol(s *birdStatement) error {
	read := birdProtocols[s.words[1]]
	if read == nil {
		return f.pass("", s)
	}
	list, err := birdStatements(s.body)
	if err != nil {
		return err
	}
	return read(f, s, list)
}

// birdProtocols reads the protocols.
var birdProtocols = map[string]func(f *birdFile, s *birdStatement, list []birdStatement) error{
	"device": (*birdFile).device, "direct": (*birdFile).directly, "static": (*birdFile).static,
	"kernel": (*birdFile).kernels, "bgp": (*birdFile).bgp,
}

// template keeps the statements of a template, behind those of the one that it is made from.
func (f *birdFile) template(s *birdStatement) error {
	if s.words[1] != "bgp" {
		return f.pass("", s)
	}
	list, err := birdStatements(s.body)
	if err != nil {
		return err
	}
	from, err := f.from(s)
	f.templates[s.words[2]] = append(slices.Clone(from), list...)
	return err
}

// from are the statements of the template that a protocol is made from.
func (f *birdFile) from(s *birdStatement) ([]birdStatement, error) {
	name := after(s.words, "from")
	list, known := f.templates[name]
	if name != "" && !known {
		return nil, fmt.Errorf("there is no template %s above it", name)
	}
	return list, nil
}

func (f *birdFile) device(_ *birdStatement, list []birdStatement) error {
	f.scans = true
	return f.rest("device", list)
}

func (f *birdFile) rest(of string, list []birdStatement) (err error) {
	for i := range list {
		err = errors.Join(err, f.pass(of, &list[i]))
	}
	return err
}

func (f *birdFile) static(_ *birdStatement, list []birdStatement) error {
	return f.rest("static", list)
}

// directly reads a protocol direct.
func (f *birdFile) directly(_ *birdStatement, list []birdStatement) (err error) {
	x := birdDirect{}
	for i := range list {
		switch s := &list[i]; s.words[0] {
		case "disabled":
			return nil
		case "ipv4":
			in, out := birdAll, birdPolicy(birdNone)
			err = errors.Join(err, f.channel(s, (*birdPolicy)(&x.in), &out, nil))
			if x.in == nil {
				x.in = in
			}
		case "interface":
			x.ports = append(x.ports, birdNames(s.words[1:])...)
		default:
			err = errors.Join(err, f.pass("direct", s))
		}
	}
	if x.in != nil {
		f.direct = append(f.direct, x)
	}
	return err
}

// birdNames are the patterns of a list of interfaces.
func birdNames(w []string) (out []string) {
	not := ""
	for _, text := range w {
		switch {
		case text == "-":
			not = "-"
		case text[0] == '"':
			out, not = append(out, not+strings.Trim(text, `"`)), ""
		}
	}
	return out
}

// kernels reads a protocol kernel.
func (f *birdFile) kernels(_ *birdStatement, list []birdStatement) (err error) {
	if slices.ContainsFunc(list, func(s birdStatement) bool { return s.words[0] == "ipv6" }) {
		return nil // of IPv6 alone
	}
	in, out := birdPolicy(birdAll), birdPolicy(birdNone)
	for i := range list {
		switch s := &list[i]; {
		case s.words[0] == "ipv4":
			err = errors.Join(err, f.channel(s, &in, &out, nil))
		case s.words[0] == "merge":
			err = errors.Join(err, f.merge(s))
		default:
			err = errors.Join(err, f.pass("kernel", s))
		}
	}
	f.kernel = out
	return err
}

// merge reads merge paths [on] [limit N].
func (f *birdFile) merge(s *birdStatement) (err error) {
	b := f.d.BGP
	if slices.Contains(s.words, "off") || slices.Contains(s.words, "no") {
		b.MaxPaths = 1
		return nil
	}
	b.MaxPaths = 16 // BIRD's own
	if limit := after(s.words, "limit"); limit != "" {
		b.MaxPaths, err = strconv.Atoi(limit)
	}
	return err
}

// channel reads which routes pass: of a session also whether it may carry them over IPv6.
func (f *birdFile) channel(s *birdStatement, in, out *birdPolicy, extended *bool) error {
	list, err := birdStatements(s.body)
	for i := range list {
		c := &list[i]
		switch {
		case c.words[0] == "import" && birdPasses(c):
			*in = f.policy(c)
		case c.words[0] == "export" && birdPasses(c):
			*out = f.policy(c)
		case strings.HasPrefix(c.String(), "extended next hop") && extended != nil:
			*extended = birdOn(c.words[3:])
		default:
			err = errors.Join(err, f.pass("channel", c))
		}
	}
	return err
}

func birdOn(w []string) bool { return len(w) == 0 || w[0] == "on" || w[0] == "yes" }

func birdPasses(s *birdStatement) bool {
	return len(s.words) > 1 && slices.Contains([]string{"all", "none", "where", "filter"}, s.words[1])
}

// policy reads all, none, where CONDITION, filter NAME or filter { ... }.
func (f *birdFile) policy(s *birdStatement) birdPolicy {
	switch w := s.words; {
	case w[1] == "all":
		return birdAll
	case w[1] == "where":
		c := f.code(s.head[2:])
		is := c.expr()
		f.note(c)
		return is
	case w[1] == "filter" && s.block:
		c := f.code(s.body)
		is := c.filter()
		f.note(c)
		return is
	case w[1] == "filter" && len(w) == 3:
		if is := f.filters[w[2]]; is != nil {
			return is
		}
		f.unread = append(f.unread, fmt.Sprintf("bird.conf line %d: there is no filter %s above it", s.head[0].line, w[2]))
	}
	return birdNone
}

// bgp reads a session.
func (f *birdFile) bgp(s *birdStatement, list []birdStatement) error {
	from, err := f.from(s)
	if err != nil {
		return err
	}
	x := &birdSession{name: strings.Join(s.words[1:min(3, len(s.words))], " ")}
	for _, c := range append(slices.Clone(from), list...) {
		read := birdBGP[c.words[0]]
		if read == nil {
			err = errors.Join(err, f.pass("bgp", &c))
			continue
		}
		err = errors.Join(err, read(f, x, &c))
	}
	f.sessions = append(f.sessions, x)
	return errors.Join(err, x.whole())
}

// whole looks for what a session needs.
func (x *birdSession) whole() error {
	switch {
	case x.local == 0 || !x.to.IsValid():
		return fmt.Errorf("protocol %s has no local AS number or no neighbour", x.name)
	case x.in == nil || x.out == nil:
		return fmt.Errorf("protocol %s: BIRD wants an import and an export in its ipv4 channel", x.name)
	case x.to.Is6() && !x.extended:
		x.off = cmp.Or(x.off, "carries no IPv4: extended next hop is not on")
	}
	return nil
}

// birdBGP reads the statements of a session by their first words.
var birdBGP = map[string]func(*birdFile, *birdSession, *birdStatement) error{
	"local":    func(f *birdFile, x *birdSession, s *birdStatement) error { return x.self(f, s) },
	"neighbor": func(f *birdFile, x *birdSession, s *birdStatement) error { return x.neighbour(f, s) },
	"interface": func(_ *birdFile, x *birdSession, s *birdStatement) error {
		x.port = strings.Trim(s.words[len(s.words)-1], `"`)
		return nil
	},
	"disabled": func(_ *birdFile, x *birdSession, s *birdStatement) error {
		if birdOn(s.words[1:]) {
			x.off = "is disabled"
		}
		return nil
	},
	"password": func(_ *birdFile, x *birdSession, s *birdStatement) error {
		x.guard += "password " + strings.Trim(s.words[len(s.words)-1], `"`) + "\n"
		return nil
	},
	"ttl": func(_ *birdFile, x *birdSession, s *birdStatement) error {
		if birdOn(s.words[min(2, len(s.words)):]) {
			x.guard += "ttl-security hops 1\n"
		}
		return nil
	},
	"ipv4": func(f *birdFile, x *birdSession, s *birdStatement) error {
		return f.channel(s, &x.in, &x.out, &x.extended)
	},
}

// self reads local [ADDRESS] as N.
func (x *birdSession) self(f *birdFile, s *birdStatement) (err error) {
	w := s.words[1:]
	if len(w) == 3 {
		if x.from, err = netip.ParseAddr(w[0]); err != nil {
			return f.pass("bgp", s)
		}
		w = w[1:]
	}
	if len(w) != 2 || w[0] != "as" {
		return f.pass("bgp", s)
	}
	asn, err := strconv.ParseUint(w[1], 10, 32)
	x.local = uint32(asn)
	return err
}

// neighbour reads neighbor ADDRESS[%PORT] [as N] [internal|external].
func (x *birdSession) neighbour(f *birdFile, s *birdStatement) (err error) {
	if len(s.words) < 2 || s.words[1] == "range" {
		return f.pass("bgp", s)
	}
	addr, port, _ := strings.Cut(s.words[1], "%")
	if x.to, err = netip.ParseAddr(addr); err != nil {
		return fmt.Errorf("line %d: %w", s.head[0].line, err)
	}
	x.port = cmp.Or(port, x.port)
	switch rest := s.words[2:]; {
	case len(rest) == 2 && rest[0] == "as":
		asn, err := strconv.ParseUint(rest[1], 10, 32)
		x.as = uint32(asn)
		return err
	case len(rest) == 1 && rest[0] == "external":
		return nil
	}
	return f.pass("bgp", s)
}

// advertises reports whether a router tells others of a network of its own, which a port has.
func (d *Device) advertises(port string, p netip.Prefix) bool {
	switch {
	case d.BGP == nil:
		return false
	case d.bird == nil:
		return d.BGP.permits(p)
	}
	return slices.ContainsFunc(d.bird.direct, func(x birdDirect) bool { return x.has(port) && x.in(p, true) })
}

// has reports whether a port is one of a protocol direct: the first pattern that fits decides.
func (x *birdDirect) has(port string) bool {
	for _, pattern := range x.ports {
		name, not := strings.CutPrefix(pattern, "-")
		if fits, err := path.Match(name, port); err == nil && fits {
			return !not
		}
	}
	return len(x.ports) == 0
}

// birds finds the ports of the sessions that bird.conf files have, when all files are read.
func (n *Net) birds() {
	for _, name := range slices.Sorted(maps.Keys(n.Devices)) {
		d := n.Devices[name]
		if d.bird == nil {
			continue
		}
		d.BGP.Sessions = map[string]*birdSession{}
		for _, s := range d.bird.sessions {
			d.bird.unread = append(d.bird.unread, d.attach(s)...)
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(d.Ports)), func(p *Port) bool { return len(p.Addrs) > 0 }) {
			d.bird.unread = append(d.bird.unread, "its addresses: bird.conf has none, and etc/network/interfaces neither")
		}
		for _, line := range d.bird.unread {
			n.Unread = append(n.Unread, name+": "+line)
		}
	}
}

// attach gives a session its port, and says what is not known of it.
func (d *Device) attach(s *birdSession) (unread []string) {
	if s.port = cmp.Or(s.port, d.towards(s.to)); s.port == "" {
		return []string{fmt.Sprintf("bird.conf protocol %s: no port has a network with %s", s.name, s.to)}
	}
	b := d.BGP
	if b.Sessions[s.port] != nil {
		return []string{fmt.Sprintf("bird.conf protocol %s: %s has two sessions", s.name, s.port)}
	}
	b.Neighbours = append(b.Neighbours, s.port)
	b.named[s.port], b.Sessions[s.port], b.Guards[s.port] = true, s, s.guard
	if p := d.port(s.port); s.from.IsValid() && s.from != p.Local && !p.owns(s.from) {
		unread = append(unread, fmt.Sprintf("bird.conf protocol %s: local %s is not an address of %s", s.name, s.from, s.port))
	}
	if p := d.port(s.port); p.Peer != nil && s.to.IsLinkLocalUnicast() && !p.Peer.Port.Local.IsValid() {
		unread = append(unread,
			fmt.Sprintf("bird.conf protocol %s: whose %s is; the hardware address of %s is in no file", s.name, s.to, p.Peer))
	}
	return unread
}

// towards is the port with a network that an address is in; "" if there is none.
func (d *Device) towards(a netip.Addr) (port string) {
	for _, name := range slices.Sorted(maps.Keys(d.Ports)) {
		if slices.ContainsFunc(d.Ports[name].Addrs, func(x netip.Prefix) bool { return x.Contains(a) && x.Addr() != a }) {
			port = name
		}
	}
	return port
}

// refuses says why a session of bird.conf does not come up with what is at the other end of its cable; nothing if it does.
func (b *BGP) refuses(port string, far *End) string {
	s := b.Sessions[port]
	switch {
	case s == nil:
		return ""
	case s.off != "":
		return "protocol " + s.name + " " + s.off
	case s.as != 0 && far.Device.BGP != nil && s.as != far.Device.BGP.ASN:
		return fmt.Sprintf("protocol %s wants AS number %d, and %s has %d", s.name, s.as, far.Device.Name, far.Device.BGP.ASN)
	case far.Port.Local != s.to && !far.Port.owns(s.to):
		return fmt.Sprintf("protocol %s wants %s, and %s does not have it", s.name, s.to, far)
	}
	return ""
}

// shut are sessions that a network does not pass: by the router that would tell of it, and the cable.
type shut map[[2]int32]bool

// filters finds the sessions that networks do not pass, and networks that the kernel does not get.
func (n *Net) filters() {
	if !slices.ContainsFunc(n.routers, func(d *Device) bool { return d.bird != nil }) {
		return
	}
	for _, key := range slices.SortedFunc(maps.Keys(n.prefixes), netip.Prefix.Compare) {
		x := n.prefixes[key]
		x.shut = shut{}
		for _, d := range n.routers {
			own := slices.Contains(x.origins, d.id)
			for _, e := range n.sessions[d.id] {
				if !n.passes(d, e, key, own) {
					x.shut[[2]int32{d.id, e.cable}] = true
				}
			}
			if !own && len(x.origins) > 0 && d.bird.keeps(key) {
				n.Unread = append(n.Unread,
					fmt.Sprintf("%s bird.conf protocol kernel: it keeps %s from the kernel, and BGP may tell others of it", d.Name, key))
			}
		}
		x.closed = fmt.Sprint(x.shut)
	}
}

// keeps reports whether the kernel does not get a network that BGP learns.
func (f *birdFile) keeps(p netip.Prefix) bool {
	return f != nil && f.kernel != nil && !f.kernel(p, false)
}

// passes reports whether a network passes a session: the export at one end, and the import at the other.
func (n *Net) passes(d *Device, e edge, p netip.Prefix, own bool) bool {
	here, there := n.cables[e.cable].a, n.cables[e.cable].b
	if here.on != d {
		here, there = there, here
	}
	if s := d.BGP.Sessions[here.Name]; s != nil && !s.out(p, own) {
		return false
	}
	s := there.on.BGP.Sessions[there.Name]
	return s == nil || s.in(p, false)
}
