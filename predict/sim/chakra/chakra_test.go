package chakra

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/predict/sim"
	"google.golang.org/protobuf/encoding/protowire"
)

// machine is a rail cluster of hosts with eight GPUs each.
func machine(t *testing.T, hosts int) Machine {
	t.Helper()
	c, err := cluster.Preset("rail", map[string]int{"hosts": hosts})
	if err != nil {
		t.Fatal(err)
	}
	m := Machine{Graph: c.Graph, Peak: 1e12, Memory: 1e12,
		Options: sim.Options{Catalog: c.Catalog, Measured: true, Costs: sim.DefaultCosts(c.Graph, c.Catalog)}}
	c.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { m.GPUs = append(m.GPUs, id) })
	return m
}

func encoded(t *testing.T, tr *Trace) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tr.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sample(rank int) *Trace {
	return &Trace{Rank: rank, Version: "0.0.4", Nodes: []Node{
		{ID: 1, Name: "read", Kind: Compute, CPU: true, Duration: 100, Op: -1, Peer: -1},
		{ID: 2, Name: "forward", Kind: Compute, Ops: 2e9, Bytes: 1e6, Data: []uint64{1}, Op: -1, Peer: -1},
		{ID: 3, Name: "gradients", Kind: Collect, Op: AllReduce, Bytes: 1 << 20, Data: []uint64{2}, Peer: -1},
		{ID: 4, Name: "to the next", Kind: Send, Bytes: 4096, Peer: int64(1 - rank), Tag: int64(rank), Control: []uint64{2}, Op: -1},
		{ID: 5, Name: "from the last", Kind: Recv, Bytes: 4096, Peer: int64(1 - rank), Tag: int64(1 - rank), Op: -1},
		{ID: 6, Name: "end", Kind: Compute, Duration: 10, Control: []uint64{3, 4}, Data: []uint64{5}, Op: -1, Peer: -1},
	}}
}

func TestWrittenIsReadEqual(t *testing.T) {
	want := sample(1)
	got, err := Read(bytes.NewReader(encoded(t, want)), 1)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v\nwant %+v", got, want)
	}
}

