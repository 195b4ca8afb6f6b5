package format

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// ibNode is a switch, a channel adapter or a router of an InfiniBand subnet, as a file tells of it.
type ibNode struct {
	id     string // S-0002c90300001234, or any name in a file for ibsim
	sw     bool
	guid   uint64 // 0 if the file does not say
	ports  int
	desc   string
	attrs  topo.Attrs
	port   map[int]*ibPort
	line   int
	listed bool // has a record of its own, and is not only somebody's peer
	node   topo.NodeID
}

// ibPort is an end of a cable.
type ibPort struct {
	peer     string // id of the node at the other end
	peerPort int
	width    int
	speed    string
	guid     uint64
	lid, lmc string // of an adapter's port
	peerLID  string
	more     string // what the line says after width and speed
	line     int
	implied  bool // known from the other end's line only
}

// ibNet is a subnet as read.
type ibNet struct {
	dialect string
	nodes   map[string]*ibNode
	order   []*ibNode
}

// Limits of a file. A switch has at most 254 external ports.
const (
	maxIBNodes = 1 << 19 // more than a subnet has: 131,072 adapters of several subnets may come in one file
	maxIBPorts = 254
)

// node returns the node of that id, and makes it where it is named for the first time, which may be as a peer.
func (n *ibNet) node(id string, sw bool, line int) (*ibNode, error) {
	if v, ok := n.nodes[id]; ok {
		if v.sw != sw && v.listed {
			return nil, errorAt(n.dialect, line, "%s is a switch in one line and none in another", clip(id))
		}
		v.sw = sw
		return v, nil
	}
	if len(n.order) == maxIBNodes {
		return nil, errorAt(n.dialect, line, "more than %d nodes", maxIBNodes)
	}
	v := &ibNode{id: id, sw: sw, attrs: topo.Attrs{}, port: map[int]*ibPort{}, line: line}
	n.nodes[id] = v
	n.order = append(n.order, v)
	return v, nil
}

// plug notes a port's cable; a second word on the same port must agree.
func (n *ibNet) plug(v *ibNode, port int, p *ibPort) error {
	old, ok := v.port[port]
	if ok && (old.peer != p.peer || old.peerPort != p.peerPort) && !v.aggregation() {
		return errorAt(n.dialect, p.line, "port %d of %s leads to port %d of %s, but to port %d of %s in line %d",
			port, v.name(), p.peerPort, p.peer, old.peerPort, old.peer, old.line)
	}
	if !ok || old.implied {
		v.port[port] = p
	}
	v.ports = max(v.ports, port)
	return nil
}

func (v *ibNode) name() string {
	if v.desc != "" {
		return strconv.Quote(clip(v.desc))
	}
	return clip(v.id)
}

// aggregation reports whether a node is the SHARP engine of a switch, which
// shows up in the subnet as a channel adapter at the switch's last port.
func (v *ibNode) aggregation() bool { return !v.sw && strings.Contains(v.desc, "Aggregation Node") }

// inventGUID derives a GUID from a name: a locally administered EUI-64, so it is
// nobody's, and the same for the same name in every export.
func inventGUID(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()>>8&^0xff | 0x02<<56
}

// StandInGUID is the GUID that exports give a node whose real one nobody knows:
// a switch by its name, a NIC by "host nic".
func StandInGUID(name string) uint64 { return inventGUID(name) }

func parseGUID(s string) (uint64, bool) {
	v, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimPrefix(s, "0x"), "0X"), 16, 64)
	return v, err == nil
}

// widthSpeed reads "4xHDR"; ok is false for anything else, and for the "???" of a port that is down.
func widthSpeed(s string) (width int, speed string, ok bool) {
	w, speed, found := strings.Cut(s, "x")
	width, err := strconv.Atoi(w)
	if !found || err != nil || width < 1 || width > 16 {
		return 0, "", false
	}
	_, ok = ibClass(width, speed)
	return width, strings.ToUpper(speed), ok
}

