package plan

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// Fixed parts of a process on a GPU, in bytes: measured on Megatron's own tests and by users.
const (
	contextBytes   = 0.6e9   // CUDA context: outside of what the framework allocates
	groupBytes     = 0.35e9  // NCCL's buffers for each kind of group a rank is in, outside as well
	workspaceBytes = 0.075e9 // of libraries for matrix products
	workspaceTMA   = 0.115e9 // the same from Hopper on
	slack          = 0.04    // the allocator's, of what it hands out at peak, where parameters and gradients lie in buffers of their own
	slackPieces    = 0.19    // the same where tensors are gathered, copied and freed one by one: torchtitan's reports over the sum
	torn           = 0.02    // of the memory in use, that is left in holes when memory is short and the allocator has given the rest of its slack back
	tornZeRO       = 0.10    // the same for DeepSpeed: BLOOM's layouts that ran out of memory bound it to more than 7%, those that ran to less than 24%
)

// StageMemory is what a rank of a pipeline stage holds, in bytes: between steps, and at most.
type StageMemory struct {
	State float64 `json:"state_bytes"`
	Peak  float64 `json:"peak_bytes"`
	used  float64 // of the peak, without the allocator's slack
}

// bytesPer is what a parameter takes on a rank, apart by whether all data ranks hold it or share it.
type bytesPer struct {
	weights, gradients, optimizer float64 // of each parameter held
	sharedW, sharedG, sharedO     float64 // of each parameter, divided by the ranks that share it
	transient                     float64 // gradients that are gone after a step, shared
}

func (p *pricer) bytesPer() bytesPer {
	l := p.l
	g := p.gradBytes()
	mixed := l.Dtype != "fp32"
	var b bytesPer
	switch {
	case !mixed:
		b = bytesPer{weights: 4, gradients: 4, optimizer: 8}
		if l.ZeRO >= 1 {
			b.optimizer, b.sharedO = 0, 8
		}
		if l.ZeRO >= 2 {
			b.gradients, b.sharedG = 0, 4
		}
		if l.ZeRO >= 3 {
			b.weights, b.sharedW = 0, 4
		}
	case p.f == FSDP && l.ZeRO >= 3:
		b = bytesPer{sharedW: 4, sharedO: 8, transient: 4}
	case p.f == FSDP && l.ZeRO == 2: // SHARD_GRAD_OP: gathered once a step
		b = bytesPer{weights: 2, sharedW: 4, sharedO: 8, transient: 4}
	case p.f == FSDP && l.ZeRO <= 1: // plain DDP with a shared optimizer
		b = bytesPer{weights: 4, gradients: 4, optimizer: 8}
		if l.ZeRO == 1 {
			b.optimizer, b.sharedO = 0, 8
		}
	default:
		b = bytesPer{weights: 2, gradients: g, optimizer: 12}
		if g == 2 && p.f == Megatron { // the optimizer makes itself a gradient in fp32
			b.optimizer = 16
		}
		if g == 4 && p.f == DeepSpeed && l.Dtype == "bf16" && l.ZeRO <= 1 { // BF16_Optimizer sums in fp32 what autograd leaves in bf16
			b.gradients += 2
		}
		if l.ZeRO >= 1 {
			b.optimizer, b.sharedO = 0, b.optimizer
		}
		if l.ZeRO >= 2 {
			b.gradients, b.sharedG = 0, g
		}
		if l.ZeRO >= 3 {
			b.weights, b.sharedW = 0, 2
		}
	}
	if l.Offload {
		b.optimizer, b.sharedO = 0, 0
		if p.f == DeepSpeed && l.ZeRO >= 2 { // gradients go to the host as they come, a bucket at a time
			b.gradients, b.sharedG = 0, 0
		}
	}
	if l.Phase == "lora" { // weights that nothing changes have no copy in fp32
		if mixed {
			b.weights, b.sharedW = min(b.weights, 2), min(b.sharedW, 2)
		}
		if mixed && l.ZeRO == 2 {
			b.sharedW = 0
		}
		b.gradients, b.optimizer, b.sharedG, b.sharedO, b.transient = .02, .06, 0, 0, 0
	}
	return b
}

