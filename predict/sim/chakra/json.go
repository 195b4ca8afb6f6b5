package chakra

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Chakra has two forms of JSON beside protobuf:
//
//	{"workload_graph": [{"Id": 0, "Name": ..., "NodeType": 7, "data_deps": [], "runtime": 5, ...}, ...]}   one object, for its feeder
//	{"version": "0.0.4"} {"id": "0", "type": "COMM_COLL_NODE", "attr": [...]} ...                        one after the other, by chakra_jsonizer
//
// The feeder reads no control dependencies of the first form, and those of traces that were cut short name nodes that are not
// there; so they are not read here either.

// isJSON reports whether a trace is in JSON. A protobuf trace may begin with a brace, too, as a length of 123, but no quote
// or bracket follows it.
func isJSON(in *bufio.Reader) bool {
	head, _ := in.Peek(512)
	opened := false
	for _, c := range head {
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		case !opened && c == '{':
			opened = true
		default:
			return opened && (c == '"' || c == '}')
		}
	}
	return opened && len(head) < 512
}

// integer is a number, or one in quotes as protobuf's JSON has 64 bits.
type integer int64

func (i *integer) UnmarshalJSON(b []byte) error {
	s := string(b)
	if len(s) > 1 && s[0] == '"' {
		s = s[1 : len(s)-1]
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		u, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return fmt.Errorf("%s is not a whole number", b)
		}
		v = int64(u)
	}
	*i = integer(v)
	return nil
}

// jsonNode is a node in either form.
type jsonNode struct {
	ID   *integer `json:"id"` // Id, too: Go's reader takes either case
	Name string   `json:"name"`

	// The feeder's form.
	NodeType *integer  `json:"NodeType"`
	DataDeps []integer `json:"data_deps"`
	Runtime  integer   `json:"runtime"`
	CPU      bool      `json:"is_cpu_op"`
	Ops      integer   `json:"num_ops"`
	Tensor   *integer  `json:"tensor_size"`
	Size     *integer  `json:"comm_size"`
	Op       *integer  `json:"comm_type"`
	Src      *integer  `json:"comm_src"`
	Dst      *integer  `json:"comm_dst"`
	Tag      integer   `json:"comm_tag"`
	Group    string    `json:"pg_name"`

	// protobuf's own.
	Type     json.RawMessage              `json:"type"`
	Ctrl     []integer                    `json:"ctrlDeps"`
	Data     []integer                    `json:"dataDeps"`
	Start    integer                      `json:"startTimeMicros"`
	Duration integer                      `json:"durationMicros"`
	Attr     []map[string]json.RawMessage `json:"attr"`

	Version string     `json:"version"`
	Schema  string     `json:"schema"`
	Graph   []jsonNode `json:"workload_graph"`
}

var kindNames = map[string]Kind{"METADATA_NODE": Metadata, "MEM_LOAD_NODE": Load, "MEM_STORE_NODE": Store, "COMP_NODE": Compute,
	"COMM_SEND_NODE": Send, "COMM_RECV_NODE": Recv, "COMM_COLL_NODE": Collect}

