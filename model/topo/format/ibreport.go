package format

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// reportForm reports whether the first line that is not blank or a comment is one of ibnetdiscover -p.
func reportForm(head []byte) bool {
	for line := range bytes.Lines(head) {
		text := strings.TrimSpace(string(line[:min(len(line), 256)]))
		if text == "" || text[0] == '#' || strings.HasPrefix(text, "ibwarn:") {
			continue
		}
		_, _, ok := reportEnd(text)
		return ok
	}
	return false
}

// reportSide is one end of a line: "SW  1719 10 0x7cfe9003009ce5b0".
type reportSide struct {
	sw   bool
	lid  string
	port int
	guid uint64
}

func (s reportSide) id() string {
	if s.sw {
		return fmt.Sprintf("S-%016x", s.guid)
	}
	return fmt.Sprintf("H-%016x", s.guid)
}

// reportEnd reads type, LID, port and GUID from the front of a text.
func reportEnd(s string) (side reportSide, rest string, ok bool) {
	var words [4]string
	rest = s
	for i := range words {
		words[i], rest = word(rest)
	}
	switch words[0] {
	case "SW":
		side.sw = true
	case "CA", "RT":
	default:
		return side, rest, false
	}
	port, err := strconv.Atoi(words[2])
	guid, isGUID := parseGUID(words[3])
	if !isNumber(words[1]) || err != nil || port < 0 || port > maxIBPorts || !isGUID || !strings.HasPrefix(words[3], "0x") {
		return side, rest, false
	}
	side.lid, side.port, side.guid = words[1], port, guid
	return side, rest, true
}

// readReport reads the lines of ibnetdiscover -p, one for each port of each node:
//
//	CA   134  1 0x7cfe9003003b4bde 4x EDR - SW  1719 10 0x7cfe9003009ce5b0 ( 'o0001 HCA-1' - 'ib-i1l1s01' )
//	SW  2052 37 0x506b4b03005c2740 4x ???                                    'ib-i4l1s01'
func readReport(n *ibNet, data []byte) error {
	return lines(data, func(number int, line string) error {
		text := strings.TrimSpace(line)
		if text == "" || text[0] == '#' || strings.HasPrefix(text, "ibwarn:") {
			return nil
		}
		bad := func(what string) error {
			return errorAt(n.dialect, number,
				"%s in %q; expected a line like SW 1719 10 0x7cfe9003009ce5b0 4x EDR - CA 134 1 0x7cfe9003003b4bde ( 'leaf1' - 'n1 HCA-1' )",
				what, clip(text))
		}
		if len(text) > 4096 {
			return bad("too much")
		}
		from, rest, ok := reportEnd(text)
		if !ok {
			return bad("no type, LID, port and GUID")
		}
		width, rest := word(rest)
		speed, rest := word(rest)
		if !strings.HasSuffix(width, "x") {
			return bad("no width and speed")
		}
		w, s, up := widthSpeed(width + speed)
		rest = strings.TrimSpace(rest)
		if !strings.HasPrefix(rest, "- ") { // no peer: the port is down
			v, err := n.reported(from, unquote(rest), number)
			if err != nil {
				return err
			}
			v.ports = max(v.ports, from.port)
			return nil
		}
		to, rest, ok := reportEnd(rest[2:])
		if !ok {
			return bad("no type, LID, port and GUID of the peer")
		}
		if from.port == 0 || to.port == 0 {
			return bad("a cable at port 0")
		}
		if !up {
			w, s = 4, unknownSpeed
		}
		mine, yours := descriptions(rest)
		v, err := n.reported(from, mine, number)
		if err != nil {
			return err
		}
		peer, err := n.reported(to, yours, number)
		if err != nil {
			return err
		}
		if err := n.plug(v, from.port, &ibPort{peer: to.id(), peerPort: to.port, width: w, speed: s, lid: lidOf(from), peerLID: lidOf(to),
			line: number}); err != nil {
			return err
		}
		return n.plug(peer, to.port, &ibPort{peer: from.id(), peerPort: from.port, width: w, speed: s, lid: lidOf(to), peerLID: lidOf(from),
			line: number, implied: true})
	})
}

func lidOf(s reportSide) string {
	if s.sw || s.lid == "0" {
		return ""
	}
	return s.lid
}

// reported finds or makes the node at one side of a line.
func (n *ibNet) reported(s reportSide, desc string, line int) (*ibNode, error) {
	v, err := n.node(s.id(), s.sw, line)
	if err != nil {
		return nil, err
	}
	if v.desc == "" {
		v.desc = desc
	}
	v.listed, v.guid = true, s.guid
	if s.sw && s.lid != "0" {
		v.attrs["ib.lid"] = s.lid
	}
	return v, nil
}

func word(s string) (first, rest string) {
	s = strings.TrimLeft(s, " \t")
	if end := strings.IndexAny(s, " \t"); end >= 0 {
		return s[:end], s[end:]
	}
	return s, ""
}

func unquote(s string) string {
	s = strings.TrimSpace(s)
	if len(s) >= 2 && s[0] == '\'' && s[len(s)-1] == '\'' {
		return s[1 : len(s)-1]
	}
	return s
}

// descriptions reads "( 'n1 HCA-1' - 'leaf1' )", with or without the quotes.
func descriptions(s string) (mine, yours string) {
	s = strings.TrimSpace(s)
	s = strings.TrimSuffix(strings.TrimPrefix(s, "("), ")")
	for _, between := range []string{"' - '", " - "} {
		if a, b, ok := strings.Cut(s, between); ok {
			if between == "' - '" {
				a, b = strings.TrimLeft(a, " \t")+"'", "'"+strings.TrimRight(b, " \t")
			}
			return unquote(a), unquote(b)
		}
	}
	return "", ""
}
