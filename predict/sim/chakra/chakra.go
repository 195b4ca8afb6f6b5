// Package chakra reads, writes and runs Chakra execution traces, the MLCommons format
// that ASTRA-sim takes: a file a rank, in it a graph of computations and transfers.
//
//	name.0.et … name.N.et ─► Read ─► []Trace ─► Run on a cluster's graph ─► when each node ran, what waited for whom
//
// A file is a row of protobuf messages, each behind its length as a varint: first the
// metadata of the trace, then its nodes. JSON is read, too (json.go).
package chakra

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// Kind is what a node does.
type Kind uint64

// The kinds, with the numbers of the format.
const (
	Metadata  Kind = 1
	Load      Kind = 2
	Store     Kind = 3
	Compute   Kind = 4
	Send      Kind = 5
	Recv      Kind = 6
	Collect   Kind = 7
	maxKind        = 10 // storage, batch and checkpoint nodes are read and take their stated time
	maxString      = 1 << 16
	maxNode        = 1 << 26
)

// Collectives, with the numbers of the format.
const (
	AllReduce          = 0
	Reduce             = 1
	AllGather          = 2
	Gather             = 3
	Scatter            = 4
	Broadcast          = 5
	AllToAll           = 6
	ReduceScatter      = 7
	ReduceScatterBlock = 8
	Barrier            = 9
)

// Trace is what one rank does.
type Trace struct {
	Rank    int
	Version string
	Nodes   []Node
}

// Node is one thing that a rank does once what it depends on is done.
type Node struct {
	ID       uint64
	Name     string
	Kind     Kind
	Control  []uint64 // nodes that come before it
	Data     []uint64 // nodes whose results it takes
	Start    uint64   // in µs, where the trace was recorded
	Duration uint64   // in µs; 0 if the trace does not say
	CPU      bool     // it runs on the host's processor

	Ops   uint64 // floating point operations
	Bytes uint64 // of memory that a computation touches, or of a transfer: a rank's input
	Op    int64  // of a collective: AllReduce and its like
	Group string // of a collective: its process group; empty for all ranks
	Peer  int64  // of a send or receive: the other rank
	Tag   int64
}

// Read reads the trace of a rank.
func Read(r io.Reader, rank int) (*Trace, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	t := &Trace{Rank: rank}
	var err error
	if isJSON(in) {
		t.Version, t.Nodes, err = readJSON(in)
	} else {
		t.Version, t.Nodes, err = readMessages(in)
	}
	if err != nil {
		return nil, err
	}
	seen := map[uint64]bool{}
	for i, n := range t.Nodes {
		if seen[n.ID] {
			return nil, fmt.Errorf("node %d of the file: id %d is there twice", i+1, n.ID)
		}
		seen[n.ID] = true
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		// Converters cut traces and leave control dependencies on what came before. Chakra's reader knows no others than data's.
		n.Control = slices.DeleteFunc(n.Control, func(d uint64) bool { return !seen[d] })
		for _, d := range n.Data {
			if !seen[d] {
				return nil, fmt.Errorf("node %d (%s) depends on node %d, which is not in the trace", n.ID, n.Name, d)
			}
		}
	}
	return t, nil
}

// readMessages reads a row of protobuf messages.
func readMessages(in *bufio.Reader) (version string, nodes []Node, err error) {
	meta, err := message(in)
	if err == nil {
		version, err = metadata(meta)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the file is empty")
	}
	if err != nil {
		return "", nil, fmt.Errorf("metadata: %w", err)
	}
	for {
		m, err := message(in)
		if errors.Is(err, io.EOF) {
			return version, nodes, nil
		}
		var n Node
		if err == nil {
			n, err = node(m)
		}
		if err != nil {
			return "", nil, fmt.Errorf("node %d of the file: %w", len(nodes)+1, err)
		}
		nodes = append(nodes, n)
	}
}

// message takes the next message of a file; io.EOF after the last.
func message(in *bufio.Reader) ([]byte, error) {
	size, shift := uint64(0), 0
	for i := 0; ; i++ {
		b, err := in.ReadByte()
		if err == io.EOF && i > 0 {
			return nil, errors.New("the file ends within a length")
		}
		if err != nil {
			return nil, err
		}
		size |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
		if shift += 7; shift > 28 {
			return nil, errors.New("this is no length: is it a Chakra trace?")
		}
	}
	if size > maxNode {
		return nil, fmt.Errorf("a message of %d bytes: is it a Chakra trace?", size)
	}
	var data []byte
	for part := uint64(0); part < size; { // memory grows with what is there, not with what is claimed
		step := min(size-part, 1<<20)
		data = append(data, make([]byte, step)...)
		if _, err := io.ReadFull(in, data[part:]); err != nil {
			return nil, fmt.Errorf("the file ends within a message of %d bytes", size)
		}
		part += step
	}
	return data, nil
}

