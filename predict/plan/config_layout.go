package plan

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// Given is what flags say where a configuration does not.
type Given struct {
	Batch, Seq, Micro int
	Dtype             string
}

// Layout makes a layout of what the configuration says, for a model and a number of GPUs. What is missing is
// asked for, all at once; what contradicts itself is an error.
func (c *Config) Layout(m *work.Model, gpus int, g Given) (Layout, error) {
	l := Default(c.Framework)
	if err := c.degrees(&l, gpus); err != nil {
		return l, err
	}
	if err := c.stages(&l, m.Layers); err != nil {
		return l, err
	}
	l.ETP = c.expertTensor(&l, m)
	if err := c.mesh(&l, gpus); err != nil {
		return l, err
	}
	missing, err := c.batches(&l, g)
	if err != nil {
		return l, err
	}
	if l.Seq = cmp.Or(max(g.Seq, 0), c.get("seq", 0)); l.Seq == 0 {
		missing = append(missing, "--seq TOKENS")
	}
	if l.Dtype = cmp.Or(g.Dtype, c.Dtype); l.Dtype == "" {
		missing = append(missing, "--dtype TYPE")
		l.Dtype = "bf16"
	}
	c.flags(&l, m)
	if len(missing) > 0 {
		return l, fmt.Errorf("the file does not say everything; add %s", strings.Join(missing, ", "))
	}
	return l, l.Check(m, gpus)
}

// get is a value, or another one where the file has none.
func (c *Config) get(key string, otherwise int) int {
	if v, ok := c.Values[key]; ok {
		return v
	}
	return otherwise
}

// degrees are how many ranks share the parts of a model, and how many copies of it there are.
func (c *Config) degrees(l *Layout, gpus int) error {
	for _, x := range []struct {
		name string
		to   *int
	}{{"tp", &l.TP}, {"cp", &l.CP}, {"pp", &l.PP}, {"ep", &l.EP}} {
		*x.to = cmp.Or(c.get(x.name, 1), 1) // gpt-neox writes 0 for none
		if *x.to < 0 {
			return fmt.Errorf("%s is %d; it must be at least 1", x.name, *x.to)
		}
	}
	if gpus <= 0 {
		return fmt.Errorf("the number of GPUs is not in the file; say --gpus")
	}
	if c.GPUs > 0 && c.GPUs != gpus {
		c.find("the file is for %d GPUs, the plan for %d", c.GPUs, gpus)
	}
	l.ZeRO = c.get("zero", 0)
	return l.fill(gpus)
}

// stages are how a pipeline cuts the layers, and in which order it works.
func (c *Config) stages(l *Layout, layers int) error {
	l.Schedule = cmp.Or(c.Schedule, schedule.OneFOneB)
	l.VPP, l.FirstLess, l.LastLess = c.get("vpp", 1), c.get("first-less", 0), c.get("last-less", 0)
	if c.Chunks != nil {
		if err := l.cutAs(c.Chunks, layers); err != nil {
			return err
		}
	}
	if l.PP == 1 {
		l.VPP, l.Schedule = 1, schedule.OneFOneB
		return nil
	}
	if n := c.get("layers-per-chunk", 0); n > 0 {
		counted := layers + l.FirstLess + l.LastLess
		if counted%(l.PP*n) != 0 {
			return fmt.Errorf("%d layers a chunk do not divide %d layers over pp %d", n, counted, l.PP)
		}
		l.VPP = counted / l.PP / n
	}
	c.order(l)
	return nil
}

// order is the schedule that goes with the chunks.
func (c *Config) order(l *Layout) {
	switch {
	case l.Schedule == schedule.Interleaved && l.VPP == 1:
		l.VPP = 2
		c.find("%s says nothing of chunks a rank: 2 are taken", l.Schedule)
	case l.Schedule == schedule.OneFOneB && l.VPP > 1:
		l.Schedule = schedule.Interleaved
	case l.Schedule == schedule.ZBV:
		l.VPP = 2
	}
}

// expertTensor is how many tensor parallel ranks an expert has.
func (c *Config) expertTensor(l *Layout, m *work.Model) int {
	n := c.get("etp", 0)
	if l.EP == 1 && m.Experts == 0 || n == 0 && (l.EP == 1 || c.Framework == Megatron) {
		return l.TP
	}
	return cmp.Or(n, 1)
}

