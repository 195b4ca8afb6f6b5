// Package format reads and writes topologies in the dialects of other tools,
// one file a dialect:
//
//	nccl-xml       what NCCL dumps with NCCL_TOPO_DUMP_FILE and reads with NCCL_TOPO_FILE
//	nvidia-smi     the matrix of `nvidia-smi topo -m`
//	ibnetdiscover  what `ibnetdiscover` and `ibnetdiscover -p` print
//	ibsim          the net file of the InfiniBand simulator
//	slurm          topology.conf and topology.yaml, tree and block
//	dot            Graphviz, to be looked at
//	json           the whole graph, nothing lost
//
// A decoder refuses what is not of its dialect, with the line, what was found
// there and what was expected. What a file says beyond the model is kept in the
// graph's attributes, so that decoding, encoding and decoding again gives the
// same graph.
package format

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// Dialect is one file format. Decode takes the name that the graph shall have;
// a host that the file leaves nameless takes it, too. A direction that makes no
// sense is nil.
type Dialect struct {
	Name    string
	Summary string
	Decode  func(name string, data []byte) (*topo.Graph, error)
	Encode  func(w io.Writer, g *topo.Graph) error

	// EncodeHost writes one host of several, for dialects that describe one; nil for the others.
	EncodeHost func(w io.Writer, g *topo.Graph, h topo.HostID) error

	detect func(head []byte) bool
}

// Dialects lists the dialects in the order in which Detect tries them.
func Dialects() []Dialect {
	return []Dialect{
		{"nccl-xml", "NCCL topology XML, of one host", told(decodeNCCL), encodeNCCL, encodeNCCLHost, detectNCCL},
		{"nvidia-smi", "the matrix of nvidia-smi topo -m, of one host", told(decodeSMI), encodeSMI, encodeSMIHost, detectSMI},
		{"json", "the whole graph, nothing lost", told(decodeJSON), encodeJSON, nil, detectJSON},
		{"slurm", "Slurm's topology.conf and topology.yaml, tree and block; topology.conf is written",
			told(decodeSlurm), encodeSlurm, nil, detectSlurm},
		{"ibnetdiscover", "ibnetdiscover's output, classic and -p", told(decodeDiscover), encodeDiscover, nil, detectDiscover},
		{"ibsim", "net file of the InfiniBand simulator", told(decodeIbsim), encodeIbsim, nil, detectIbsim},
		{"dot", "Graphviz", nil, encodeDOT, nil, nil},
	}
}

// bom is the mark that some editors put before a text.
var bom = []byte("\xef\xbb\xbf")

// told takes the mark off before a decoder sees the text.
func told(decode func(string, []byte) (*topo.Graph, error)) func(string, []byte) (*topo.Graph, error) {
	return func(name string, data []byte) (*topo.Graph, error) { return decode(name, bytes.TrimPrefix(data, bom)) }
}

// finish builds the graph; what is wrong with the whole, such as a name used twice, comes with the dialect's name.
func finish(dialect string, b *topo.Builder) (*topo.Graph, error) {
	g, err := b.Graph()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dialect, err)
	}
	return g, nil
}

// Find gives a dialect by name.
func Find(name string) (Dialect, error) {
	var known []string
	for _, d := range Dialects() {
		if d.Name == name {
			return d, nil
		}
		known = append(known, d.Name)
	}
	return Dialect{}, fmt.Errorf("unknown dialect %q; known: %s", name, strings.Join(known, ", "))
}

// detectBytes is how much of a file Detect looks at: enough for the longest
// comments seen at the top of a real file, a licence of some 1 KB.
const detectBytes = 64 << 10

// Detect guesses the dialect of a file from its first lines.
func Detect(data []byte) (Dialect, bool) {
	data = bytes.TrimPrefix(data, bom)
	head := data[:min(len(data), detectBytes)]
	for _, d := range Dialects() {
		if d.detect != nil && d.detect(head) {
			return d, true
		}
	}
	return Dialect{}, false
}

// errorAt says what is wrong in a line (counted from 1) of a dialect's file.
func errorAt(dialect string, line int, format string, args ...any) error {
	return fmt.Errorf("%s: line %d: %s", dialect, line, fmt.Sprintf(format, args...))
}

// clip shortens what an error quotes from a file.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// lines calls f for each line without its end, numbered from 1, until f fails.
func lines(data []byte, f func(number int, line string) error) error {
	for number := 1; len(data) > 0; number++ {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		if err := f(number, string(bytes.TrimSuffix(line, []byte{'\r'}))); err != nil {
			return err
		}
	}
	return nil
}

// maxLine is the longest line a line-based decoder reads; the longest real one,
// a Slurm switch with its nodes written out, stays below 100 KB.
const maxLine = 1 << 20

// hostName makes a name that a host may have: colons and blanks become dashes.
func hostName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r == ':' || r == 0x7f {
			return '-'
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSpace(s), "-"))
	if s == "" {
		return "host"
	}
	return s
}

// one gives the host that a dialect which describes one host is to describe: the
// only one there is, where hosts without GPUs do not count if others have some
// (a fabric's management servers are such). Of several the caller must choose.
func one(dialect string, g *topo.Graph) (topo.HostID, error) {
	if len(g.Hosts) == 0 {
		return topo.None, fmt.Errorf("%s describes a host and %q has none", dialect, g.Name)
	}
	var with []topo.HostID
	for h := range g.Hosts {
		if len(parts(g, topo.HostID(h), topo.GPU)) > 0 {
			with = append(with, topo.HostID(h))
		}
	}
	switch {
	case len(with) == 1:
		return with[0], nil
	case len(with) == 0 && len(g.Hosts) == 1:
		return 0, nil
	case len(with) == 0:
		with = []topo.HostID{0, 1}
	}
	return topo.None, fmt.Errorf("%s describes one host and %q has several, %q and %q among them; say which with --host",
		dialect, g.Name, g.Hosts[with[0]].Name, g.Hosts[with[1]].Name)
}

// parts lists the nodes of a kind in a host, in canonical order.
func parts(g *topo.Graph, h topo.HostID, kind topo.Kind) []topo.NodeID {
	var list []topo.NodeID
	for i, n := range g.HostNodes(h) {
		if n.Kind == kind {
			list = append(list, g.Hosts[h].First+topo.NodeID(i))
		}
	}
	return list
}
