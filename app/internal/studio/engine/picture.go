package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/hostlist"
	"github.com/weft-fabric/weft/view/draw"
	"github.com/weft-fabric/weft/view/scene"
)

func (j *job) scene(f File) (any, error) {
	b, err := j.cluster(f)
	if err != nil {
		return nil, err
	}
	s := *b.scene
	links := s.Links
	s.Links = nil
	return struct {
		*scene.Scene
		Links ints `json:"links"`
	}{&s, links}, nil
}

// ints are numbers that are written as bytes in base64: smaller than JSON's and quicker to read.
type ints []int32

func (list ints) MarshalText() ([]byte, error) {
	b := make([]byte, 0, 4*len(list))
	for _, v := range list {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return base64.StdEncoding.AppendEncode(nil, b), nil
}

// longs are the same for numbers up to 2^53, as a page's numbers are.
type longs []int64

func (list longs) MarshalText() ([]byte, error) {
	b := make([]byte, 0, 8*len(list))
	for _, v := range list {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
	}
	return base64.StdEncoding.AppendEncode(nil, b), nil
}

type linksQuestion struct {
	File
	Block int `json:"block"`
}

func (j *job) links(q linksQuestion) (any, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return nil, err
	}
	if q.Block < 0 || q.Block >= len(b.scene.Blocks) {
		return nil, fmt.Errorf("there is no block %d; the cluster has %d", q.Block, len(b.scene.Blocks))
	}
	return map[string]any{"block": q.Block, "links": ints(scene.BlockLinks(b.c.Graph, b.scene, q.Block))}, nil
}

type partQuestion struct {
	File
	Node int `json:"node"`
}

// joint is a link of a part.
type joint struct {
	Name string `json:"name"` // of the link, as --fail takes it
	Node int    `json:"node"` // at the other end
	Peer string `json:"peer"`
	Kind string `json:"kind"`
	Rate string `json:"rate"` // one way
}

// mostJoints bounds what the page lists of one part.
const mostJoints = 256

func (j *job) part(q partQuestion) (any, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return nil, err
	}
	g := b.c.Graph
	if q.Node < 0 || q.Node >= len(g.Nodes) {
		return nil, fmt.Errorf("there is no part %d; the cluster has %d", q.Node, len(g.Nodes))
	}
	id := topo.NodeID(q.Node)
	n := &g.Nodes[id]
	list := []joint{}
	edges := g.Edges(id)
	for _, e := range edges[:min(len(edges), mostJoints)] {
		list = append(list, joint{Name: g.LinkName(e.Link), Node: int(e.Peer), Peer: g.NodeName(e.Peer), Kind: g.Class(e.Link).String(), Rate: g.Rate(e.Link).String()})
	}
	host := ""
	if n.Host != topo.None {
		host = g.Hosts[n.Host].Name
	}
	return map[string]any{"node": q.Node, "name": g.NodeName(id), "kind": n.Kind.String(), "model": n.Model, "host": host, "tier": n.Tier,
		"rail": n.Rail, "pod": n.Pod, "rack": n.Rack, "links": list, "all_links": len(edges)}, nil
}

func (j *job) picture(f File) (any, error) {
	b, err := j.cluster(f)
	if err != nil {
		return nil, err
	}
	var svg bytes.Buffer
	if err := draw.Cluster(&svg, b.c.Graph, draw.Options{}); err != nil {
		return nil, err
	}
	return map[string]string{"svg": svg.String(), "name": b.c.Name}, nil
}

type editQuestion struct {
	File
	By int `json:"by"` // hosts or, of a preset, units; negative to take some away
}

// edit changes how many hosts a file has, in its text: the first hostlist under hosts, or the first parameter of a preset.
// Everything else of the text stays as it is.
func (j *job) edit(q editQuestion) (any, error) {
	text := grow(q.Text, q.By)
	if text == "" {
		return nil, &Problem{Text: "this file has no list of hosts such as \"n[0-31]\", and no preset with params, to make larger; edit its text"}
	}
	if _, err := j.cluster(File{text}); err != nil {
		return nil, err
	}
	return map[string]string{"text": text}, nil
}

var (
	hostKey   = regexp.MustCompile(`(?m)^(\s+["']?)([A-Za-z][\w-]*)\[0*(\d+)-(\d+)\](["']?\s*:)`)
	paramPart = regexp.MustCompile(`(?m)^(params:\s*\{?\s*[\w-]+:\s*)(\d+)`)
)

func grow(text string, by int) string {
	if at := strings.Index(text, "\nhosts:"); at >= 0 || strings.HasPrefix(text, "hosts:") {
		at = max(at, 0)
		m := hostKey.FindStringSubmatchIndex(text[at:])
		if m == nil {
			return ""
		}
		first, _ := strconv.Atoi(text[at+m[6] : at+m[7]])
		last, err := strconv.Atoi(text[at+m[8] : at+m[9]])
		if err != nil || last+by < first || last+by >= hostlist.MaxNames {
			return ""
		}
		return text[:at+m[8]] + strconv.Itoa(last+by) + text[at+m[9]:]
	}
	if m := paramPart.FindStringSubmatchIndex(text); m != nil {
		n, err := strconv.Atoi(text[m[4]:m[5]])
		if err != nil || n+by < 1 {
			return ""
		}
		return text[:m[4]] + strconv.Itoa(n+by) + text[m[5]:]
	}
	return ""
}