// readJSON reads the nodes of a trace in JSON.
func readJSON(in io.Reader) (version string, nodes []Node, err error) {
	d := json.NewDecoder(in)
	for count := 0; ; count++ {
		var x jsonNode
		if err := d.Decode(&x); errors.Is(err, io.EOF) {
			break
		} else if errors.Is(err, io.ErrUnexpectedEOF) {
			return "", nil, fmt.Errorf("the file ends within object %d", count+1)
		} else if err != nil {
			return "", nil, fmt.Errorf("object %d of the file: %w", count+1, err)
		}
		switch {
		case x.Schema != "":
			return "", nil,
				fmt.Errorf("this is PyTorch's own execution trace (schema %s); link it with its device trace and convert it: chakra_trace_link, then chakra_converter",
					x.Schema)
		case count == 0 && x.Graph != nil:
			for i := range x.Graph {
				n, err := x.Graph[i].node(true)
				if err != nil {
					return "", nil, fmt.Errorf("node %d of the file: %w", i+1, err)
				}
				nodes = append(nodes, n)
			}
		case count == 0 && x.ID == nil && x.Type == nil:
			version = x.Version
		default:
			n, err := x.node(false)
			if err != nil {
				return "", nil, fmt.Errorf("node %d of the file: %w", len(nodes)+1, err)
			}
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 && version == "" {
		return "", nil, errors.New(`no node in the file; want {"workload_graph": [...]} or what chakra_jsonizer writes`)
	}
	return version, nodes, nil
}

// node is the node of either form.
func (x *jsonNode) node(feeder bool) (Node, error) {
	n := Node{Name: x.Name, Op: -1, Peer: -1}
	if x.ID != nil {
		n.ID = uint64(*x.ID)
	} else if feeder { // protobuf leaves a 0 out
		return n, fmt.Errorf("%q has no Id", x.Name)
	}
	if !feeder {
		return x.message(n)
	}
	if x.NodeType == nil || *x.NodeType < 1 || *x.NodeType > maxKind {
		return n, fmt.Errorf("node %d (%s): NodeType is missing or none of 1 to %d", n.ID, n.Name, maxKind)
	}
	n.Kind, n.Data, n.CPU, n.Group, n.Tag = Kind(*x.NodeType), numbers(x.DataDeps), x.CPU, x.Group, int64(x.Tag)
	if x.Runtime < 0 || x.Ops < 0 {
		return n, fmt.Errorf("node %d (%s): runtime %d, num_ops %d; want none below 0", n.ID, n.Name, x.Runtime, x.Ops)
	}
	n.Duration, n.Ops = uint64(x.Runtime), uint64(x.Ops)
	for _, size := range []*integer{x.Tensor, x.Size} {
		if size == nil {
			continue
		}
		if *size < 0 {
			return n, fmt.Errorf("node %d (%s): a size of %d", n.ID, n.Name, *size)
		}
		n.Bytes = uint64(*size)
	}
	if x.Op != nil {
		n.Op = int64(*x.Op)
	}
	if peer := map[Kind]*integer{Send: x.Dst, Recv: x.Src}[n.Kind]; peer != nil {
		n.Peer = int64(*peer)
	}
	return n, n.check()
}

// message is a node as protobuf writes one in JSON.
func (x *jsonNode) message(n Node) (Node, error) {
	var name string
	var number integer
	if json.Unmarshal(x.Type, &name) == nil {
		n.Kind = kindNames[name]
	} else if json.Unmarshal(x.Type, &number) == nil && number > 0 && number <= maxKind {
		n.Kind = Kind(number)
	}
	if n.Kind == 0 {
		return n, fmt.Errorf("node %d (%s) is of type %s, which is none", n.ID, n.Name, x.Type)
	}
	n.Control, n.Data, n.Start, n.Duration = numbers(x.Ctrl), numbers(x.Data), uint64(x.Start), uint64(x.Duration)
	for _, a := range x.Attr {
		var name, text string
		var value integer
		_ = json.Unmarshal(a["name"], &name)
		for key, raw := range a {
			switch key {
			case "name", "docString":
			case "boolVal":
				var yes bool
				if json.Unmarshal(raw, &yes) == nil && yes {
					value = 1
				}
			case "stringVal":
				if json.Unmarshal(raw, &text) == nil {
					if v, err := strconv.ParseInt(text, 10, 64); err == nil {
						value = integer(v)
					}
				}
			default:
				var f float64
				if value.UnmarshalJSON(raw) != nil && json.Unmarshal(raw, &f) == nil {
					value = integer(f)
				}
			}
		}
		if err := n.set(name, int64(value), text); err != nil {
			return n, err
		}
	}
	return n, n.check()
}

func numbers(list []integer) []uint64 {
	var out []uint64
	for _, v := range list {
		out = append(out, uint64(v))
	}
	return out
}
