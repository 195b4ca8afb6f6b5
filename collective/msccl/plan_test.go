package msccl

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/internal/reference"
)

// What is written as a plan reads back as a program that is proven and sends as much.
func TestPlansReadBack(t *testing.T) {
	for _, c := range []struct {
		algo string
		op   sched.Collective
		n    int
	}{{"ring", sched.AllReduce, 4}, {"ring", sched.AllGather, 4}, {"ring", sched.ReduceScatter, 3}, {"direct", sched.AllReduce, 4},
		{"tree", sched.AllReduce, 4}, {"recursive-doubling", sched.AllReduce, 4}, {"pairwise", sched.AllToAll, 4},
		{"one-shot", sched.AllReduce, 3}} {
		a, err := algo.Find(c.algo)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: c.op, Ranks: c.n, Channels: 1, Pieces: 1})
		if err != nil {
			t.Fatal(err)
		}
		before, err := verify.Program(p)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := EncodePlan(&b, p); err != nil {
			t.Fatal(c.algo, c.op, err)
		}
		q, err := DecodePlan(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(c.algo, c.op, err)
		}
		after, err := verify.Program(q)
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", c.algo, c.op, err, q)
		}
		if before.MaxSent != after.MaxSent || before.Steps != after.Steps {
			t.Errorf("%s %s: sends %d chunks in %d steps, read back %d in %d",
				c.algo, c.op, before.MaxSent, before.Steps, after.MaxSent, after.Steps)
		}
	}
}

// maker builds plans in which every GPU is connected with every other one, by a memory and a port channel, and all are one group
// of a switch. Ids are those of peers.
type maker struct{ Plan }

func make2(name, coll, protocol string, n, in, out, scratch int) *maker {
	m := &maker{Plan{Name: name, Collective: coll, Protocol: protocol, InPlace: true}}
	all := []int{}
	for g := range n {
		all = append(all, g)
		m.GPUs = append(m.GPUs, planGPU{ID: g, In: &in, Out: &out, Scratch: &scratch})
	}
	for g := range m.GPUs {
		gpu := &m.GPUs[g]
		peers := slices.DeleteFunc(slices.Clone(all), func(r int) bool { return r == g })
		gpu.Channels = []planChannel{{Type: "memory", To: peers}, {Type: "port", To: peers}}
		for _, kind := range []string{"i", "o", "s"} {
			gpu.Channels = append(gpu.Channels, planChannel{Type: "switch", Buffer: kind, Groups: []planGroup{{Size: 1, Ranks: all}}})
			for _, r := range peers {
				gpu.Remote = append(gpu.Remote, planRemote{r, kind, []string{"memory", "port"}})
			}
		}
	}
	return m
}

// block adds a thread block to a GPU.
func (m *maker) block(g int, ops ...planOp) {
	gpu := &m.GPUs[g]
	b := planBlock{ID: len(gpu.Blocks), Ops: ops}
	var ids, refs []int
	for i := range len(m.GPUs) - 1 {
		ids = append(ids, i)
	}
	for i := range gpu.Remote {
		refs = append(refs, i)
	}
	for _, kind := range []string{"memory", "port"} {
		b.Channels = append(b.Channels, planUse{kind, ids})
		b.Remote = append(b.Remote, planRefUse{kind, refs})
	}
	b.Channels = append(b.Channels, planUse{"switch", []int{0, 1, 2}})
	gpu.Blocks = append(gpu.Blocks, b)
}

// to is the position of a peer among those of a GPU.
func to(g, peer int) int {
	if peer > g {
		return peer - 1
	}
	return peer
}

// far names a buffer of a peer.
func (m *maker) far(g, peer int, kind string, index, size int) planBuf {
	id := strings.Index("ios", kind)*(len(m.GPUs)-1) + to(g, peer)
	return planBuf{Remote: &id, Index: index, Size: size}
}

func near(kind string, index, size int) planBuf { return planBuf{Type: kind, Index: index, Size: size} }

func group(kind string, index, size int) planBuf {
	id := strings.Index("ios", kind)
	return planBuf{Switch: &id, Index: index, Size: size}
}

func bufs(b ...planBuf) []planBuf { return b }

