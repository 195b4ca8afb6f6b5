package plan

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/plan/schedule"
	"github.com/weft-fabric/weft/work"
)

// Fixed parts of a process on a GPU, in bytes: measured on Megatron's own tests and by users.
const (
	contextBytes   = 1.3e9   // CUDA context and NCCL's buffers: outside of what the framework allocates
	workspaceBytes = 0.075e9 // of libraries for matrix products
	workspaceTMA   = 0.115e9 // the same from Hopper on
	slack          = 0.04    // the allocator's, of what it hands out at peak
	slackFSDP      = 0.19    // the same where layers are gathered and freed all the time: torchtitan's reports over the sum
	torn           = 0.02    // of the memory in use, that is left in holes when memory is short and the allocator has given the rest of its slack back
)

// StageMemory is what a rank of a pipeline stage holds, in bytes: between steps, and at most.
type StageMemory struct {
	State float64 `json:"state_bytes"`
	Peak  float64 `json:"peak_bytes"`
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
	k := work.Kept{TP: p.l.TP, ETP: p.l.ETP, Sequence: p.l.Sequence, Flash: p.l.Flash, Dropout: p.l.Dropout, Bytes: 2, Recompute: p.l.Recompute}
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
		c.Peak, c.Over = p.settled(used, slack)
		c.Memory = []Term{{Name: "state", Value: state, Unit: "B"}, {Name: "activations", Value: act, Unit: "B"}}
		return
	}
	share := float64(l.Sharded())
	shareE := max(float64(l.ExpertData())*share/float64(l.DP*l.CP), 1)
	if l.ZeRO == 0 {
		share, shareE = 1, 1
	}
	kept := p.kept()
	var layerAct [2]float64
	for i := range layerAct {
		if i == 1 && m.Experts == 0 {
			continue
		}
		layerAct[i] = m.Activations(i == 1, l.Seq, kept).Total * p.tc
	}
	whole := kept
	whole.Recompute = work.Recompute{}
	holds := p.holds()
	counts := split(m.Layers, l.PP*l.VPP)
	actOf := make([]float64, len(counts)) // of one micro-batch in one chunk
	at := 0
	for i, n := range counts {
		for range n {
			actOf[i] += layerAct[b2i(m.IsMoE(at))]
			at++
		}
	}
	alive := p.alive(c)
	worst := -1.0
	c.Stages = nil
	for rank, o := range holds {
		weights := o.dense*b.weights + o.experts*b.weights + o.dense*b.sharedW/share + o.experts*b.sharedW/shareE
		grads := (o.dense+o.experts)*b.gradients + o.dense*b.sharedG/share + o.experts*b.sharedG/shareE
		optim := (o.dense+o.experts)*b.optimizer + o.dense*b.sharedO/share + o.experts*b.sharedO/shareE
		transient := o.dense*b.transient/share + o.experts*b.transient/shareE
		// Live parameters of ZeRO-3: two layers gathered, and one layer's gradient.
		live := 0.0
		if l.ZeRO >= 3 {
			big := 0.0
			for i := range 2 {
				if i == 1 && m.Experts == 0 || i == 0 && m.DenseLayers() == 0 {
					continue
				}
				lp := m.Layer(i == 1)
				big = max(big, (lp.Attention+lp.MLP)/float64(l.TP)+lp.Replicated+lp.Experts/float64(l.EP*l.ETP))
			}
			live = big * (2*2 + p.gradBytes())
			live = max(live, float64(m.Hidden)*p.vocab()/float64(l.TP)*(2+p.gradBytes()))
		}
		var act float64
		switch {
		case l.PP == 1:
			act = actOf[0]
			if l.Schedule == schedule.GPipe {
				act *= float64(l.MicroBatches())
			}
		default:
			mean := 0.0
			for v := range l.VPP {
				i := v*l.PP + rank
				if l.Schedule == schedule.ZBV && v == 1 {
					i = 2*l.PP - 1 - rank
				}
				mean += actOf[i]
			}
			act = mean / float64(l.VPP) * alive[rank]
		}
		if l.Recompute.Full { // one layer is alive while it is computed again
			act += m.Activations(m.MoELayers() > 0, l.Seq, whole).Total * p.tc
		}
		// Temporary gradients of one layer's activations, and the buffers between stages.
		work := 2 * p.tc * float64(m.Hidden) * 4
		if l.TP > 1 && l.Sequence { // a gathered input
			work += 2 * p.tc * float64(m.Hidden)
		}
		head := 0.0
		if rank == l.PP-1 && l.Schedule != schedule.ZBV || rank == 0 && l.Schedule == schedule.ZBV {
			per := 10.0 // logits, their copy in fp32, the gradient
			if p.f == Megatron || l.FusedLoss {
				per = 6
			}
			head = p.tc * p.vocab() / float64(l.TP) * per * float64(1+m.MTP)
		}
		cast := 0.0 // fp8 copies of the weights, kept from the first micro-batch of a step to its last
		if p.t == "fp8" && p.f == Megatron {
			cast = (o.dense + o.experts) * 1
			if l.Dtype == "mxfp8" {
				cast *= 2
			}
		}
		bucket := 0.0
		if p.f == DeepSpeed && (l.DP > 1 || l.Offload) {
			bucket = min(4.5*5e8, 4*(o.dense+o.experts))
		}
		state := weights + grads + optim + p.workspace()
		peak := state + transient + live + max(act+work, 0) + head + cast + bucket
		spare := slack
		if p.f == FSDP {
			spare = slackFSDP
		}
		total, over := p.settled(peak, spare)
		c.Stages = append(c.Stages, StageMemory{state, total})
		if peak <= worst {
			continue
		}
		worst = peak
		c.Stage, c.State, c.Peak, c.Over = rank, state, total, over
		c.Memory = nil
		put := func(name string, v float64, why string) {
			if v > 0 {
				c.Memory = append(c.Memory, Term{Name: name, Value: v, Unit: "B", Why: why})
			}
		}
		put("weights", weights, fmt.Sprintf("%.4gB parameters, %s", (o.dense+o.experts)/1e9, sharing(b.weights, b.sharedW, share)))
		put("gradients", grads+transient, sharing(b.gradients, b.sharedG+b.transient, share))
		put("optimizer", optim, sharing(b.optimizer, b.sharedO, share))
		put("gathered layers", live, "two layers and the gradient of one")
		put("activations", act, fmt.Sprintf("%.3g micro-batches of %.3g layers alive, recompute %s", alive[rank], float64(o.layers)/float64(l.VPP), l.Recompute))
		put("head", head, "logits and their gradient")
		put("fp8 weights", cast, "copies for the matrix products")
		put("buckets", bucket, "4.5 x 5e8 elements while gradients are reduced")
		put("workspace", work+p.workspace(), "gradients of one layer, transfers, libraries")
		put("allocator", total-peak, fmt.Sprintf("%.0f%% of the peak, less where memory is short", 100*spare))
	}
}

// settled is what the allocator holds when the framework has used bytes in use, and by how much that is more than the GPU
// has. The slack goes first when memory is short.
func (p *pricer) settled(used, spare float64) (peak, over float64) {
	least, room := used*(1+torn), p.mc.Usable()-contextBytes
	return max(least, min(used*(1+spare), room)), least - room
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