// mesh is how many data ranks share the state. A mesh of replicas and shards (torchtitan, Accelerate) leaves context parallel ranks out
// of the count; all of them share.
func (c *Config) mesh(l *Layout, gpus int) error {
	ranks, shard, replicas := l.DP*l.CP, c.get("shard", 0), c.get("replicate", 0)
	mesh := replicas > 0 && shard > 0
	if mesh {
		shard *= l.CP
	}
	if shard > 1 && shard < ranks {
		l.Shard = shard
	}
	if replicas > 1 {
		if ranks%replicas != 0 {
			return fmt.Errorf("%d replicas do not divide %d data ranks", replicas, ranks)
		}
		l.Shard = ranks / replicas
	}
	if mesh && shard*replicas != ranks {
		return fmt.Errorf("shard %d x replicate %d is not the %d data ranks that %d GPUs leave", shard/l.CP, replicas, l.DP, gpus)
	}
	return nil
}

// batches are the batch and the micro-batch: any two of these and accumulation fix the third. What the file leaves open is missing.
func (c *Config) batches(l *Layout, g Given) (missing []string, err error) {
	batch, micro, acc := c.get("batch", 0), c.get("micro", 0), c.get("accumulation", 0)
	if g.Batch > 0 {
		if batch > 0 && batch != g.Batch {
			c.find("--batch %d stands instead of the file's %d", g.Batch, batch)
		}
		batch, acc = g.Batch, 0
	}
	if g.Micro > 0 {
		micro = g.Micro
	}
	if c.Local > 0 { // torchtitan: of a data rank; a pipeline cuts it into micro-batches
		batch = cmp.Or(batch, c.Local*l.DP)
		if micro = cmp.Or(micro, 1); l.PP == 1 {
			micro = c.Local
		}
	}
	if acc > 0 {
		batch, micro, err = third(batch, micro, acc, l.DP)
	} else if batch > 0 && micro > 0 {
		err = contradict(batch, micro, 0, l.DP)
	}
	if batch == 0 {
		missing = append(missing, "--batch SEQUENCES")
	}
	if micro == 0 {
		missing = append(missing, "--micro SEQUENCES (of a micro-batch)")
	}
	l.Batch, l.Micro = batch, max(micro, 1)
	return missing, err
}

// third finds the batch or the micro-batch, of which one may be 0, by accumulation.
func third(batch, micro, acc, dp int) (int, int, error) {
	switch {
	case batch > 0 && micro > 0:
		return batch, micro, contradict(batch, micro, acc, dp)
	case batch > 0 && batch%(acc*dp) != 0:
		return batch, micro, fmt.Errorf("batch %d is not a multiple of accumulation %d x %d data ranks", batch, acc, dp)
	case batch > 0:
		micro = batch / (acc * dp)
	case micro > 0:
		batch = micro * acc * dp
	}
	return batch, micro, nil
}

// contradict is why a batch is not that of its parts. acc is 0 where it is not known.
func contradict(batch, micro, acc, dp int) error {
	if batch%(micro*dp) != 0 {
		return fmt.Errorf("batch %d is not a multiple of micro-batch %d x %d data ranks = %d", batch, micro, dp, micro*dp)
	}
	if acc > 0 && batch != micro*acc*dp {
		return fmt.Errorf("batch sizes contradict one another: %d is not micro-batch %d x accumulation %d x %d data ranks = %d",
			batch, micro, acc, dp, micro*acc*dp)
	}
	return nil
}

// flags are what the file says of types, recompute and overlap. The rest is the framework's default.
func (c *Config) flags(l *Layout, m *work.Model) {
	l.Grad, l.Context, l.Phase = cmp.Or(c.Grad, l.Grad), cmp.Or(c.Context, l.Context), cmp.Or(c.Phase, l.Phase)
	if c.Recompute != nil {
		l.Recompute = *c.Recompute
	}
	usual := l.Sequence
	for _, x := range []struct {
		to   *bool
		said *bool
	}{{&l.Sequence, c.Sequence}, {&l.Overlap, c.Overlap}, {&l.TPOverlap, c.TPOverlap}, {&l.DPOverlap, c.DPOverlap}, {&l.Flash, c.Flash}} {
		if x.said != nil {
			*x.to = *x.said
		}
	}
	if l.TP == 1 {
		l.Sequence = usual
	}
	if l.TP == 1 || !l.Sequence { // nothing to overlap
		l.TPOverlap = l.TPOverlap || c.TPOverlap != nil
	}
	l.EPOverlap = c.EPOverlap && l.mayHideExperts()
	l.Blocking, l.Offload, l.Dropout, l.Eager = c.Blocking, c.Offload, c.Dropout, c.Eager
	c.experts(l, m)
}

// experts are what the file says of experts' products and tokens.
func (c *Config) experts(l *Layout, m *work.Model) {
	l.Looped = c.Looped && m.Experts > 0
	l.Fused = c.Fused && m.Experts > 0 && l.Dtype == "mxfp8" && !c.Looped
	l.FP8Scores = c.FP8Scores && gemmType(l.Dtype) != "bf16" && l.Flash
	if l.EP > 1 && (c.Sender == "deepep" || c.Sender == "hybridep") {
		l.Sender = c.Sender
	}
}