func op(name, kind string, src, dst []planBuf) planOp {
	return planOp{Name: name, Type: kind, Src: src, Dst: dst}
}

func sync(name, kind string, ids ...int) planOp { return planOp{Name: name, Type: kind, Channels: ids} }

var nop = planOp{Name: "nop"}

// everybody signals and waits for everybody else.
func (m *maker) everybody(g int, signal, wait string) []planOp {
	var ids []int
	for i := range len(m.GPUs) - 1 {
		ids = append(ids, i)
	}
	return []planOp{sync(signal, "memory", ids...), sync(wait, "memory", ids...), nop}
}

// readers: every GPU reads its chunk of all others, adds, and writes the sum to all.
func readers(n int) *maker {
	m := make2("readers", "allreduce", "Simple", n, n, n, 0)
	for g := range n {
		src, dst := bufs(near("i", g, 1)), bufs(near("i", g, 1))
		for r := range n {
			if r != g {
				src, dst = append(src, m.far(g, r, "i", g, 1)), append(dst, m.far(g, r, "i", g, 1))
			}
		}
		ops := append(m.everybody(g, "rlxsignal", "rlxwait"), op("rres", "memory", src, dst), nop)
		m.block(g, append(ops, m.everybody(g, "signal", "wait")...)...)
	}
	return m
}

// packets: every GPU sends its chunks as packets to their owners, which add them up and send the sums as packets.
func packets(n, slices int) *maker {
	m := make2("packets", "allreduce", "LL", n, n, n, 2*n)
	for g := range n {
		for part := range slices {
			var ops []planOp
			src, dst := bufs(near("i", g, 1)), bufs(near("i", g, 1))
			for r := range n {
				if r != g {
					ops = append(ops, op("ppkt", "memory", bufs(near("i", r, 1)), bufs(m.far(g, r, "s", g, 1))))
					src, dst = append(src, near("s", r, 1)), append(dst, m.far(g, r, "s", n+g, 1))
				}
			}
			ops = append(ops, op("respkt", "memory", src, dst))
			for r := range n {
				if r != g {
					ops = append(ops, op("upkt", "", bufs(near("s", n+r, 1)), bufs(near("i", r, 1))))
				}
			}
			if slices > 1 {
				for i := range ops {
					ops[i].Slice = &planSlice{part, slices}
				}
			}
			m.block(g, ops...)
		}
	}
	return m
}

// forwarded: GPU 0 packs its chunk and forwards the packets of its own to GPU 1, which forwards nothing.
func forwarded() *maker {
	m := make2("forwarded", "allgather", "LL", 2, 1, 2, 2)
	m.block(0, op("cpkt", "", bufs(near("i", 0, 1)), bufs(near("s", 0, 1))))
	m.block(0, func() planOp {
		o := op("rppkt", "port", bufs(near("s", 0, 1)), bufs(m.far(0, 1, "s", 0, 1)))
		o.Channels = []int{0}
		return o
	}(), op("upkt", "", bufs(near("s", 1, 1)), bufs(near("o", 1, 1))))
	m.block(1, op("ppkt", "memory", bufs(near("i", 0, 1)), bufs(m.far(1, 0, "s", 1, 1))),
		op("upkt", "", bufs(near("s", 0, 1)), bufs(near("o", 0, 1))))
	return m
}

// summed: GPU 1 sends packets to GPU 0, which adds, packs and sends the sum.
func summed() *maker {
	m := make2("summed", "allreduce", "LL", 2, 2, 2, 4)
	m.block(0, op("recspkt", "memory", bufs(near("i", 0, 1), near("s", 0, 1)), bufs(near("i", 0, 1), near("s", 2, 1), m.far(0, 1, "s", 0, 1))),
		op("repkt", "", bufs(near("i", 1, 1), near("s", 1, 1)), bufs(near("i", 1, 1))), nop,
		op("ppkt", "memory", bufs(near("i", 1, 1)), bufs(m.far(0, 1, "s", 1, 1))))
	m.block(1, op("ppkt", "memory", bufs(near("i", 0, 1), near("i", 1, 1)), bufs(m.far(1, 0, "s", 0, 1), m.far(1, 0, "s", 1, 1))),
		op("upkt", "", bufs(near("s", 0, 1)), bufs(near("i", 0, 1))), op("upkt", "", bufs(near("s", 1, 1)), bufs(near("i", 1, 1))))
	return m
}

