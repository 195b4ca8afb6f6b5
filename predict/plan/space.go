package plan

import (
	"slices"

	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// space is every layout that a framework accepts for a model on up to gpus GPUs. docs/reference/plan.md lists its rules under "Searching".
// What it leaves out is never better than something that it has, and each place that does so says why.
//
// It is walked in three levels, from what decides the time of a layer to what only moves layers around:
//
//	family  tp, sp, cp, cp-kind, micro, ep, etp    a layer's kernels and transfers follow
//	grid    dp, pp                                 the GPUs in use and the micro-batches follow
//	leaf    zero, shard, recompute; schedule, vpp; first-less, last-less
type space struct {
	m    *work.Model
	f    Framework
	w    Wish
	gpus int
	base Layout // what every layout has in common
	send string // what brings tokens to experts, as dispatchers says

	again  []work.Recompute
	orders orders
	ranks  map[int][]int // data ranks by micro-batch
	ends   []bool        // which numbers of layers at both ends of a split were met, used again
}

func newSpace(m *work.Model, mc *Machine, f Framework, w Wish) *space {
	base := Default(f)
	base.Batch, base.Seq = w.Batch, w.Seq
	for _, x := range []struct {
		to   *string
		from string
	}{{&base.Dtype, w.Dtype}, {&base.Grad, w.Grad}, {&base.Phase, w.Phase}} {
		if x.from != "" {
			*x.to = x.from
		}
	}
	s := &space{m: m, f: f, w: w, gpus: mc.GPUs, base: base, send: dispatchers(f, mc), ranks: map[int][]int{}}
	s.again = s.recomputes()
	return s
}

// divisors of n in order.
func divisors(n int) []int {
	var out []int
	for d := 1; d*d <= n; d++ {
		if n%d == 0 {
			out = append(out, d)
			if d*d != n {
				out = append(out, n/d)
			}
		}
	}
	slices.Sort(out)
	return out
}

// contexts are the kinds of context parallelism that a framework has.
func (s *space) contexts(cp int) []string {
	switch {
	case cp == 1:
		return []string{s.base.Context}
	case s.f == DeepSpeed:
		return []string{"ulysses"}
	case s.f == FSDP:
		return []string{"ring", "gather"}
	}
	return []string{"ring", "ulysses", "gather"}
}

// sequences says whether norms may be cut over tensor parallel ranks, or must be. Megatron's layers with experts need it.
func (s *space) sequences(tp int) []bool {
	if s.f == Megatron && tp > 1 && s.m.Experts == 0 {
		return []bool{true, false}
	}
	return []bool{s.base.Sequence}
}

// tensors are the sizes of tensor parallel groups inside an expert. Megatron takes any; prices are known up to tp.
func (s *space) tensors(tp int) []int {
	if s.m.Experts == 0 {
		return []int{tp}
	}
	if s.f == Megatron {
		return divisors(tp)
	}
	return slices.Compact([]int{1, tp})
}

// experts are the sizes of expert parallel groups. DeepSpeed's are set in the training script, and are not searched.
func (s *space) experts() []int {
	if s.m.Experts == 0 || s.f == DeepSpeed {
		return []int{1}
	}
	return divisors(s.m.Experts)
}

// dispatchers names the kernels that bring tokens to experts where a framework has some for a GPU; they are never slower than all-to-all.
// DeepEP runs on NVIDIA's GPUs from Ampere on, in NVLink domains of one host; HybridEP, which torchtitan lacks, in larger ones, too.
func dispatchers(f Framework, mc *Machine) string {
	large := mc.Domain > mc.HostGPUs
	switch nvidia := mc.GPU.Compute >= 80; {
	case f == Megatron && nvidia && large:
		return "hybridep"
	case f == DeepSpeed || !nvidia || large:
		return ""
	}
	return "deepep"
}

// families calls do for each family, with one data rank and one stage.
func (s *space) families(do func(Layout)) {
	for _, tp := range divisors(s.m.Heads) {
		for _, cp := range divisors(s.w.Seq) {
			if tp*cp > s.gpus || cp > 1 && s.w.Seq%(2*cp) != 0 {
				continue
			}
			s.familiesOf(tp, cp, do)
		}
	}
}

func (s *space) familiesOf(tp, cp int, do func(Layout)) {
	for _, sp := range s.sequences(tp) {
		for _, kind := range s.contexts(cp) {
			for _, micro := range divisors(s.w.Batch) {
				for _, etp := range s.tensors(tp) {
					for _, ep := range s.experts() {
						l := s.base
						l.TP, l.CP, l.Sequence, l.Context, l.Micro, l.ETP, l.EP = tp, cp, sp, kind, micro, etp, ep
						if ep > 1 {
							l.Sender = s.send
						}
						if tp == 1 {
							l.Sequence = s.base.Sequence
						}
						do(l)
					}
				}
			}
		}
	}
}

// placed reports whether a family has any grid: data ranks that divide the batch, and with which the GPUs suffice and experts divide.
func (s *space) placed(l Layout) bool {
	return slices.ContainsFunc(s.dataRanks(l), func(dp int) bool {
		return l.TP*l.CP*dp <= s.gpus && l.TP*l.CP*dp%(l.EP*l.ETP) == 0
	})
}

// dataRanks are the numbers of data ranks that a batch can be shared by.
func (s *space) dataRanks(l Layout) []int {
	out := s.ranks[l.Micro]
	if out == nil {
		out = divisors(s.w.Batch / l.Micro)
		s.ranks[l.Micro] = out
	}
	return out
}

// grids calls do for each number of data ranks and stages that a family may have.
func (s *space) grids(l Layout, do func(Layout)) {
	for _, dp := range s.dataRanks(l) {
		one := l.TP * l.CP * dp
		if one > s.gpus || one%(l.EP*l.ETP) != 0 {
			continue
		}
		for pp := 1; pp <= s.m.Layers+2 && pp*one <= s.gpus; pp++ {
			l.DP, l.PP = dp, pp
			do(l)
		}
	}
}

// sharings calls do for each way to share state among data ranks, with nothing computed again.
func (s *space) sharings(l Layout, do func(Layout)) {
	for _, zero := range s.zeros(l.PP) {
		for _, shard := range s.shards(l, zero) {
			l.ZeRO, l.Shard, l.Recompute = zero, shard, work.Recompute{}
			do(l)
		}
	}
}

// zeros are the stages of ZeRO. Megatron has a shared optimizer and, as Megatron-FSDP, all of it; DeepSpeed's pipelines share the optimizer
// at most.
func (s *space) zeros(pp int) []int {
	switch {
	case s.f == FSDP:
		return []int{2, 3}
	case s.f == Megatron:
		return []int{0, 1, 3}
	case pp > 1:
		return []int{0, 1}
	}
	return []int{0, 1, 2, 3}
}

// shards are the sizes of the groups that share one copy of all state; 0 for all data ranks. Below ZeRO 3 a smaller group sends
// the same, holds more and has a longer optimizer step, so it is never better.
func (s *space) shards(l Layout, zero int) []int {
	out := []int{0}
	if s.f != FSDP || zero < 3 {
		return out
	}
	for _, n := range divisors(l.DP * l.CP) {
		if n < l.DP*l.CP && n%l.CP == 0 && l.TP*n%(l.EP*l.ETP) == 0 {
			out = append(out, n)
		}
	}
	return out
}

// recomputes are the sets of modules that may be computed again. Norms and activation functions cost one pass over the same bytes,
// for one of them or for all, so all are taken; scores of flash attention are never kept, so there is nothing to compute again; and
// all of a layer's experts hold what their parts do.
func (s *space) recomputes() []work.Recompute {
	out := []work.Recompute{{}, {Full: true}}
	switch s.f {
	case DeepSpeed:
		return out
	case FSDP:
		return append(out, work.Recompute{Modules: []string{"op"}})
	}
	vector := []string{"layernorm"}
	groups := [][]string{vector}
	if s.m.Experts > 0 {
		groups[0] = append(groups[0], "moe_act")
		groups = append(groups, []string{"moe"})
	}
	if s.m.SharedFFN > 0 {
		groups = append(groups, []string{"shared_experts"})
	}
	if s.m.MLA != nil {
		groups = append(groups, []string{"mla_up_proj"})
	}
	if s.m.DenseLayers() > 0 {
		groups = append(groups, []string{"mlp"})
	}
	if !s.base.Flash {
		groups = append(groups, []string{"core_attn"})
	}
	for set := 1; set < 1<<len(groups); set++ {
		var names []string
		for i, g := range groups {
			if set>>i&1 == 1 {
				names = append(names, g...)
			}
		}
		slices.Sort(names)
		out = append(out, work.Recompute{Modules: names})
	}
	return out
}

// schedules are the orders of passes that a framework has, or those that were asked for.
func (s *space) schedules() []schedule.Kind {
	switch {
	case s.w.Schedules != nil:
		return s.w.Schedules
	case s.f == FSDP:
		return []schedule.Kind{schedule.OneFOneB, schedule.Interleaved, schedule.ZBV, schedule.GPipe}
	case s.f == DeepSpeed:
		return []schedule.Kind{schedule.OneFOneB}
	}
	return []schedule.Kind{schedule.OneFOneB, schedule.Interleaved}
}

// hides reports whether expert traffic is hidden: wherever Megatron can, since that never takes longer.
func (s *space) hides(l Layout) bool { return s.f == Megatron && l.mayHideExperts() }

// pipelines calls do for each schedule and number of chunks. One stage has no order to choose.
func (s *space) pipelines(l Layout, do func(Layout)) {
	if l.PP == 1 {
		l.VPP, l.Schedule = 1, schedule.OneFOneB
		l.EPOverlap = s.hides(l)
		do(l)
		return
	}
	for _, x := range s.ordered(l.PP, l.MicroBatches()) {
		for vpp := x.least; vpp <= x.most; vpp++ {
			l.VPP, l.Schedule = vpp, x.kind
			l.EPOverlap = s.hides(l)
			do(l)
		}
	}
}

// order is a schedule, and how many chunks a rank may have in it.
type order struct {
	kind        schedule.Kind
	least, most int
}

// orders is those of a number of stages and of micro-batches. All layouts of a grid share them.
type orders struct {
	pp, micro, kinds int
	list             []order
}

// ordered finds the schedules that run.
func (s *space) ordered(pp, micro int) []order {
	kinds := s.schedules()
	if s.orders.pp == pp && s.orders.micro == micro && s.orders.kinds == len(kinds) { // a search asks for some of its kinds, then for all
		return s.orders.list
	}
	list := s.orders.list[:0]
	for _, kind := range kinds {
		x := order{kind, 1, 1}
		switch kind {
		case schedule.Interleaved:
			x.least, x.most = 2, (s.m.Layers+2)/pp
		case schedule.ZBV:
			x.least, x.most = 2, 2
		}
		some := schedule.Pipe{Kind: kind, Ranks: pp, Chunks: x.least, Micro: micro}
		if pp*x.least <= s.m.Layers+2*b2i(x.least > 1) && some.Legal() == nil {
			list = append(list, x)
		}
	}
	s.orders = orders{pp, micro, len(kinds), list}
	return list
}

// splits calls do for each way to count the embedding and the head as layers when a pipeline is cut, if no rank holds more than most
// layers. Counting them for more only adds to what the chunks between hold, so rows of splits end there. The next call of do has the same
// counts, written over.
func (s *space) splits(l Layout, most int, do func(l Layout, counts []int)) {
	n, layers := l.PP*l.VPP, s.m.Layers
	if n == 1 {
		do(l, []int{layers})
		return
	}
	between := l.VPP // chunks of a rank that are neither the first nor the last, at least
	if l.PP == 2 {
		between--
	}
	// Ends that hold nothing end it: a chunk of u/n layers, u of them counted, is relieved of u/n + 1 at most.
	limit := layers
	if n > 2 {
		limit = min(limit, (layers+1)/(n-2)+2)
	}
	// Chunks between the ends are as even as can be, so what both ends hold tells splits apart.
	known := s.ends
	if known == nil {
		known = make([]bool, (layers+1)*(layers+1))
		s.ends = known
	}
	clear(known)
	var counts []int
	for last := 0; last <= limit && (layers+last)/n*between <= most; last++ {
		for first := 0; first <= limit && (layers+last+first)/n*between <= most; first++ {
			units := layers + last + first
			if units/n < first || n == 2 && first > 0 && last > 0 { // with two chunks one of both does
				break
			}
			if units/n+1 < last {
				continue
			}
			a, b := splitEnds(layers, n, first, last)
			if a < 0 || b < 0 || known[a*(layers+1)+b] {
				continue
			}
			known[a*(layers+1)+b] = true
			counts = splitInto(counts, layers, n, first, last)
			if heaviest(l, counts) > most {
				continue
			}
			l.FirstLess, l.LastLess = first, last
			do(l, counts)
		}
	}
}

// heaviest is the most layers that a rank holds.
func heaviest(l Layout, counts []int) int {
	if l.Schedule == schedule.DualPipe { // half of the micro-batches of two stages
		return 0
	}
	most := 0
	for rank := range l.PP {
		n := 0
		if l.Schedule == schedule.ZBV {
			n = counts[rank] + counts[len(counts)-1-rank]
		} else {
			for at := rank; at < len(counts); at += l.PP {
				n += counts[at]
			}
		}
		most = max(most, n)
	}
	return most
}
