package msccl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/weft-fabric/weft/collective/sched"
)

// Plan is MSCCL++'s execution plan, a JSON file: for every GPU, thread blocks of one-sided operations. Field names are those of
// its loader since August 2025.
type Plan struct {
	Name       string    `json:"name"`
	Collective string    `json:"collective"`
	Protocol   string    `json:"protocol"`
	InPlace    bool      `json:"inplace"`
	Reuse      bool      `json:"reuse_resources"`
	GPUs       []planGPU `json:"gpus"`
	Threads    int       `json:"num_threads_per_block,omitempty"`
	Double     bool      `json:"use_double_scratch_buffer"`
	Align      int       `json:"buffer_alignment,omitempty"`
	Least      uint64    `json:"min_message_size,omitempty"`
	Most       uint64    `json:"max_message_size,omitempty"`
}

type planGPU struct {
	ID         int           `json:"id"`
	In         *int          `json:"input_chunks"`
	Out        *int          `json:"output_chunks"`
	Scratch    *int          `json:"scratch_chunks"`
	Blocks     []planBlock   `json:"threadblocks"`
	Channels   []planChannel `json:"channels"`
	Remote     []planRemote  `json:"remote_buffers"`
	Semaphores []planSem     `json:"semaphores,omitempty"`
}

type planChannel struct {
	Type   string      `json:"channel_type"`
	To     []int       `json:"connected_to,omitempty"`
	Buffer string      `json:"buffer_type,omitempty"` // of a switch channel
	Buff   string      `json:"buff,omitempty"`        // its name in plans before August 2025
	Groups []planGroup `json:"rank_groups,omitempty"` // of a switch channel
}

type planGroup struct {
	Size  int   `json:"size"` // chunks
	Ranks []int `json:"ranks"`
}

type planRemote struct {
	Rank   int      `json:"rank"`
	Type   string   `json:"type"`
	Access []string `json:"access_channel_types"`
}

type planSem struct {
	Init int `json:"init_value"`
}

type planBlock struct {
	ID       int          `json:"id"`
	Ops      []planOp     `json:"ops"`
	Channels []planUse    `json:"channels"`
	Remote   []planRefUse `json:"remote_buffer_refs"`
}

type planUse struct {
	Type string `json:"channel_type"`
	IDs  []int  `json:"channel_ids"`
}

type planRefUse struct {
	Type string `json:"access_channel_type"`
	IDs  []int  `json:"remote_buffer_ids"`
}

type planOp struct {
	Name     string     `json:"name"`
	Iterate  *planLoop  `json:"iter_context,omitempty"` // of a pipeline
	Ops      []planOp   `json:"ops,omitempty"`          // of a pipeline
	Src      []planBuf  `json:"src_buff,omitempty"`
	Dst      []planBuf  `json:"dst_buff,omitempty"`
	Channels []int      `json:"channel_ids,omitempty"`
	Type     string     `json:"channel_type,omitempty"`
	Reduce   string     `json:"reduce_op,omitempty"`
	Slice    *planSlice `json:"tbg_info,omitempty"`
	Barrier  *int       `json:"barrier_id,omitempty"`
	Count    int        `json:"num_threadblocks,omitempty"`
	Sems     []int      `json:"semaphore_ids,omitempty"`
}

// planLoop is a pipeline: its operations are done for every unit of some chunks in turn.
type planLoop struct {
	Unit   int `json:"unit_size"` // bytes
	Chunks int `json:"num_chunks"`
}

// planSlice says which part of its chunks an operation is about: one of Of equal ones.
type planSlice struct {
	Part int `json:"tb_id"`
	Of   int `json:"tbg_size"`
}

type planBuf struct {
	Type   string `json:"type,omitempty"`              // of a local buffer
	Remote *int   `json:"buffer_id,omitempty"`         // of a peer's buffer
	Switch *int   `json:"switch_channel_id,omitempty"` // of the buffers of a group of GPUs
	Index  int    `json:"index"`
	Size   int    `json:"size"`
}