// multimem: the switch adds up and copies what is in place.
func multimem(n int) *maker {
	m := make2("multimem", "allreduce", "Simple", n, n, n, 0)
	for g := range n {
		ops := append(m.everybody(g, "rlxsignal", "rlxwait"), op("glres", "switch", bufs(group("i", g, 1)), bufs(group("i", g, 1))), nop)
		m.block(g, append(ops, m.everybody(g, "signal", "wait")...)...)
	}
	return m
}

// stored: the switch copies; packets between some.
func stored(n int, packets bool) *maker {
	if !packets {
		m := make2("stored", "allgather", "Simple", n, 1, n, 0)
		for g := range n {
			ops := append(m.everybody(g, "rlxsignal", "rlxwait"), op("gstore", "switch", bufs(near("i", 0, 1)), bufs(group("o", g, 1))), nop)
			m.block(g, append(ops, m.everybody(g, "signal", "wait")...)...)
		}
		return m
	}
	m := make2("stored", "allgather", "LL", n, 1, n, n)
	for g := range n {
		ops := []planOp{op("cpkt", "", bufs(near("i", 0, 1)), bufs(near("s", g, 1))),
			op("gstorepkt", "switch", bufs(near("s", g, 1)), bufs(group("s", g, 1)))}
		for r := range n {
			if r != g {
				ops = append(ops, op("upkt", "", bufs(near("s", r, 1)), bufs(near("o", r, 1))))
			}
		}
		m.block(g, ops...)
	}
	return m
}

// pipelined: a thread block copies to scratch, another adds through the switch, a third copies to the result, unit by unit.
func pipelined(n int) *maker {
	m := make2("pipelined", "allreduce", "Simple", n, n, n, n)
	acquire := func(id int) planOp { return planOp{Name: "sem_acquire", Sems: []int{id}} }
	release := func(id int) planOp { return planOp{Name: "sem_release", Sems: []int{id}} }
	for g := range n {
		m.GPUs[g].Semaphores = []planSem{{0}, {0}}
		pipe := func(ops ...planOp) planOp {
			return planOp{Name: "pipeline", Iterate: &planLoop{1 << 20, 1}, Ops: ops}
		}
		var ins, outs, signals []planOp
		for c := range n {
			ins = append(ins, op("copy", "", bufs(near("i", c, 1)), bufs(near("s", c, 1))))
			outs = append(outs, op("copy", "", bufs(near("s", c, 1)), bufs(near("o", c, 1))))
		}
		signals = append(signals, m.everybody(g, "signal", "wait")...)
		m.block(g, pipe(slices.Concat(ins, []planOp{nop}, signals, []planOp{release(0)})...))
		m.block(g,
			pipe(slices.Concat([]planOp{acquire(0), nop, op("glres", "switch", bufs(group("s", g, 1)), bufs(group("s", g, 1))), nop}, signals[:1],
				[]planOp{release(1)})...))
		m.block(g, pipe(slices.Concat([]planOp{acquire(1), nop}, signals[1:], outs, []planOp{nop})...))
	}
	// The second and the third thread block signal and wait on channels of their own.
	for g := range m.GPUs {
		gpu := &m.GPUs[g]
		gpu.Channels[0].To = append(gpu.Channels[0].To, gpu.Channels[0].To...)
		for _, b := range []int{1, 2} {
			for i := range gpu.Blocks[b].Channels[0].IDs {
				gpu.Blocks[b].Channels[0].IDs = append(slices.Clone(gpu.Blocks[b].Channels[0].IDs[:i]),
					slices.Clone(gpu.Blocks[b].Channels[0].IDs[i:])...)
				gpu.Blocks[b].Channels[0].IDs[i] = i + n - 1
			}
		}
	}
	return m
}