// decodeDiscover reads what ibnetdiscover prints, with or without -p. NICs are
// put under hosts by their descriptions, "n17 mlx5_3" is NIC mlx5_3 of host n17;
// adapters that still have their maker's description are told apart by GUID, and
// so are those that share one. SHARP aggregation nodes stay with their switch as
// attributes. Tiers are inferred from the wiring. Of ports that are down only
// the number remains, as the least number of ports that the switch has.
func decodeDiscover(name string, data []byte) (*topo.Graph, error) {
	read := readClassic
	if reportForm(data[:min(len(data), detectBytes)]) {
		read = readReport
	}
	n := &ibNet{dialect: "ibnetdiscover", nodes: map[string]*ibNode{}}
	if err := read(n, data); err != nil {
		return nil, err
	}
	for _, v := range n.order {
		if v.guid == 0 {
			return nil, errorAt(n.dialect, v.line, "%s has no GUID; expected S- or H- and 16 hexadecimal digits", v.name())
		}
	}
	return n.graph(name)
}

// decodeIbsim reads a net file of the simulator: the classic form of
// ibnetdiscover, with free names in the place of GUIDs. A link without width and
// speed is 4xSDR, as the simulator starts it.
func decodeIbsim(name string, data []byte) (*topo.Graph, error) {
	n := &ibNet{dialect: "ibsim", nodes: map[string]*ibNode{}}
	if err := readClassic(n, data); err != nil {
		return nil, err
	}
	return n.graph(name)
}

func detectDiscover(head []byte) bool {
	return reportForm(head) || nodeLine(head, func(id string) bool {
		_, hex, ok := strings.Cut(id, "-")
		_, isGUID := parseGUID(hex)
		return ok && isGUID && len(hex) == 16
	})
}

func detectIbsim(head []byte) bool { return nodeLine(head, func(string) bool { return true }) }

// nodeLine reports whether a line opens a node's record with an id that fits.
func nodeLine(head []byte, fits func(id string) bool) bool {
	for line := range bytes.Lines(head) {
		if _, _, id, _, ok := nodeHead(strings.TrimRight(string(line), "\r\n")); ok {
			return fits(id)
		}
	}
	return false
}

// nodeHead reads `Switch 41 "S-0002c90300001234"  # ...`.
func nodeHead(line string) (sw bool, ports int, id, rest string, ok bool) {
	word, rest, _ := strings.Cut(strings.Replace(line, "\t", " ", 1), " ")
	switch word {
	case "Switch":
		sw = true
	case "Ca", "Hca", "Rt":
	default:
		return false, 0, "", "", false
	}
	digits, rest, found := strings.Cut(rest, `"`)
	ports, err := strconv.Atoi(strings.TrimSpace(digits))
	if !found || err != nil || ports < 0 || ports > maxIBPorts {
		return false, 0, "", "", false
	}
	id, rest, found = strings.Cut(rest, `"`)
	return sw, ports, id, rest, found && id != "" && len(id) <= 128
}

// readClassic reads records of nodes, each with a line a connected port.
func readClassic(n *ibNet, data []byte) error {
	var current *ibNode
	pending := topo.Attrs{}
	seen := false
	err := lines(data, func(number int, line string) error {
		if len(line) > 4096 {
			return errorAt(n.dialect, number, "a line of %d bytes; expected records of Switch and Ca with their ports", len(line))
		}
		line = strings.TrimSpace(line)
		key, value, assigned := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#' || strings.HasPrefix(line, "ibwarn:") || strings.HasPrefix(line, "Non-Chassis") ||
			strings.HasPrefix(line, "Chassis") || strings.HasPrefix(line, "Spine") || strings.HasPrefix(line, "Line"):
			return nil
		case line[0] == '[':
			if current == nil {
				return errorAt(n.dialect, number, "a port before the first node; expected Switch or Ca")
			}
			return n.portLine(current, number, line)
		case assigned && !strings.ContainsAny(key, " \t\""):
			switch key {
			case "vendid", "devid", "sysimgguid", "switchguid", "caguid", "rtguid", "hcaguid", "nodeguid":
				v, _, _ := strings.Cut(value, "(")
				if _, ok := parseGUID(strings.TrimSpace(v)); !ok {
					return errorAt(n.dialect, number, "%s is %q; expected a hexadecimal number", key, clip(value))
				}
				pending[key] = strings.TrimSpace(v)
			}
			return nil
		}
		sw, ports, id, rest, ok := nodeHead(line)
		if !ok {
			return errorAt(n.dialect, number,
				`found %q; expected Switch, Ca or Rt with a number of ports (at most %d) and a quoted id, or a port like [1] "S-0002c90300001234"[2]`,
				clip(line), maxIBPorts)
		}
		seen = true
		v, err := n.node(id, sw, number)
		if err != nil {
			return err
		}
		if v.listed {
			return errorAt(n.dialect, number, "a second record of %s; the first is in line %d", clip(id), v.line)
		}
		v.listed, v.ports, v.line = true, max(v.ports, ports), number
		current = v
		v.header(pending, rest)
		pending = topo.Attrs{}
		return nil
	})
	if err != nil {
		return err
	}
	if !seen {
		return errorAt(n.dialect, 1, `no node found; expected records that start like Switch 41 "S-0002c90300001234"`)
	}
	return nil
}

