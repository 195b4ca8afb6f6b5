package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/floor"
	"github.com/weft-fabric/weft/view/draw"
	"github.com/weft-fabric/weft/view/scene"
)

// sceneQuestion asks for the cluster by its network or, with layout floor, by its racks.
type sceneQuestion struct {
	File
	Layout string `json:"layout"`
}

// scene returns the places of all parts. Links are sent as packed integers.
func (j *job) scene(q sceneQuestion) (any, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return nil, err
	}
	drawn, err := b.layout(q.Layout)
	if err != nil {
		return nil, err
	}
	s := *drawn
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

// layout is a cluster's scene by the name of its layout.
func (b *built) layout(name string) (*scene.Scene, error) {
	switch name {
	case "", "network":
		return b.scene, nil
	case "floor":
		plan, err := b.floor()
		if err != nil {
			return nil, err
		}
		return scene.Floor(b.c.Graph, plan), nil
	}
	return nil, fmt.Errorf("there is no layout %q; known: network, floor", name)
}

// floor is where everything stands: as the file says or, if it does not, as it would stand by default.
func (b *built) floor() (*floor.Plan, error) {
	if b.c.Floor != nil {
		return b.c.Floor, nil
	}
	in := floor.Default()
	for {
		plan, problem := floor.Make(b.c.Graph, b.c.Catalog, in, nil)
		if problem != nil {
			return nil, problem
		}
		// Many racks stand in longer rows, so that the hall is not a corridor.
		row := min(200, int(1.6*math.Sqrt(float64(len(plan.Racks)))))
		if row <= in.Row {
			return plan, nil
		}
		in.Row = row
	}
}

type linksQuestion struct {
	sceneQuestion
	Block int `json:"block"`
}

// links returns the links inside one block, which the page draws only when it is looked at closely.
func (j *job) links(q linksQuestion) (any, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return nil, err
	}
	s, err := b.layout(q.Layout)
	if err != nil {
		return nil, err
	}
	if q.Block < 0 || q.Block >= len(s.Blocks) {
		return nil, fmt.Errorf("there is no block %d; the cluster has %d", q.Block, len(s.Blocks))
	}
	return map[string]any{"block": q.Block, "links": ints(scene.BlockLinks(b.c.Graph, s, q.Block))}, nil
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

// part describes one part and the first of its links.
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
		list = append(list, joint{Name: g.LinkName(e.Link), Node: int(e.Peer), Peer: g.NodeName(e.Peer), Kind: g.Class(e.Link).String(),
			Rate: g.Rate(e.Link).String()})
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