// sliced: two thread blocks put half a chunk each; a barrier lets one of them signal for both.
func sliced() *maker {
	m := make2("sliced", "allgather", "Simple", 2, 1, 2, 0)
	id := 0
	barrier := planOp{Name: "barrier", Barrier: &id, Count: 2}
	for g := range 2 {
		put := func(part int) planOp {
			o := op("put", "memory", bufs(near("i", 0, 1)), bufs(m.far(g, 1-g, "o", g, 1)))
			o.Slice = &planSlice{part, 2}
			return o
		}
		m.block(g, slices.Concat(m.everybody(g, "rlxsignal", "rlxwait"), []planOp{barrier, put(0), barrier}, m.everybody(g, "signal", "wait"))...)
		m.block(g, barrier, put(1), barrier)
	}
	return m
}

// ported: puts through port channels, with a signal in one, or with a flush before the source is written again.
func ported() *maker {
	m := make2("ported", "alltoall", "Simple", 2, 2, 2, 1)
	for g := range 2 {
		put := op("pws", "port", bufs(near("i", 1-g, 1)), bufs(m.far(g, 1-g, "s", 0, 1)))
		put.Channels = []int{0}
		m.block(g, put, sync("flush", "port", 0), sync("wait", "port", 0), nop,
			op("copy", "", bufs(near("s", 0, 1)), bufs(near("o", 1-g, 1))), nop)
	}
	return m
}

// passed: every GPU gets the input of the one before, by a read.
func passed(n int) *maker {
	m := make2("passed", "sendrecv", "Simple", n, 1, 1, 0)
	m.InPlace = false
	for g := range n {
		before, after := to(g, (g+n-1)%n), to(g, (g+1)%n)
		m.block(g, sync("signal", "memory", after), sync("wait", "memory", before), nop,
			op("get", "memory", bufs(m.far(g, (g+n-1)%n, "i", 0, 1)), bufs(near("o", 0, 1))), nop)
	}
	return m
}

// scattered2: everybody puts its chunks to their owners, which add them up: out of place, and in a program with other memory in place.
func scattered2(n int, inPlace bool) *maker {
	m := make2("scattered", "reducescatter", "Simple", n, n, 1, n)
	m.InPlace = inPlace
	for g := range n {
		var ops []planOp
		src := bufs(near("i", g, 1))
		for r := range n {
			if r != g {
				ops = append(ops, op("put", "memory", bufs(near("i", r, 1)), bufs(m.far(g, r, "s", g, 1))))
				src = append(src, near("s", r, 1))
			}
		}
		ops = append(append(ops, nop), m.everybody(g, "signal", "wait")...)
		m.block(g, append(ops, op("re", "", src, bufs(near("o", 0, 1))), nop)...)
	}
	return m
}

func madePlans() []*maker {
	return []*maker{readers(2), readers(3), packets(2, 1), packets(3, 1), packets(2, 2), forwarded(), summed(), multimem(2), multimem(4),
		stored(3, false), stored(3, true),
		pipelined(2), sliced(), ported(), passed(2), passed(3), scattered2(2, false), scattered2(3, true)}
}

func judge(p *Plan) error {
	err := p.check()
	if err != nil {
		return err
	}
	q, err := p.Program()
	if err != nil {
		return err
	}
	_, err = verify.Program(q)
	return err
}