// fields calls each for every field of a message.
func fields(m []byte, each func(num protowire.Number, v value) error) error {
	for len(m) > 0 {
		num, typ, n := protowire.ConsumeTag(m)
		if n < 0 {
			return protowire.ParseError(n)
		}
		m = m[n:]
		var v value
		v.typ = typ
		switch typ {
		case protowire.VarintType:
			v.number, n = protowire.ConsumeVarint(m)
		case protowire.Fixed64Type:
			v.number, n = protowire.ConsumeFixed64(m)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(m)
			v.number = uint64(x)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(m)
		default:
			n = protowire.ConsumeFieldValue(num, typ, m)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		m = m[n:]
		if err := each(num, v); err != nil {
			return err
		}
	}
	return nil
}

type value struct {
	typ    protowire.Type
	number uint64
	bytes  []byte
}

func metadata(m []byte) (version string, err error) {
	err = fields(m, func(num protowire.Number, v value) error {
		if num == 1 && v.typ == protowire.BytesType && len(v.bytes) < maxString {
			version = string(v.bytes)
		}
		return nil
	})
	return version, err
}

func node(m []byte) (Node, error) {
	n := Node{Op: -1, Peer: -1}
	var attributes [][]byte
	err := fields(m, func(num protowire.Number, v value) error {
		switch num {
		case 1:
			n.ID = v.number
		case 2:
			n.Name = string(v.bytes)
		case 3:
			if n.Kind = Kind(v.number); v.number == 0 || v.number > maxKind {
				return fmt.Errorf("node %d (%s) is of kind %d, which is none", n.ID, n.Name, v.number)
			}
		case 4:
			return list(v, &n.Control)
		case 5:
			return list(v, &n.Data)
		case 6:
			n.Start = v.number
		case 7:
			n.Duration = v.number
		case 10:
			attributes = append(attributes, v.bytes)
		}
		return nil
	})
	for _, a := range attributes { // what they mean depends on the kind
		if err == nil {
			err = n.attribute(a)
		}
	}
	if err == nil {
		err = n.check()
	}
	return n, err
}

// check refuses a node that lacks what its kind needs.
func (n *Node) check() (err error) {
	switch {
	case n.Kind == 0:
		err = fmt.Errorf("node %d (%s) has no kind", n.ID, n.Name)
	case n.Kind == Collect && n.Op < 0 && n.Duration > 0: // PyTorch's call on the host: it takes the time that was recorded
		n.Kind, n.Op = Compute, -1
	case n.Kind == Collect && n.Op < 0:
		err = fmt.Errorf("node %d (%s) is a collective without comm_type", n.ID, n.Name)
	case n.Kind == Collect && n.Op > Barrier:
		err = fmt.Errorf("node %d (%s): comm_type %d is not a collective", n.ID, n.Name, n.Op)
	case (n.Kind == Send || n.Kind == Recv) && n.Peer < 0:
		err = fmt.Errorf("node %d (%s) has no comm_dst or comm_src", n.ID, n.Name)
	}
	return err
}

// list takes repeated numbers, packed or one by one.
func list(v value, to *[]uint64) error {
	if v.typ != protowire.BytesType {
		*to = append(*to, v.number)
		return nil
	}
	for b := v.bytes; len(b) > 0; {
		x, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		*to = append(*to, x)
		b = b[n:]
	}
	return nil
}

// attribute takes a named value of a node; names that mean nothing here are passed over.
func (n *Node) attribute(m []byte) error {
	var name string
	var num protowire.Number
	var v value
	err := fields(m, func(f protowire.Number, x value) error {
		switch {
		case f == 1:
			name = string(x.bytes)
		case f > 2:
			num, v = f, x
		}
		return nil
	})
	if err != nil {
		return err
	}
	number := int64(v.number)
	switch num {
	case 3: // double
		number = int64(math.Float64frombits(v.number))
	case 5: // float
		number = int64(math.Float32frombits(uint32(v.number)))
	case 15, 17: // sint
		number = protowire.DecodeZigZag(v.number)
	case 29: // a number as text, as some converters write
		if x, err := strconv.ParseInt(string(v.bytes), 10, 64); err == nil {
			number = x
		}
	}
	return n.set(name, number, string(v.bytes))
}

// set gives a node a named value.
func (n *Node) set(name string, number int64, text string) error {
	switch name {
	case "is_cpu_op":
		n.CPU = number != 0
	case "num_ops":
		n.Ops = uint64(max(number, 0))
	case "tensor_size", "comm_size":
		if number < 0 {
			return fmt.Errorf("node %d (%s): %s is %d", n.ID, n.Name, name, number)
		}
		n.Bytes = uint64(number)
	case "comm_type":
		n.Op = number
	case "comm_dst":
		if n.Kind == Send {
			n.Peer = number
		}
	case "comm_src":
		if n.Kind == Recv {
			n.Peer = number
		}
	case "comm_tag":
		n.Tag = number
	case "pg_name":
		n.Group = text
	}
	return nil
}

// Write writes a trace.
func (t *Trace) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	put := func(m []byte) {
		_, _ = out.Write(protowire.AppendVarint(nil, uint64(len(m))))
		_, _ = out.Write(m)
	}
	put(text(nil, 1, t.Version))
	for i := range t.Nodes {
		put(t.Nodes[i].encode())
	}
	return out.Flush()
}