// A file as others may write it: dependencies one by one instead of packed, attributes
// before the kind, with a documentation string, as int32, uint64, double and text, and
// some that mean nothing here.
func TestForeignBytes(t *testing.T) {
	var file []byte
	put := func(m []byte) { file = append(protowire.AppendVarint(file, uint64(len(m))), m...) }
	attribute := func(m []byte, name string, value []byte) []byte {
		return text(m, 10, string(slices.Concat(text(nil, 1, name), text(nil, 2, "said by nobody"), value)))
	}
	put(text(text(nil, 1, "0.0.4"), 2, string(text(nil, 1, "schema"))))
	put(number(text(number(nil, 1, 1), 2, "process"), 3, uint64(Metadata)))
	m := attribute(nil, "comm_type", number(nil, 7, ReduceScatter))
	m = attribute(m, "comm_size", protowire.AppendFixed64(protowire.AppendTag(nil, 3, protowire.Fixed64Type), math.Float64bits(4096)))
	m = attribute(m, "involved_dim", text(nil, 28, string([]byte{10, 1, 1})))
	m = attribute(m, "pg_name", text(nil, 29, "3"))
	put(number(number(number(number(m, 1, 2), 3, uint64(Collect)), 5, 1), 4, 1))
	got, err := Read(bytes.NewReader(file), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := &Trace{Version: "0.0.4", Nodes: []Node{{ID: 1, Name: "process", Kind: Metadata, Op: -1, Peer: -1},
		{ID: 2, Kind: Collect, Op: ReduceScatter, Bytes: 4096, Group: "3", Peer: -1, Control: []uint64{1}, Data: []uint64{1}}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v\nwant %+v", got, want)
	}
}

func TestWrongFiles(t *testing.T) {
	whole := encoded(t, sample(0))
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":     {nil, "the file is empty"},
		"text":      {[]byte(strings.Repeat("\xff", 40)), "is it a Chakra trace"},
		"cut":       {whole[:len(whole)-3], "ends within"},
		"twice":     {encoded(t, &Trace{Nodes: []Node{{ID: 1, Kind: Compute}, {ID: 1, Kind: Compute}}}), "twice"},
		"no kind":   {encoded(t, &Trace{Nodes: []Node{{ID: 1, Kind: 99}}}), "kind 99"},
		"missing":   {encoded(t, &Trace{Nodes: []Node{{ID: 1, Kind: Compute, Data: []uint64{7}}}}), "depends on node 7"},
		"no peer":   {encoded(t, &Trace{Nodes: []Node{{ID: 1, Kind: Send, Peer: -1}}}), "comm_dst"},
		"no such":   {encoded(t, &Trace{Nodes: []Node{{ID: 1, Kind: Collect, Op: 77}}}), "comm_type 77"},
		"below two": {encoded(t, &Trace{Nodes: []Node{{ID: 1, Kind: Collect, Op: -3}}}), "without comm_type"},
	} {
		if _, err := Read(bytes.NewReader(c.data), 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	_ = sample(0).Write(&b)
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := Read(bytes.NewReader(data), 0)
		if err != nil {
			return
		}
		again, err := Read(bytes.NewReader(encoded(t, tr)), 0)
		if err != nil {
			t.Fatalf("what was written is not read: %v", err)
		}
		if len(again.Nodes) != len(tr.Nodes) {
			t.Errorf("%d nodes became %d", len(tr.Nodes), len(again.Nodes))
		}
	})
}

// Times follow from the graph: the collective begins when the later rank comes.
func TestRunWaitsForTheLater(t *testing.T) {
	m := machine(t, 2)
	traces := []*Trace{sample(0), sample(1)}
	traces[1].Nodes[0].Duration = 5000 // the second rank reads for 5 ms
	r, err := Run(traces, nil, m)
	if err != nil {
		t.Fatal(err)
	}
	// 5 ms of reading, 2 ms for 2e9 operations at 1e12 a second, then the transfers and 10 µs.
	if least := 7.01e-3; r.Time < least || r.Time > least+1e-3 {
		t.Errorf("%.6f s; want a little more than %.6f", r.Time, least)
	}
	if a, b := r.Ranks[0], r.Ranks[1]; a.Waited < 4.8e-3 || b.Waited > 4.8e-3+a.Waited || a.Exposed < 4.8e-3 {
		t.Errorf("rank 0: %+v\nrank 1: %+v; rank 0 waits for 4.9 ms", a, b)
	}
	if c := r.Calls[0]; c.Calls == 0 || c.Each <= 0 {
		t.Errorf("calls %+v", r.Calls)
	}
}

// Sister groups share the fabric: groups on rails of their own go as fast as one alone,
// groups that need the same cable slower.
func TestSistersShareLinks(t *testing.T) {
	m := machine(t, 4)
	run := func(groups Groups) float64 {
		var traces []*Trace
		for r := range 32 {
			tr := &Trace{Rank: r}
			for name, ranks := range groups {
				if slices.Contains(ranks, r) {
					tr.Nodes = []Node{{ID: 1, Kind: Collect, Op: AllReduce, Bytes: 64 << 20, Group: name, Peer: -1}}
				}
			}
			traces = append(traces, tr)
		}
		r, err := Run(traces, groups, m)
		if err != nil {
			t.Fatal(err)
		}
		return r.Time
	}
	alone := run(Groups{"a": {0, 8}})
	if side := run(Groups{"a": {0, 8}, "b": {1, 9}, "c": {2, 10}}); side > alone*1.02 {
		t.Errorf("three groups on rails of their own take %g s, one alone %g s", side, alone)
	}
	// With one NIC left in a host all its groups go through it.
	for i := range 7 {
		m.Options.Fail = append(m.Options.Fail, fmt.Sprintf("n0:nic%d", i+1))
	}
	if side := run(Groups{"a": {0, 8}, "b": {1, 9}}); side < alone*1.5 {
		t.Errorf("two groups through one NIC take %g s, one alone %g s", side, alone)
	}
}

func TestWhatCannotRun(t *testing.T) {
	m := machine(t, 1)
	two := func(a, b Node) []*Trace {
		return []*Trace{{Rank: 0, Nodes: []Node{a}}, {Rank: 1, Nodes: []Node{b}}}
	}
	reduce := Node{ID: 1, Name: "sum", Kind: Collect, Op: AllReduce, Bytes: 1024, Peer: -1}
	other := reduce
	other.Bytes = 2048
	grouped := reduce
	grouped.Group = "7"
	for name, c := range map[string]struct {
		traces []*Trace
		groups Groups
		want   string
	}{
		"never received":   {two(Node{ID: 1, Kind: Send, Peer: 1, Bytes: 8}, Node{ID: 1, Kind: Compute}), nil, "sent and never received"},
		"never sent":       {two(Node{ID: 1, Kind: Recv, Peer: 1, Bytes: 8}, Node{ID: 1, Kind: Compute}), nil, "the others do not come"},
		"nobody comes":     {two(reduce, Node{ID: 1, Kind: Compute}), nil, "the others do not come"},
		"sizes differ":     {two(reduce, other), nil, "2048 bytes"},
		"unknown group":    {two(grouped, grouped), nil, `group "7" is not in the file`},
		"not in the group": {two(grouped, grouped), Groups{"7": {0}}, "rank is not in group"},
		"rank too high":    {two(reduce, reduce), Groups{"1": {0, 2}}, "has rank 2"},
		"to itself":        {two(Node{ID: 1, Kind: Send, Peer: 0}, reduce), nil, "peer is rank 0"},
		"cycle":            {two(Node{ID: 1, Kind: Compute, Data: []uint64{1}}, Node{ID: 1, Kind: Compute}), nil, "cycle"},
		"too many":         {make([]*Trace, 9), nil, "has 8 GPUs"},
	} {
		if _, err := Run(c.traces, c.groups, m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// FuzzReadGroups: groups that are read have ranks, each once.
func FuzzReadGroups(f *testing.F) {
	for _, s := range []string{`{"0": [0, 1, 2, 3]}`, `{"a": []}`, `{"a": [1, 1]}`, `{"a": [-1]}`, `{"a": [0]} {"b": [1]}`, `null`, `[]`,
		`{"a": [1e3]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ReadGroups(strings.NewReader(text))
		if err != nil {
			return
		}
		for name, ranks := range g {
			sorted := slices.Sorted(slices.Values(ranks))
			if len(ranks) == 0 || sorted[0] < 0 || len(slices.Compact(sorted)) != len(ranks) {
				t.Errorf("%q: group %q has ranks %v", text, name, ranks)
			}
		}
	})
}

// A ring in which every rank sends before it receives runs, as in ASTRA-sim's examples: sends do not wait for receives.
func TestSendsDoNotWait(t *testing.T) {
	m := machine(t, 1)
	var traces []*Trace
	for r := range 4 {
		tr := &Trace{Rank: r}
		for step := range uint64(3) {
			send := Node{ID: 3 * step, Name: "send", Kind: Send, Bytes: 1 << 20, Op: -1, Peer: int64(r+1) % 4}
			if step > 0 {
				send.Data = []uint64{3*step - 1}
			}
			tr.Nodes = append(tr.Nodes, send,
				Node{ID: 3*step + 1, Name: "receive", Kind: Recv, Bytes: 1 << 20, Op: -1, Peer: int64(r+3) % 4, Data: []uint64{3 * step}},
				Node{ID: 3*step + 2, Name: "sum", Kind: Compute, Duration: 7, Op: -1, Peer: -1, Data: []uint64{3*step + 1}})
		}
		traces = append(traces, tr)
	}
	r, err := Run(traces, nil, m)
	if err != nil {
		t.Fatal(err)
	}
	one, err := Run([]*Trace{{Rank: 0, Nodes: []Node{{Kind: Send, Bytes: 1 << 20, Op: -1, Peer: 1}}},
		{Rank: 1, Nodes: []Node{{Kind: Recv, Bytes: 1 << 20, Op: -1, Peer: 0}}}}, nil, m)
	if err != nil {
		t.Fatal(err)
	}
	if want := 3 * (one.Time + 7e-6); r.Time < want*.999 || r.Time > want*1.001 {
		t.Errorf("three steps take %.3g s; want three messages and three sums, %.3g s", r.Time, want)
	}
}

// A control dependency on a node that is not there is one on what came before the trace.
func TestControlOnWhatCameBefore(t *testing.T) {
	got, err := Read(bytes.NewReader(encoded(t,
		&Trace{Nodes: []Node{{ID: 1, Kind: Compute, Peer: -1}, {ID: 2, Kind: Compute, Control: []uint64{1, 7}, Peer: -1}}})), 0)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Nodes[1].Control, []uint64{1}) {
		t.Errorf("it waits for %v", got.Nodes[1].Control)
	}
}

// A trace in either form of Chakra's JSON is the trace in protobuf.
func TestJSON(t *testing.T) {
	want := []Node{{ID: 0, Name: "product", Kind: Compute, Duration: 5, Op: -1, Peer: -1},
		{ID: 3, Name: "sum", Kind: Collect, Data: []uint64{0}, Bytes: 1 << 20, Op: AllReduce, Peer: -1, Group: "1"},
		{ID: 4, Name: "on", Kind: Send, Data: []uint64{3}, Bytes: 64, Op: -1, Peer: 2, Tag: 9},
		{ID: 5, Name: "call", Kind: Compute, Duration: 85, CPU: true, Op: -1, Peer: -1}}
	feeder := `{"workload_graph": [
		{"Id": 0, "Name": "product", "NodeType": 4, "ctrlDeps": [77], "data_deps": [], "runtime": 5, "is_cpu_op": false},
		{"Id": 3, "Name": "sum", "NodeType": 7, "data_deps": [0], "comm_type": 0, "comm_size": 1048576, "is_cpu_op": false, "pg_name": "1"},
		{"Id": 4, "Name": "on", "NodeType": 5, "data_deps": [3], "comm_dst": 2, "comm_size": 64, "comm_tag": 9},
		{"Id": 5, "Name": "call", "NodeType": 7, "data_deps": [], "runtime": 85, "is_cpu_op": true}]}`
	jsonizer := `{
  "version": "0.0.4"
}{"name": "product", "type": "COMP_NODE", "durationMicros": "5", "attr": [{"name": "is_cpu_op", "boolVal": false}]}
{"id": "3", "name": "sum", "type": "COMM_COLL_NODE", "dataDeps": ["0"], "attr": [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "1048576"}, {"name": "pg_name", "stringVal": "1"}]}
{"id": "4", "name": "on", "type": "COMM_SEND_NODE", "dataDeps": ["3"], "attr": [{"name": "comm_dst", "int32Val": 2}, {"name": "comm_size", "int64Val": "64"}, {"name": "comm_tag", "int32Val": 9}]}
{"id": "5", "name": "call", "type": "COMM_COLL_NODE", "durationMicros": "85", "attr": [{"name": "is_cpu_op", "boolVal": true}]}`
	for name, text := range map[string]string{"feeder": feeder, "jsonizer": jsonizer} {
		got, err := Read(strings.NewReader(text), 0)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(got.Nodes, want) {
			t.Errorf("%s: read %+v\nwant %+v", name, got.Nodes, want)
		}
	}
	for name, c := range map[string][2]string{
		"cut":      {feeder[:len(feeder)-20], "ends within"},
		"twice":    {`{"workload_graph": [{"Id": 1, "NodeType": 4}, {"Id": 1, "NodeType": 4}]}`, "twice"},
		"parent":   {`{"workload_graph": [{"Id": 1, "NodeType": 4, "data_deps": [2]}]}`, "depends on node 2"},
		"type":     {`{"workload_graph": [{"Id": 1, "NodeType": 40}]}`, "NodeType"},
		"name":     {`{"version": "0.0.4"}{"id": "1", "type": "DREAM_NODE"}`, "DREAM_NODE"},
		"no id":    {`{"workload_graph": [{"NodeType": 4}]}`, "no Id"},
		"number":   {`{"workload_graph": [{"Id": 1, "NodeType": 4, "runtime": "long"}]}`, "not a whole number"},
		"negative": {`{"workload_graph": [{"Id": 1, "NodeType": 4, "runtime": -4}]}`, "none below 0"},
		"pytorch":  {`{"schema": "1.0.2-chakra.0.0.4", "pid": 7, "nodes": []}`, "chakra_converter"},
		"nothing":  {`{}`, "no node"},
	} {
		if _, err := Read(strings.NewReader(c[0]), 0); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v; want %q", name, err, c[1])
		}
	}
}