// planColls are the names of collectives.
var planColls = map[sched.Collective]string{sched.AllReduce: "allreduce", sched.AllGather: "allgather",
	sched.ReduceScatter: "reducescatter", sched.AllToAll: "alltoall", sched.SendRecv: "sendrecv"}

const knownPlanColls = "allreduce, allgather, reducescatter, alltoall, sendrecv"

// What the loader's tables hold at most.
const (
	maxPlanOps   = 64 // of a thread block
	maxPlanChans = 16 // of a thread block and type
	maxPlanSems  = 16
)

// Limits of what is read.
const (
	maxPlanBytes  = 64 << 20
	maxPlanGPUs   = 1024
	maxPlanChunks = 1 << 16 // of a buffer, in parts
	maxPlanSteps  = 1 << 18 // of all thread blocks, pipelines unrolled
)

// ReadPlan reads an execution plan. Program says what it means, Write writes it again.
func ReadPlan(r io.Reader) (*Plan, error) {
	p := &Plan{}
	if err := json.NewDecoder(io.LimitReader(r, maxPlanBytes)).Decode(p); err != nil {
		return nil, fmt.Errorf("no MSCCL++ plan: %w", err)
	}
	return p, p.check()
}

// DecodePlan reads an execution plan as a program.
func DecodePlan(r io.Reader) (*sched.Program, error) {
	p, err := ReadPlan(r)
	if err != nil {
		return nil, err
	}
	return p.Program()
}

// Write writes the plan, with the fields in one order whatever they were read in.
func (p *Plan) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(p)
}

func (p *Plan) op() sched.Collective {
	for op, name := range planColls {
		if name == p.Collective {
			return op
		}
	}
	return 0
}

// check reports what is wrong with the head and the GPUs.
func (p *Plan) check() error {
	n := len(p.GPUs)
	switch {
	case p.Collective == "":
		return errors.New("this JSON is no MSCCL++ plan: it names no collective")
	case p.op() == 0:
		return fmt.Errorf("collective %q; known: %s", p.Collective, knownPlanColls)
	case p.Protocol != "Simple" && p.Protocol != "LL":
		return fmt.Errorf("protocol %q; known: Simple, LL", p.Protocol)
	case n < 2 || n > maxPlanGPUs:
		return fmt.Errorf("%d gpus; want 2 to %d", n, maxPlanGPUs)
	}
	for i := range p.GPUs {
		if err := p.checkGPU(i); err != nil {
			return err
		}
	}
	in, out := *p.GPUs[0].In, *p.GPUs[0].Out
	if p.InPlace && out == 0 {
		return nil
	}
	ok := true
	switch p.op() {
	case sched.AllGather:
		ok = out == n*in || p.InPlace && in == out && in%n == 0
	case sched.ReduceScatter:
		ok = in == n*out || p.InPlace && in == out && in%n == 0
	case sched.AllToAll:
		ok = in == out && in%n == 0
	default:
		ok = in == out
	}
	if !ok {
		return fmt.Errorf("%d input_chunks and %d output_chunks do not fit %s of %d gpus", in, out, p.Collective, n)
	}
	return nil
}