// Every operation has a meaning: plans that are right are proven, compute what they promise, and read back equal.
func TestPlansAreProven(t *testing.T) {
	for _, m := range madePlans() {
		p, err := m.Program()
		if err != nil {
			t.Errorf("%s: %v", m.Name, err)
			continue
		}
		if _, err := verify.Program(p); err != nil {
			t.Errorf("%s: %+v\n%s", m.Name, err, p)
			continue
		}
		var b, c bytes.Buffer
		if err := m.Write(&b); err != nil {
			t.Fatal(err)
		}
		again, err := ReadPlan(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		q, err := again.Program()
		if err != nil || q.String() != p.String() {
			t.Errorf("%s: reads back as another program: %v", m.Name, err)
		}
		if err := again.Write(&c); err != nil || !bytes.Equal(b.Bytes(), c.Bytes()) {
			t.Errorf("%s: written twice, it differs: %v", m.Name, err)
		}
		if p.Switches > 0 {
			continue
		}
		in := make([][]int64, p.Ranks)
		for r := range in {
			for i := range p.NumChunks(sched.In) {
				in[r] = append(in[r], int64(1000*r+i))
			}
		}
		want := reference.Promised(p.Op, 0, in)
		got, err := reference.Run(p, in, func(n int) int { return n - 1 })
		for r := range want {
			if err != nil || !slices.Equal(want[r], got[r]) {
				t.Errorf("%s: rank %d has %v, want %v (%v)", m.Name, r, got[r], want[r], err)
			}
		}
	}
}

// lists gives all lists of operations of a plan.
func lists(p *Plan) (all []*[]planOp) {
	for g := range p.GPUs {
		for b := range p.GPUs[g].Blocks {
			ops := &p.GPUs[g].Blocks[b].Ops
			all = append(all, ops)
			for k := range *ops {
				if (*ops)[k].Name == "pipeline" {
					all = append(all, &(*ops)[k].Ops)
				}
			}
		}
	}
	return all
}

// A plan with an operation missing, another chunk or another peer is refused, at the latest by its proof.
func TestPlanMutants(t *testing.T) {
	total := 0
	for _, m := range madePlans() {
		var b bytes.Buffer
		if err := m.Write(&b); err != nil {
			t.Fatal(err)
		}
		mutate := func(i, k int, what string, change func(ops *[]planOp)) {
			p := &Plan{}
			if err := json.Unmarshal(b.Bytes(), p); err != nil {
				t.Fatal(err)
			}
			list := lists(p)[i]
			name := (*list)[k].Name
			change(list)
			total++
			if judge(p) == nil {
				t.Errorf("%s: list %d op %d (%s): %s, and it is accepted", m.Name, i, k, name, what)
			}
		}
		for i, list := range lists(&m.Plan) {
			for k, o := range *list {
				if o.Name != "nop" && o.Name != "flush" { // many nops are there for no reason
					mutate(i, k, "dropped", func(ops *[]planOp) { *ops = slices.Delete(*ops, k, k+1) })
				}
				for s := range o.Src {
					mutate(i, k, "another source", func(ops *[]planOp) { (*ops)[k].Src[s].Index++ })
				}
				for s := range o.Dst {
					if o.Name == "recspkt" && s == 1 {
						continue // nobody reads it
					}
					mutate(i, k, "another target", func(ops *[]planOp) { (*ops)[k].Dst[s].Index++ })
					if o.Dst[s].Remote != nil {
						mutate(i, k, "another buffer", func(ops *[]planOp) { *(*ops)[k].Dst[s].Remote += 1 + 1/(len(m.GPUs)-1) }) // in place, o is i
					}
				}
				if o.Name == "wait" || o.Name == "signal" {
					mutate(i, k, "another channel", func(ops *[]planOp) { (*ops)[k].Channels[0]++ })
				}
			}
		}
	}
	if total < 300 {
		t.Errorf("%d mutants", total)
	}
}

// What is wrong is named.
func TestWrongPlansAreNamed(t *testing.T) {
	drop := func(m *maker, g, b int, name string) *maker {
		ops := &m.GPUs[g].Blocks[b].Ops
		k := slices.IndexFunc(*ops, func(o planOp) bool { return o.Name == name })
		*ops = slices.Delete(slices.Clone(*ops), k, k+1)
		return m
	}
	for i, c := range []struct {
		m    *maker
		flaw bool
		want string
	}{
		{drop(readers(2), 0, 0, "wait"), true, "gpu 1 gives gpu 0 2 signals on a memory channel, of which it waits for 1"},
		{drop(readers(2), 0, 0, "signal"), true,
			"deadlock: gpu 1 thread block 0 op 6 (wait) waits for signal 2 of gpu 0 on memory channel 0, which gives 1"},
		{drop(drop(readers(2), 0, 0, "rlxwait"), 1, 0, "rlxsignal"), true,
			"gpu 0 thread block 0 op 2 (rres): it uses i of gpu 1, which may not have begun"},
		{drop(readers(2), 0, 0, "nop"), true, "gpu 0 thread block 0 op 2 (rres): it follows a wait with no nop between"},
		{drop(packets(2, 1), 0, 0, "ppkt"), true, "gpu 1 thread block 0 op 1 (respkt) waits for packets s[0], which nobody has written"},
		{drop(sliced(), 0, 1, "barrier"), true, "gpu 0 thread block 1 op 0 (put): it uses o of gpu 1, which may not have begun"},
		{drop(drop(scattered2(2, false), 0, 0, "wait"), 1, 0, "signal"), false, "has no order between two uses"},
		{drop(drop(sliced(), 0, 0, "signal"), 1, 0, "wait"), true, "gpu 1: nobody waits until out[0] has come from another gpu"},
	} {
		err := judge(&c.m.Plan)
		var f *Flaw
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &f) != c.flaw {
			t.Errorf("%d: %v, want %q", i, err, c.want)
		}
	}
	m := sliced()
	m.GPUs[0].Blocks[1].Ops = m.GPUs[0].Blocks[1].Ops[:2]
	if err := judge(&m.Plan); err == nil ||
		!strings.Contains(err.Error(), "gpu 0 thread block 0 op 5 (barrier) waits for the others at barrier 0: 1 of 2 are there") {
		t.Error(err)
	}
	m = packets(2, 1)
	m.Protocol = "Simple"
	if err := judge(&m.Plan); err == nil || !strings.Contains(err.Error(), "only LL makes room") {
		t.Error(err)
	}
	m = packets(2, 1)
	m.GPUs[0].Blocks[0].Ops = append(m.GPUs[0].Blocks[0].Ops, m.GPUs[0].Blocks[0].Ops[0])
	if err := judge(&m.Plan); err == nil || !strings.Contains(err.Error(), "packets s[0] of gpu 1 are written twice") {
		t.Error(err)
	}
}