// kept is how activations are kept.
func (p *pricer) kept() work.Kept {
	k := work.Kept{TP: p.l.TP, ETP: p.l.ETP, Sequence: p.l.Sequence, Flash: p.l.Flash, Dropout: p.l.Dropout, Bytes: 2,
		Recompute: p.l.Recompute}
	switch p.t {
	case "fp8", "fp8block":
		k.Input = 1
	case "fp4":
		k.Input = 1
	}
	if p.l.Dtype == "fp32" {
		k.Bytes = 4
	}
	return k
}

// footprint is what a rank of a pipeline stage holds, in bytes.
type footprint struct {
	weights, grads, optim float64 // between steps
	transient, live, act  float64 // gradients that are gone after a step, gathered layers of ZeRO 3, activations
	head, cast, bucket    float64 // logits, fp8 copies of weights, DeepSpeed's buckets
	passing               float64 // gradients of one layer's activations, and the buffers between stages
	state, peak           float64 // sums, with what libraries keep
}

// footprints is what each pipeline rank holds when it has the given number of micro-batches alive on its stage.
func (p *pricer) footprints(alive []float64) []footprint {
	l := p.l
	b := p.bytesPer()
	share := float64(l.Sharded())
	shareE := max(float64(l.ExpertData())*share/float64(l.DP*l.CP), 1)
	if l.ZeRO == 0 {
		share, shareE = 1, 1
	}
	kept := p.keptBy()
	live, again, passing, libraries := p.live(), p.again1(), p.passing(), p.workspace()
	holds := p.holds()
	out := make([]footprint, len(holds))
	for rank, o := range holds {
		x := &out[rank]
		x.weights = o.dense*b.weights + o.experts*b.weights + o.dense*b.sharedW/share + o.experts*b.sharedW/shareE
		x.grads = (o.dense+o.experts)*b.gradients + o.dense*b.sharedG/share + o.experts*b.sharedG/shareE
		x.optim = (o.dense+o.experts)*b.optimizer + o.dense*b.sharedO/share + o.experts*b.sharedO/shareE
		x.transient = o.dense*b.transient/share + o.experts*b.transient/shareE
		x.live, x.passing = live, passing
		x.act = p.activations(rank, kept, alive[rank]) + again
		x.head, x.cast, x.bucket = p.logits(rank), p.casts(o), p.buckets(o)
		x.state = x.weights + x.grads + x.optim + libraries
		x.peak = x.state + x.transient + x.live + max(x.act+x.passing, 0) + x.head + x.cast + x.bucket
	}
	return out
}

// live is the gathered parameters of ZeRO 3: two layers, and one layer's gradient.
func (p *pricer) live() float64 {
	m, l := p.m, p.l
	if l.ZeRO < 3 {
		return 0
	}
	big := 0.0
	for i := range 2 {
		if i == 1 && m.Experts == 0 || i == 0 && m.DenseLayers() == 0 {
			continue
		}
		lp := m.Layer(i == 1)
		big = max(big, (lp.Attention+lp.MLP)/float64(l.TP)+lp.Replicated+lp.Experts/float64(l.EP*l.ETP))
	}
	live := big * (2*2 + p.gradBytes())
	return max(live, float64(m.Hidden)*p.vocab()/float64(l.TP)*(2+p.gradBytes()))
}

// keptBy is the activations of one micro-batch in one layer, by kind of layer.
func (p *pricer) keptBy() (out [2]float64) {
	kept := p.kept()
	for i := range out {
		if i == 1 && p.m.Experts == 0 {
			continue
		}
		out[i] = p.m.Activations(i == 1, p.l.Seq, kept).Total * p.tc
		if i == 1 {
			out[i] += p.crowd(kept)
		}
	}
	return out
}

// crowd is what the fullest rank keeps of one layer's routed tokens beyond the mean.
func (p *pricer) crowd(kept work.Kept) float64 {
	if p.l.Imbalance <= 1 || kept.Recompute.Full || kept.Recompute.Has("moe") {
		return 0
	}
	g := 2.0
	if p.m.Gated {
		g = 3
	}
	routed := p.tc * float64(p.m.TopK) / float64(p.l.TP) * float64(p.l.ETP)
	return (p.l.Imbalance - 1) * routed * 2 * (2*float64(p.m.Hidden) + g*float64(p.m.ExpertFFN)/float64(p.l.ETP))
}