// header takes what stands around a node's id: the numbers before it and the comment after.
func (v *ibNode) header(pending topo.Attrs, rest string) {
	v.numbers(pending)
	_, comment, _ := strings.Cut(rest, "#")
	if open, end := strings.IndexByte(comment, '"'), strings.LastIndexByte(comment, '"'); open >= 0 && end > open {
		v.desc, rest = comment[open+1:end], comment[end+1:]
	} else {
		rest = comment
	}
	if !v.sw {
		return // an adapter's LIDs belong to its ports
	}
	if strings.Contains(rest, "enhanced port 0") {
		v.attrs["ib.port0"] = "enhanced"
	}
	v.ownLIDs(rest)
}

// numbers takes a node's GUID and what else is written before its id. The GUID of a whole system is usually its node's.
func (v *ibNode) numbers(pending topo.Attrs) {
	for _, key := range []string{"switchguid", "caguid", "rtguid", "hcaguid", "nodeguid"} {
		if g, ok := parseGUID(pending[key]); ok && g != 0 {
			v.guid = g
		}
	}
	v.idGUID()
	for _, key := range []string{"vendid", "devid", "sysimgguid"} {
		if g, ok := parseGUID(pending[key]); ok && g != 0 && !(key == "sysimgguid" && g == v.guid) {
			v.attrs["ib."+key] = fmt.Sprintf("0x%x", g)
		}
	}
}

// ownLIDs takes the LID of a switch and its mask from a comment.
func (v *ibNode) ownLIDs(comment string) {
	words := strings.Fields(comment)
	for i := 0; i+1 < len(words); i++ {
		if (words[i] == "lid" || words[i] == "lmc") && words[i+1] != "0" && isNumber(words[i+1]) {
			v.attrs["ib."+words[i]] = words[i+1]
		}
	}
}

func isNumber(s string) bool {
	v, err := strconv.ParseUint(s, 10, 32)
	return err == nil && strconv.FormatUint(v, 10) == s
}

// idGUID takes a node's GUID from an id like S-0002c90300001234.
func (v *ibNode) idGUID() {
	if kind, hex, ok := strings.Cut(v.id, "-"); ok && len(hex) == 16 && len(kind) == 1 && v.guid == 0 {
		v.guid, _ = parseGUID(hex)
	}
}

// bracket reads "[12]" and an "[ext 3]" after it.
func bracket(s string) (port int, rest string, ok bool) {
	if s == "" || s[0] != '[' {
		return 0, s, false
	}
	digits, rest, found := strings.Cut(s[1:], "]")
	port, err := strconv.Atoi(strings.TrimSpace(digits))
	if !found || err != nil || port < 1 || port > maxIBPorts {
		return 0, s, false
	}
	if strings.HasPrefix(rest, "[ext") {
		_, rest, _ = strings.Cut(rest, "]")
	}
	return port, rest, true
}