func text(m []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(m, num, protowire.BytesType), s)
}

func number(m []byte, num protowire.Number, x uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(m, num, protowire.VarintType), x)
}

func (n *Node) encode() []byte {
	m := number(nil, 1, n.ID)
	m = text(m, 2, n.Name)
	m = number(m, 3, uint64(n.Kind))
	for i, deps := range [][]uint64{n.Control, n.Data} {
		if len(deps) == 0 {
			continue
		}
		var packed []byte
		for _, d := range deps {
			packed = protowire.AppendVarint(packed, d)
		}
		m = protowire.AppendBytes(protowire.AppendTag(m, protowire.Number(4+i), protowire.BytesType), packed)
	}
	if n.Start > 0 {
		m = number(m, 6, n.Start)
	}
	if n.Duration > 0 {
		m = number(m, 7, n.Duration)
	}
	attr := func(name string, num protowire.Number, x uint64) {
		m = protowire.AppendBytes(protowire.AppendTag(m, 10, protowire.BytesType), number(text(nil, 1, name), num, x))
	}
	const i32, i64, u64, boolean = 7, 9, 13, 27 // the types that Chakra's own reader takes of each
	cpu := uint64(0)
	if n.CPU {
		cpu = 1
	}
	attr("is_cpu_op", boolean, cpu)
	switch n.Kind {
	case Collect:
		attr("comm_type", i64, uint64(n.Op))
		attr("comm_size", i64, n.Bytes)
		if n.Group != "" {
			m = protowire.AppendBytes(protowire.AppendTag(m, 10, protowire.BytesType), text(text(nil, 1, "pg_name"), 29, n.Group))
		}
	case Send, Recv:
		attr("comm_size", i64, n.Bytes)
		attr(map[Kind]string{Send: "comm_dst", Recv: "comm_src"}[n.Kind], i32, uint64(n.Peer))
		attr("comm_tag", i32, uint64(n.Tag))
	default:
		if n.Ops > 0 {
			attr("num_ops", i64, n.Ops)
		}
		if n.Bytes > 0 {
			attr("tensor_size", u64, n.Bytes)
		}
	}
	return m
}

// Groups are the ranks of process groups by name, as ASTRA-sim's file of groups has them:
// {"0": [0, 1, 2, 3]}.
type Groups map[string][]int

// ReadGroups reads them.
func ReadGroups(r io.Reader) (Groups, error) {
	var g Groups
	if err := json.NewDecoder(r).Decode(&g); err != nil {
		return nil, fmt.Errorf("groups: %w; want {\"NAME\": [RANK, ...], ...}", err)
	}
	for name, ranks := range g {
		if len(ranks) == 0 {
			return nil, fmt.Errorf("groups: %q has no ranks", name)
		}
		seen := map[int]bool{}
		for _, r := range ranks {
			if r < 0 || seen[r] {
				return nil, fmt.Errorf("groups: %q names rank %d twice, or it is below 0", name, r)
			}
			seen[r] = true
		}
	}
	return g, nil
}