func TestBadPlansAreNamed(t *testing.T) {
	var b bytes.Buffer
	if err := readers(2).Write(&b); err != nil {
		t.Fatal(err)
	}
	plan := b.String()
	for edit, want := range map[[2]string]string{
		{`"Simple"`, `"LL128"`}:                      "protocol \"LL128\"; known: Simple, LL",
		{`"input_chunks": 2,`, ""}:                   "gpu 0 lacks input_chunks",
		{`"input_chunks": 2,`, `"input_chunks": 3,`}: "gpu 1 has 2 input_chunks and 2 output_chunks, gpu 0 has 3 and 2",
		{`"allreduce"`, `"allproduce"`}:              "collective \"allproduce\"; known: allreduce",
		{`"inplace": true`, `"inplace": 1`}:          "no MSCCL++ plan: json",
		{`"name": "rres"`, `"name": "glre"`}:         "gpu 0 thread block 0 op 3 (glre): MSCCL++'s loader does not take it",
		{`"name": "rres"`, `"name": "magic"`}:        "gpu 0 thread block 0 op 3 (magic): unknown operation; known: nop, copy",
	} {
		text := strings.Replace(plan, edit[0], edit[1], 1)
		if text == plan {
			t.Fatalf("%q is not in the plan", edit[0])
		}
		if _, err := DecodePlan(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", edit[1], err, want)
		}
	}
	older := strings.Replace(plan, `"buffer_type"`, `"buff"`, 1)
	if _, err := DecodePlan(strings.NewReader(older)); err == nil || !strings.Contains(err.Error(), "buffer_type is expected") {
		t.Error(err)
	}
}

func FuzzDecodePlan(f *testing.F) {
	for _, m := range madePlans() {
		var b bytes.Buffer
		if err := m.Write(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.String())
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ReadPlan(strings.NewReader(s))
		if err != nil {
			return
		}
		p, err := m.Program()
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := m.Write(&b); err != nil {
			t.Fatal(err)
		}
		if q, err := DecodePlan(&b); err != nil || q.String() != p.String() {
			t.Fatal("reads back as another program", err)
		}
		if _, err := sched.Parse(p.String()); err != nil {
			t.Fatalf("%v\n%s", err, p)
		}
		if p.Ranks <= 8 && max(p.NumChunks(sched.In), p.NumChunks(sched.Tmp)) < 1000 {
			_, _ = verify.Right(p)
		}
	})
}