// parens reads "(2c90300001235)", a port's GUID.
func parens(s string) (guid uint64, rest string) {
	if strings.HasPrefix(s, "(") {
		if hex, after, found := strings.Cut(s[1:], ")"); found {
			guid, _ = parseGUID(hex)
			return guid, after
		}
	}
	return 0, s
}

// portLine reads `[1](guid)  "S-..."[9](guid)  # lid 6 lmc 0 "peer's description" lid 7 4xHDR s=4`.
func (n *ibNet) portLine(v *ibNode, number int, line string) error {
	bad := func(what string) error {
		return errorAt(n.dialect, number, `%s in %q; expected a port like [1] "S-0002c90300001234"[2] # "leaf3" lid 7 4xHDR`, what, clip(line))
	}
	port, rest, ok := bracket(line)
	if !ok {
		return bad("no port number from 1 to 254")
	}
	p := &ibPort{width: 4, speed: unknownSpeed, line: number}
	if n.dialect == "ibsim" {
		p.speed = "SDR" // as the simulator starts a link
	}
	p.guid, rest = parens(rest)
	rest = strings.TrimSpace(rest)
	if rest == "" || rest[0] == '#' {
		v.ports = max(v.ports, port)
		return nil // a port without a cable
	}
	if rest[0] != '"' {
		return bad("no quoted id of a peer")
	}
	id, rest, ok := strings.Cut(rest[1:], `"`)
	if !ok || id == "" || len(id) > 128 {
		return bad("no quoted id of a peer")
	}
	if p.peerPort, rest, ok = bracket(rest); !ok {
		p.peerPort = 1 // as the simulator takes it
		if strings.HasPrefix(rest, "[") {
			return bad("no port number of the peer from 1 to 254")
		}
	}
	peerGUID, rest := parens(rest)
	p.peer = id
	sw := strings.HasPrefix(id, "S-")
	if known, ok := n.nodes[id]; ok {
		sw = known.sw
	} else if n.dialect == "ibsim" && !strings.HasPrefix(id, "H-") {
		sw = !v.sw // a guess, until its own record comes
	}
	peer, err := n.peer(id, sw, number)
	if err != nil {
		return err
	}
	p.comment(rest, v, peer)
	if err := n.plug(v, port, p); err != nil {
		return err
	}
	// The other end may have a record of its own, before or after; where it has none this line speaks for it.
	back := &ibPort{peer: v.id, peerPort: port, width: p.width, speed: p.speed, guid: peerGUID, peerLID: p.lid, line: number, implied: true}
	if _, has := peer.port[p.peerPort]; !has && !peer.listed {
		return n.plug(peer, p.peerPort, back)
	}
	return nil
}

// comment reads what follows a port: the peer's description, lids, width and speed.
func (p *ibPort) comment(rest string, v, peer *ibNode) {
	_, comment, _ := strings.Cut(rest, "#")
	before, after := comment, comment
	if open, end := strings.IndexByte(comment, '"'), strings.LastIndexByte(comment, '"'); open >= 0 && end > open {
		before, after = comment[:open], comment[end+1:]
		if peer.desc == "" {
			peer.desc = comment[open+1 : end]
		}
	}
	words := strings.Fields(before)
	for i := 0; i+1 < len(words) && !v.sw; i++ {
		if isNumber(words[i+1]) && words[i+1] != "0" {
			switch words[i] {
			case "lid":
				p.lid = words[i+1]
			case "lmc":
				p.lmc = words[i+1]
			}
		}
	}
	words = strings.Fields(after)
	for i, w := range words {
		if w == "lid" && i+1 < len(words) && isNumber(words[i+1]) && words[i+1] != "0" {
			p.peerLID = words[i+1]
		}
		if width, speed, ok := widthSpeed(w); ok {
			p.width, p.speed = width, speed
			if more := strings.Join(words[i+1:], " "); more != simFallback {
				p.more = more
			}
			break
		}
	}
}

// peer finds or makes the node that a port line names.
func (n *ibNet) peer(id string, sw bool, line int) (*ibNode, error) {
	if v, ok := n.nodes[id]; ok {
		return v, nil
	}
	v, err := n.node(id, sw, line)
	if err == nil {
		v.idGUID()
	}
	return v, err
}