// checkGPU checks what the lowering relies on: numbers in range, and the layout of MSCCL++ since August 2025. Older
// layouts are named, since they look alike.
func (p *Plan) checkGPU(i int) error {
	g := &p.GPUs[i]
	switch {
	case g.ID != i:
		return fmt.Errorf("gpu %d comes where %d should", g.ID, i)
	case g.In == nil || g.Out == nil || g.Scratch == nil:
		return fmt.Errorf("gpu %d lacks input_chunks, output_chunks or scratch_chunks: an older layout, or none of MSCCL++", i)
	case *g.In < 1 || *g.Out < 0 || *g.Scratch < 0 || max(*g.In, *g.Out, *g.Scratch) > maxPlanChunks:
		return fmt.Errorf("gpu %d has %d, %d and %d chunks of input, output and scratch; want up to %d, and some input",
			i, *g.In, *g.Out, *g.Scratch, maxPlanChunks)
	case *g.In != *p.GPUs[0].In || *g.Out != *p.GPUs[0].Out:
		return fmt.Errorf("gpu %d has %d input_chunks and %d output_chunks, gpu 0 has %d and %d", i, *g.In, *g.Out, *p.GPUs[0].In, *p.GPUs[0].Out)
	}
	for _, c := range g.Channels {
		if c.Buff != "" {
			return fmt.Errorf("gpu %d: a switch channel says buff where buffer_type is expected: a layout of before August 2025", i)
		}
		for _, to := range c.To {
			if to < 0 || to >= len(p.GPUs) || to == i {
				return fmt.Errorf("gpu %d: a %s channel leads to gpu %d", i, c.Type, to)
			}
		}
		for _, group := range c.Groups {
			for _, r := range group.Ranks {
				if r < 0 || r >= len(p.GPUs) {
					return fmt.Errorf("gpu %d: a switch channel has gpu %d", i, r)
				}
			}
		}
	}
	for _, r := range g.Remote {
		if r.Rank < 0 || r.Rank >= len(p.GPUs) || r.Rank == i {
			return fmt.Errorf("gpu %d: a remote buffer is on gpu %d", i, r.Rank)
		}
	}
	for k := range g.Blocks {
		if g.Blocks[k].ID != k {
			return fmt.Errorf("gpu %d: thread block %d comes where %d should", i, g.Blocks[k].ID, k)
		}
	}
	return nil
}

// remote finds a remote buffer by its position in a thread block's list.
func (p *Plan) remote(gpu, block int, access string, id int) (planRemote, error) {
	g := &p.GPUs[gpu]
	for _, u := range g.Blocks[block].Remote {
		if u.Type == access && id >= 0 && id < len(u.IDs) && u.IDs[id] >= 0 && u.IDs[id] < len(g.Remote) {
			return g.Remote[u.IDs[id]], nil
		}
	}
	return planRemote{}, fmt.Errorf("there is no remote buffer %d for %s channels", id, access)
}

// wire is a channel between two GPUs in one direction. The k-th channel of a GPU to a peer is one with the k-th channel of the
// peer to it.
type wire struct {
	kind     string
	from, to int
	pair     int
}

func (w wire) back() wire { return wire{w.kind, w.to, w.from, w.pair} }

// wire finds a channel by its position in a thread block's list.
func (p *Plan) wire(gpu, block int, kind string, id int) (wire, error) {
	at, err := p.listed(gpu, block, kind, id)
	if err != nil {
		return wire{}, err
	}
	count := map[int]int{}
	for _, c := range p.GPUs[gpu].Channels {
		if c.Type != kind {
			continue
		}
		for _, to := range c.To {
			if at == 0 {
				return wire{kind, gpu, to, count[to]}, nil
			}
			count[to]++
			at--
		}
	}
	return wire{}, fmt.Errorf("there is no %s channel %d", kind, id)
}

// group finds the GPUs of a switch channel by its position in a thread block's list, and which buffer of theirs it is.
func (p *Plan) group(gpu, block, id int) (buffer string, ranks []int, err error) {
	at, err := p.listed(gpu, block, "switch", id)
	if err != nil {
		return "", nil, err
	}
	for _, c := range p.GPUs[gpu].Channels {
		if c.Type != "switch" {
			continue
		}
		if at < len(c.Groups) {
			return c.Buffer, c.Groups[at].Ranks, nil
		}
		at -= len(c.Groups)
	}
	return "", nil, fmt.Errorf("there is no switch channel %d", id)
}

// listed turns a position in a thread block's list of channels into one in the GPU's.
func (p *Plan) listed(gpu, block int, kind string, id int) (int, error) {
	for _, u := range p.GPUs[gpu].Blocks[block].Channels {
		if u.Type != kind {
			continue
		}
		if id >= 0 && id < len(u.IDs) && u.IDs[id] >= 0 {
			return u.IDs[id], nil
		}
		id -= len(u.IDs)
	}
	return 0, fmt.Errorf("the thread block has no %s channel %d", kind, id)
}