// activations is what a rank keeps of the micro-batches that are alive on it.
func (p *pricer) activations(rank int, kept [2]float64, alive float64) float64 {
	l := p.l
	of := func(chunk int) float64 { // of one micro-batch in one chunk
		at, n := p.starts()[chunk], p.counts()[chunk]
		moe := p.experts(at, at+n)
		return float64(n-moe)*kept[0] + float64(moe)*kept[1]
	}
	if l.PP == 1 {
		if l.Schedule == schedule.GPipe {
			return of(0) * float64(l.MicroBatches())
		}
		return of(0)
	}
	mean := 0.0
	for v := range l.VPP {
		mean += of(l.chunk(rank, v))
	}
	return mean / float64(l.VPP) * alive
}

// again1 is the one layer that is alive while it is computed again.
func (p *pricer) again1() float64 {
	if !p.l.Recompute.Full {
		return 0
	}
	whole := p.kept()
	whole.Recompute = work.Recompute{}
	return p.m.Activations(p.m.MoELayers() > 0, p.l.Seq, whole).Total * p.tc
}

// passing is the temporary gradients of one layer's activations, and the buffers between stages.
func (p *pricer) passing() float64 {
	bytes := 2 * p.tc * float64(p.m.Hidden) * 4
	if p.l.TP > 1 && p.l.Sequence { // a gathered input
		bytes += 2 * p.tc * float64(p.m.Hidden)
	}
	return bytes
}

// logits is what the loss needs on the rank that computes it: logits, their copy in fp32, the gradient.
func (p *pricer) logits(rank int) float64 {
	l := p.l
	if rank != l.PP-1 && l.Schedule != schedule.ZBV || rank != 0 && l.Schedule == schedule.ZBV {
		return 0
	}
	per := 10.0
	if p.f == Megatron || l.FusedLoss {
		per = 6
	}
	return p.tc * p.vocab() / float64(l.TP) * per * float64(1+p.m.MTP)
}

// casts is the fp8 copies of the weights, kept from the first micro-batch of a step to its last.
func (p *pricer) casts(o held) float64 { return p.cast() * (o.dense + o.experts) }

// cast is their bytes for a parameter.
func (p *pricer) cast() float64 {
	switch {
	case p.t != "fp8" || p.f != Megatron:
		return 0
	case p.l.Dtype == "mxfp8":
		return 2
	}
	return 1
}

// buckets is what DeepSpeed collects gradients in.
func (p *pricer) buckets(o held) float64 {
	if p.f != DeepSpeed || p.l.DP == 1 && !p.l.Offload {
		return 0
	}
	return min(4.5*5e8, 4*(o.dense+o.experts))
}

// spare is the allocator's slack.
func (p *pricer) spare() float64 {
	if p.f == Megatron {
		return slack
	}
	return slackPieces
}

// memory fills in what a rank holds on the worst stage.
func (p *pricer) memory(c *Cost) {
	l, m := p.l, p.m
	b := p.bytesPer()
	c.Capacity = p.mc.Usable()
	if m.CNN != nil {
		n := m.Params().Total
		state := n*(b.weights+b.gradients+b.optimizer) + n*(b.sharedW+b.sharedG+b.sharedO)/float64(l.Sharded())
		act := 2 * m.CNN.Activations() * float64(l.Micro)
		used := state + act + p.workspace()
		c.State = state
		c.Peak, c.least, c.Over = p.settled(used, slack)
		c.Memory = []Term{{Name: "state", Value: state, Unit: "B"}, {Name: "activations", Value: act, Unit: "B"}}
		return
	}
	alive := p.alive(c)
	all := p.footprints(alive)
	worst := 0
	c.Stages = nil
	for rank, x := range all {
		total, _, _ := p.settled(x.peak, p.spare())
		c.Stages = append(c.Stages, StageMemory{x.state, total, x.peak})
		if x.peak > all[worst].peak {
			worst = rank
		}
	}
	c.Stage, c.State = worst, all[worst].state
	c.Peak, c.least, c.Over = p.settled(all[worst].peak, p.spare())
	c.Memory = p.memoryTerms(all[worst], worst, alive[worst], c.Peak)
}

// memoryTerms says what a rank's peak is made of.
func (p *pricer) memoryTerms(x footprint, rank int, alive, total float64) (out []Term) {
	l, b, o := p.l, p.bytesPer(), p.holds()[rank]
	share := float64(l.Sharded())
	if l.ZeRO == 0 {
		share = 1
	}
	put := func(name string, v float64, why string) {
		if v > 0 {
			out = append(out, Term{Name: name, Value: v, Unit: "B", Why: why})
		}
	}
	put("weights", x.weights, fmt.Sprintf("%.4gB parameters, %s", (o.dense+o.experts)/1e9, sharing(b.weights, b.sharedW, share)))
	put("gradients", x.grads+x.transient, sharing(b.gradients, b.sharedG+b.transient, share))
	put("optimizer", x.optim, sharing(b.optimizer, b.sharedO, share))
	put("gathered layers", x.live, "two layers and the gradient of one")
	put("activations", x.act, fmt.Sprintf("%.3g micro-batches of %.3g layers alive, recompute %s",
		alive, float64(o.layers)/float64(l.VPP), l.Recompute))
	put("head", x.head, "logits and their gradient")
	put("fp8 weights", x.cast, "copies for the matrix products")
	put("buckets", x.bucket, "4.5 x 5e8 elements while gradients are reduced")
	put("workspace", x.passing+p.workspace(), "gradients of one layer, transfers, libraries")
	put("allocator", total-x.peak, fmt.Sprintf("%.0f%% of the peak, less where memory is short", 100*p.spare()))
	return out
}

// settled is what the allocator holds when the framework has used bytes in use, the least that it can hold, and by how much that
// is more than the GPU has. The slack goes first when memory is short.
func (p *pricer) settled(used, spare float64) (peak, least, over float64) {
	holes := torn
	if p.f == DeepSpeed {
		holes = tornZeRO
	}
	least, room := used*(1+holes), p.mc.Usable()-p.outside()
	return max(least, min(used*(1+spare), room)), least, least - room
}

// outside is what a process holds beyond what the framework allocates: its context, and buffers for the group of all ranks and for
// each kind of parallelism.
func (p *pricer) outside() float64 {
	l := p.l
	bytes := contextBytes + groupBytes
	for _, n := range []int{l.TP, l.PP, l.EP} {
		if n > 1 {
			bytes += groupBytes
		}
	}
	return bytes
}

// workspace is what libraries keep on this GPU. Transformer Engine keeps four more for grouped products of experts, of 32 MiB
// from Hopper on and of 4 MiB before: Megatron's own tests that differ in nothing else are 134.2 and 16.9 MB apart.
func (p *pricer) workspace() float64 {
	hopper := p.mc.Chip.Peak["fp8"] > 0
	bytes := workspaceBytes
	if hopper {
		bytes = workspaceTMA
	}
	if p.m.Experts > 0 && p.f == Megatron && !p.l.Looped {
		if hopper {
			return bytes + 4*32<<20
		}
		return bytes + 4*4<<20
	}
	return bytes
}

func sharing(held, shared, ranks float64) string {
	if shared == 0 {
		return fmt.Sprintf("%g bytes each", held)
	}
	return fmt.Sprintf("%g + %g/%.0f bytes each", held, shared, ranks)
}

// known is how many micro-batches' activations of a chunk each rank holds at once, where the schedule alone says so.
func (p *pricer) known() []float64 {
	out := append(p.scratch.alive[:0], make([]float64, p.l.PP)...)
	pipe := p.pipe(nil, false)
	for i := range out {
		n, ok := pipe.Holds(i)
		if !ok {
			return nil
		}
		out[i] = float64(n)
	}
	return out
}

// atLeast is a lower bound of what each rank holds at once, for schedules whose ranks choose; nil where there is none.
func (p *pricer) atLeast(stages []chunkTime) []float64 {
	pipe := p.pipe(stages, false)
	pipe.Hops = p.hops().hops
	if pipe.Check() != nil {
		return nil
	}
	out := make([]float64, pipe.Ranks)
	for i, x := range pipe.HoldsAtLeast() {
		out[i] = float64(x)
	}
	return out
}

// alive is how many micro-batches' activations of a whole stage are held at once, by rank.
func (p *pricer) alive(c *Cost) []float64 {
	l := p.l
	out := make([]float64, l.PP)
	for i := range out {
		switch {
		case c.Pipe != nil && len(c.Pipe.Alive) == l.PP:
			out[i] = float64(c.Pipe.Alive[i]) / 1
		case l.Schedule == schedule.GPipe:
			out[i] = float64(l.MicroBatches())
		default:
			out[i] = math.Min(float64(l.PP-i), float64(l.MicroBatches()))
		}
	}
	return out
}
