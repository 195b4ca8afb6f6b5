package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// Framework is whose habits a plan follows: what is sharded, what is kept in which type, what is
// hidden behind what.
type Framework string

// The frameworks.
const (
	Megatron  Framework = "megatron"  // Megatron-LM, NeMo, nanotron, Megatron-DeepSpeed
	FSDP      Framework = "fsdp"      // PyTorch FSDP: torchtitan, Composer; MaxText
	DeepSpeed Framework = "deepspeed" // ZeRO
)

// ParseFramework reads a name.
func ParseFramework(s string) (Framework, error) {
	switch f := Framework(strings.ToLower(s)); f {
	case Megatron, FSDP, DeepSpeed:
		return f, nil
	case "torchtitan", "accelerate":
		return FSDP, nil
	case "nemo":
		return Megatron, nil
	case "gpt-neox": // Megatron-DeepSpeed
		return DeepSpeed, nil
	}
	return "", fmt.Errorf("unknown framework %q; known: megatron, fsdp, deepspeed", s)
}

// Layout is how a model is cut over GPUs, and what each step computes.
type Layout struct {
	TP    int `json:"tp"`
	CP    int `json:"cp"`
	PP    int `json:"pp"`
	VPP   int `json:"vpp"` // chunks of layers a pipeline rank
	DP    int `json:"dp"`
	EP    int `json:"ep"`
	ETP   int `json:"etp"`   // tensor parallel ranks inside an expert
	Shard int `json:"shard"` // ranks that share the optimizer's state (HSDP, ZeRO++); 0 for all data ranks

	// Layers that the first and the last chunk hold less than the others, for the embedding and the head beside them. Megatron counts one
	// for each with --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split.
	FirstLess int `json:"first_less,omitempty"`
	LastLess  int `json:"last_less,omitempty"`

	Sequence  bool           `json:"sp"`      // sequence parallel: norms are cut over TP, too
	Context   string         `json:"cp_kind"` // ring, ulysses, gather
	ZeRO      int            `json:"zero"`
	Schedule  schedule.Kind  `json:"schedule"`
	Micro     int            `json:"micro"`
	Batch     int            `json:"batch"` // sequences a step, all ranks together
	Seq       int            `json:"seq"`
	Document  int            `json:"document,omitempty"` // tokens of each document that a sequence is packed from: they attend to one another; 0 for one
	Recompute work.Recompute `json:"recompute"`
	Dtype     string         `json:"dtype"`                  // bf16, fp16, fp32, fp8, mxfp8, nvfp4: of the matrix products
	Grad      string         `json:"grad"`                   // fp32 or bf16: how gradients are summed and sent
	Phase     string         `json:"phase"`                  // pretrain, sft, lora
	Overlap   bool           `json:"overlap"`                // communication of tensor and data parallelism runs beside compute
	TPOverlap bool           `json:"tp_overlap"`             // of it, transfers of tensor parallelism are cut up and run beside their own products: Megatron's --tp-comm-overlap, torchtitan's enable_async_tensor_parallel
	EPOverlap bool           `json:"ep_overlap,omitempty"`   // of it, tokens travel to experts and back beside the compute of another micro-batch: Megatron's --overlap-moe-expert-parallel-comm
	DPOverlap bool           `json:"dp_overlap"`             // of it, gradients' reduction, beside the last backward: --overlap-grad-reduce
	Blocking  bool           `json:"blocking_p2p,omitempty"` // a rank computes nothing while it sends to another stage
	Flash     bool           `json:"flash"`                  // attention never writes its scores
	TEScores  bool           `json:"te_attention,omitempty"` // in PyTorch, attention by Transformer Engine, not FlashAttention-2
	Eager     bool           `json:"eager,omitempty"`        // in PyTorch, norms, rotations and activations are not compiled
	FusedLoss bool           `json:"fused_loss,omitempty"`   // the loss keeps no copy of the logits; Megatron's never does
	Dropout   bool           `json:"dropout,omitempty"`
	Looped    bool           `json:"looped_experts,omitempty"` // products of experts one after the other, not grouped
	Fused     bool           `json:"fused_experts,omitempty"`  // with their activation: Megatron's --use-transformer-engine-op-fuser
	FP8Scores bool           `json:"fp8_attention,omitempty"`  // attention multiplies in fp8, too: Megatron's --fp8-dot-product-attention
	Sender    string         `json:"dispatcher,omitempty"`     // what brings tokens to experts: alltoall (also ""), deepep, hybridep
	Offload   bool           `json:"offload,omitempty"`        // the optimizer's state lives in host memory
	Imbalance float64        `json:"imbalance,omitempty"`      // tokens of the fullest expert parallel rank over the mean; 0 and 1 are even
}

// GPUs is how many it takes.
func (l Layout) GPUs() int { return l.TP * l.CP * l.PP * l.DP }

// MicroBatches is how many a step has on each pipeline.
func (l Layout) MicroBatches() int { return l.Batch / (l.Micro * l.DP) }

// Sharded is how many ranks share one copy of the dense parameters' state.
func (l Layout) Sharded() int {
	if l.Shard > 0 {
		return l.Shard
	}
	return l.DP * l.CP
}

// ExpertData is how many data ranks an expert's parameters have.
func (l Layout) ExpertData() int { return max(l.TP*l.CP*l.DP/(l.ETP*l.EP), 1) }

// Default is a layout that cuts nothing.
func Default(f Framework) Layout {
	l := Layout{TP: 1, CP: 1, PP: 1, VPP: 1, DP: 1, EP: 1, ETP: 0, Sequence: true, Context: "ring", Schedule: schedule.OneFOneB, Micro: 1,
		Dtype: "bf16", Grad: "fp32", Phase: "pretrain", Overlap: true, TPOverlap: true, DPOverlap: true, Flash: true}
	switch f {
	case FSDP:
		l.ZeRO = 3
	default:
		l.ZeRO = 1
	}
	if f == DeepSpeed {
		l.Grad, l.Sequence, l.Context = "bf16", false, "ulysses"
	}
	return l
}

// A setting is a key of ParseLayout and how its value is read.
type setting struct {
	key  string
	read func(l *Layout, value string) error
}

// settings are what ParseLayout knows, in the order in which String writes them.
var settings = []setting{
	atLeast("tp", 1, func(l *Layout) *int { return &l.TP }),
	atLeast("cp", 1, func(l *Layout) *int { return &l.CP }),
	atLeast("pp", 1, func(l *Layout) *int { return &l.PP }),
	atLeast("vpp", 1, func(l *Layout) *int { return &l.VPP }),
	atLeast("dp", 1, func(l *Layout) *int { return &l.DP }),
	atLeast("ep", 1, func(l *Layout) *int { return &l.EP }),
	atLeast("etp", 1, func(l *Layout) *int { return &l.ETP }),
	atLeast("shard", 0, func(l *Layout) *int { return &l.Shard }),
	truth("sp", func(l *Layout) *bool { return &l.Sequence }),
	oneOf("cp-kind", func(l *Layout) *string { return &l.Context }, "ring", "ulysses", "gather"),
	{"zero", readZeRO},
	{"schedule", func(l *Layout, value string) (err error) { l.Schedule, err = schedule.ParseKind(value); return err }},
	atLeast("first-less", 0, func(l *Layout) *int { return &l.FirstLess }),
	atLeast("last-less", 0, func(l *Layout) *int { return &l.LastLess }),
	atLeast("micro", 1, func(l *Layout) *int { return &l.Micro }),
	atLeast("batch", 1, func(l *Layout) *int { return &l.Batch }),
	atLeast("seq", 1, func(l *Layout) *int { return &l.Seq }),
	atLeast("document", 0, func(l *Layout) *int { return &l.Document }),
	{"recompute", func(l *Layout, value string) (err error) { l.Recompute, err = work.ParseRecompute(value); return err }},
	oneOf("dtype", func(l *Layout) *string { return &l.Dtype }, "bf16", "fp16", "fp32", "fp8", "mxfp8", "fp8block", "nvfp4"),
	oneOf("grad", func(l *Layout) *string { return &l.Grad }, "fp32", "bf16"),
	oneOf("phase", func(l *Layout) *string { return &l.Phase }, "pretrain", "sft", "lora"),
	truth("overlap", func(l *Layout) *bool { return &l.Overlap }),
	truth("tp-overlap", func(l *Layout) *bool { return &l.TPOverlap }),
	truth("ep-overlap", func(l *Layout) *bool { return &l.EPOverlap }),
	truth("dp-overlap", func(l *Layout) *bool { return &l.DPOverlap }),
	either("p2p", "overlap", "blocking", func(l *Layout) *bool { return &l.Blocking }),
	truth("flash", func(l *Layout) *bool { return &l.Flash }),
	either("attention", "torch", "te", func(l *Layout) *bool { return &l.TEScores }),
	either("compile", "on", "off", func(l *Layout) *bool { return &l.Eager }),
	either("loss", "plain", "fused", func(l *Layout) *bool { return &l.FusedLoss }),
	truth("dropout", func(l *Layout) *bool { return &l.Dropout }),
	{"experts", readExperts},
	oneOf("dispatcher", func(l *Layout) *string { return &l.Sender }, "alltoall", "deepep", "hybridep"),
	truth("fp8-attention", func(l *Layout) *bool { return &l.FP8Scores }),
	{"imbalance", readImbalance},
	truth("offload", func(l *Layout) *bool { return &l.Offload }),
}

// atLeast is a number from least on.
func atLeast(key string, least int, of func(*Layout) *int) setting {
	return setting{key, func(l *Layout, value string) (err error) {
		to := of(l)
		if *to, err = strconv.Atoi(value); err != nil || *to < least || *to > 1<<26 {
			return fmt.Errorf("%s is %q; want a number from %d on", key, value, least)
		}
		return nil
	}}
}

// truth is on or off.
func truth(key string, of func(*Layout) *bool) setting {
	return setting{key, func(l *Layout, value string) (err error) {
		switch value {
		case "on", "yes":
			*of(l) = true
		case "off", "no":
			*of(l) = false
		default:
			if *of(l), err = strconv.ParseBool(value); err != nil {
				return fmt.Errorf("%s is %q; want on or off", key, value)
			}
		}
		return nil
	}}
}

// oneOf is one of some words.
func oneOf(key string, of func(*Layout) *string, words ...string) setting {
	return setting{key, func(l *Layout, value string) error {
		to := of(l)
		if *to = strings.ToLower(value); !slices.Contains(words, *to) {
			return fmt.Errorf("%s is %q; known: %s", key, value, strings.Join(words, ", "))
		}
		return nil
	}}
}

// either is one of two words, of which the second is true.
func either(key, no, yes string, of func(*Layout) *bool) setting {
	return setting{key, func(l *Layout, value string) error {
		var word string
		if err := oneOf(key, func(*Layout) *string { return &word }, no, yes).read(l, value); err != nil {
			return err
		}
		*of(l) = word == yes
		return nil
	}}
}

func readZeRO(l *Layout, value string) error {
	if err := atLeast("zero", 0, func(l *Layout) *int { return &l.ZeRO }).read(l, value); err != nil {
		return err
	}
	if l.ZeRO > 3 {
		return fmt.Errorf("zero is %d; want 0 to 3", l.ZeRO)
	}
	return nil
}

// readExperts reads how the products of experts are computed.
func readExperts(l *Layout, value string) error {
	var word string
	if err := oneOf("experts", func(*Layout) *string { return &word }, "grouped", "looped", "fused").read(l, value); err != nil {
		return err
	}
	l.Looped, l.Fused = word == "looped", word == "fused"
	return nil
}

func readImbalance(l *Layout, value string) (err error) {
	if l.Imbalance, err = strconv.ParseFloat(value, 64); err != nil || !(l.Imbalance >= 1 && l.Imbalance <= 1000) {
		return fmt.Errorf("imbalance is %q; want how many times the mean the fullest rank has, such as 1.2", value)
	}
	return nil
}

// otherNames are what other tools call keys of ParseLayout.
var otherNames = map[string]string{"mbs": "micro", "micro-batch": "micro", "gbs": "batch", "global-batch": "batch", "etensor": "etp"}

// ParseLayout reads tp=8,pp=4,dp=16,... What is not said is as in Default; dp follows from gpus where that
// is above 0. An unknown key is answered with the known ones.
func ParseLayout(s string, f Framework, gpus int) (Layout, error) {
	l := Default(f)
	given := map[string]bool{}
	for _, word := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		key, value, ok := strings.Cut(word, "=")
		key = strings.ToLower(strings.ReplaceAll(key, "_", "-"))
		key = cmp.Or(otherNames[key], key)
		at := slices.IndexFunc(settings, func(x setting) bool { return x.key == key })
		if !ok || at < 0 {
			return l, fmt.Errorf("layout %q: %q; want KEY=VALUE with keys of %s", s, word, strings.Join(keys(), ", "))
		}
		if given[key] {
			return l, fmt.Errorf("layout %q: %s is given twice", s, key)
		}
		given[key] = true
		if err := settings[at].read(&l, value); err != nil {
			return l, fmt.Errorf("layout %q: %w", s, err)
		}
	}
	if err := l.complete(given, gpus); err != nil {
		return l, fmt.Errorf("layout %q: %w", s, err)
	}
	return l, nil
}

func keys() (list []string) {
	for _, x := range settings {
		list = append(list, x.key)
	}
	return list
}

// fill makes as many copies of the model as there are GPUs for.
func (l *Layout) fill(gpus int) error {
	rest := l.TP * l.CP * l.PP
	if gpus%rest != 0 {
		return fmt.Errorf("%d GPUs are not a multiple of tp %d x cp %d x pp %d = %d", gpus, l.TP, l.CP, l.PP, rest)
	}
	l.DP = gpus / rest
	return nil
}

// complete is what follows from the keys that were given.
func (l *Layout) complete(given map[string]bool, gpus int) error {
	if l.VPP > 1 && l.Schedule == schedule.OneFOneB {
		l.Schedule = schedule.Interleaved
	}
	if l.Schedule == schedule.Interleaved && l.PP > 1 && l.VPP == 1 {
		return errors.New(
			"schedule=interleaved needs vpp, the chunks of layers that a pipeline rank holds, such as vpp=2; with one chunk it is 1f1b")
	}
	if l.Schedule == schedule.ZBV && !given["vpp"] {
		l.VPP = 2
	}
	if !given["dp"] && gpus > 0 {
		if err := l.fill(gpus); err != nil {
			return err
		}
	}
	if l.EP == 1 {
		l.ETP = cmp.Or(l.ETP, l.TP)
	}
	l.ETP = cmp.Or(l.ETP, 1)
	return nil
}

func (l Layout) String() string {
	onOff := map[bool]string{true: "on", false: "off"}
	var parts []string
	for _, x := range []struct {
		key   string
		value any
		said  bool // what is not said is as ParseLayout takes it
	}{
		{"tp", l.TP, true}, {"cp", l.CP, true}, {"pp", l.PP, true}, {"vpp", l.VPP, l.VPP > 1}, {"dp", l.DP, true}, {"ep", l.EP, true},
		{"etp", l.ETP, l.EP > 1 || l.ETP != l.TP}, {"shard", l.Shard, l.Shard > 0}, {"sp", onOff[l.Sequence], l.TP > 1},
		{"cp-kind", l.Context, l.CP > 1 && l.Context != "ring"}, {"zero", l.ZeRO, true}, {"schedule", l.Schedule, true},
		{"first-less", l.FirstLess, l.FirstLess > 0}, {"last-less", l.LastLess, l.LastLess > 0}, {"micro", l.Micro, true},
		{"batch", l.Batch, l.Batch > 0}, {"seq", l.Seq, l.Seq > 0}, {"document", l.Document, l.Document > 0},
		{"recompute", l.Recompute, true}, {"dtype", l.Dtype, true},
		{"grad", l.Grad, true}, {"phase", l.Phase, l.Phase != "pretrain"}, {"overlap", "off", !l.Overlap}, {"tp-overlap", "off", !l.TPOverlap},
		{"ep-overlap", "on", l.EPOverlap}, {"dp-overlap", "off", !l.DPOverlap}, {"p2p", "blocking", l.Blocking}, {"flash", "off", !l.Flash},
		{"attention", "te", l.TEScores}, {"compile", "off", l.Eager},
		{"loss", "fused", l.FusedLoss}, {"dropout", "on", l.Dropout}, {"experts", "looped", l.Looped},
		{"experts", "fused", l.Fused}, {"dispatcher", l.Sender, l.copiesOnce()}, {"fp8-attention", "on", l.FP8Scores},
		{"imbalance", l.Imbalance, l.Imbalance > 1}, {"offload", "on", l.Offload},
	} {
		if x.said {
			parts = append(parts, fmt.Sprintf("%s=%v", x.key, x.value))
		}
	}
	return strings.Join(parts, ",")
}

// copiesOnce reports whether tokens travel by kernels that send each of them once to a domain with several of its experts.
func (l Layout) copiesOnce() bool { return l.Sender == "deepep" || l.Sender == "hybridep" }

// mayHideExperts reports whether expert traffic can run beside the compute of another micro-batch. Megatron's flag needs a second chunk
// to compute meanwhile unless there is no pipeline, and experts that are not computed again as a whole.
func (l Layout) mayHideExperts() bool {
	return l.EP > 1 && (l.PP == 1 || l.VPP > 1 || l.Schedule == schedule.DualPipe) && !l.Recompute.Has("moe")
}

// checkExperts says what is wrong about experts.
func (l Layout) checkExperts(m *work.Model, want func(ok bool, format string, args ...any)) {
	if l.EP > 1 {
		want(m.Experts > 0, "ep %d: %s has no experts", l.EP, m.Name)
		want(m.Experts%l.EP == 0, "ep %d does not divide %d experts", l.EP, m.Experts)
		want(l.TP*l.CP*l.DP%(l.ETP*l.EP) == 0, "etp %d x ep %d does not divide tp x cp x dp = %d", l.ETP, l.EP, l.TP*l.CP*l.DP)
	}
	want(m.Experts > 0 || l.ETP == 1 || l.ETP == l.TP, "etp %d: %s has no experts to cut", l.ETP, m.Name)
	want(!l.copiesOnce() || l.EP > 1, "dispatcher %s needs ep above 1", l.Sender)
	want(l.Imbalance <= 1 || m.Experts > 0, "imbalance %g: %s has no experts", l.Imbalance, m.Name)
	want(!l.EPOverlap || l.mayHideExperts(), "ep-overlap needs ep above 1, chunks (vpp above 1) or dualpipe where pp is above 1, "+
		"and recompute of neither whole layers nor all experts")
	want(l.ETP <= l.TP || l.EP > 1 || m.Experts == 0, "etp %d is above tp %d", l.ETP, l.TP)
	l.checkProducts(m, want)
	l.checkRecompute(m, want)
	want(m.Experts == 0 || m.ExpertFFN%l.ETP == 0, "etp %d does not divide the experts' width %d", l.ETP, m.ExpertFFN)
}

// checkProducts refuses ways to multiply experts' matrices that a model or a type does not have.
func (l Layout) checkProducts(m *work.Model, want func(ok bool, format string, args ...any)) {
	want(!l.Fused || m.Experts > 0 && l.Dtype == "mxfp8", "experts=fused needs a model with experts, and dtype mxfp8")
	want(!l.Looped || m.Experts > 0, "experts=looped: %s has no experts", m.Name)
}

// checkRecompute refuses modules that a model does not have: Megatron does for mla_up_proj and moe_act, and the others would do nothing.
func (l Layout) checkRecompute(m *work.Model, want func(ok bool, format string, args ...any)) {
	for _, module := range l.Recompute.Modules {
		switch module {
		case "moe", "moe_act":
			want(m.Experts > 0, "recompute=%s: %s has no experts", module, m.Name)
		case "shared_experts":
			want(m.SharedFFN > 0, "recompute=%s: %s has no shared experts", module, m.Name)
		case "mla_up_proj":
			want(m.MLA != nil, "recompute=%s: %s has no latent attention", module, m.Name)
		}
	}
}

// Check reports why a layout cannot run a model, all reasons at once. gpus 0 means any number.
func (l Layout) Check(m *work.Model, gpus int) error {
	var bad []string
	want := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}
	for _, x := range []struct {
		name string
		n    int
	}{{"tp", l.TP}, {"cp", l.CP}, {"pp", l.PP}, {"vpp", l.VPP}, {"dp", l.DP}, {"ep", l.EP}, {"etp", l.ETP}, {"micro", l.Micro}} {
		want(x.n >= 1, "%s is %d; it must be at least 1", x.name, x.n)
	}
	if len(bad) > 0 {
		return fmt.Errorf("layout %s: %s", l, strings.Join(bad, "; "))
	}
	want(m.Linear == nil, "%s has linear-attention layers, and training steps are predicted for attention alone; weft sim serve has them",
		m.Name)
	want(l.Batch >= 1, "the batch is not known; say batch=SEQUENCES")
	want(l.Seq >= 1 || m.CNN != nil, "the sequence length is not known; say seq=TOKENS")
	if gpus > 0 {
		want(l.GPUs() == gpus, "tp %d x cp %d x pp %d x dp %d is %d GPUs; there are %d", l.TP, l.CP, l.PP, l.DP, l.GPUs(), gpus)
	}
	if l.Batch >= 1 {
		want(l.Batch%(l.Micro*l.DP) == 0, "batch %d is not a multiple of micro %d x dp %d = %d", l.Batch, l.Micro, l.DP, l.Micro*l.DP)
	}
	if m.CNN != nil {
		want(l.TP*l.CP*l.PP*l.EP == 1, "%s is planned with data parallelism alone", m.Name)
		want(l.ZeRO < 3, "zero 3 gathers parameters layer by layer, which is not priced for %s; say zero=0, 1 or 2", m.Name)
	} else {
		want(m.Heads%l.TP == 0, "tp %d does not divide %d heads", l.TP, m.Heads)
		want(m.KVHeads%l.TP == 0 || l.TP%m.KVHeads == 0, "tp %d does not divide %d KV heads, nor they it", l.TP, m.KVHeads)
		want(m.DenseLayers() == 0 || m.FFN%l.TP == 0, "tp %d does not divide the MLP's width %d", l.TP, m.FFN)
		// The first and the last chunk may hold nothing but the embedding and the head, as in Llama 3 405B.
		want(l.PP*l.VPP <= m.Layers+2, "pp %d x vpp %d needs as many layers, less two for the embedding and the head; there are %d",
			l.PP, l.VPP, m.Layers)
		want(l.PP*l.VPP <= m.Layers || l.VPP > 1, "pp %d x vpp %d needs as many layers; there are %d", l.PP, l.VPP, m.Layers)
		want(l.PP*l.VPP > 1 || l.FirstLess+l.LastLess == 0, "first-less and last-less need pp above 1")
		want(l.FirstLess >= 0 && l.LastLess >= 0 && (l.PP*l.VPP > m.Layers+2 || split(m.Layers, l.PP*l.VPP, l.FirstLess, l.LastLess) != nil),
			"first-less %d and last-less %d are more than a chunk of %d layers over %d chunks holds", l.FirstLess, l.LastLess, m.Layers, l.PP*l.VPP)
		if l.Seq >= 1 {
			want(l.CP == 1 || l.Seq%(2*l.CP) == 0, "seq %d is not a multiple of 2 cp = %d", l.Seq, 2*l.CP)
			want(!l.Sequence || l.TP == 1 || l.Seq/l.CP%l.TP == 0, "seq %d over cp %d does not divide by tp %d for sequence parallelism",
				l.Seq, l.CP, l.TP)
		}
		want(l.Context != "ulysses" || m.KVHeads%(l.CP*l.TP) == 0 ||
			l.CP == 1, "ulysses needs heads for every rank: %d KV heads, cp %d x tp %d", m.KVHeads, l.CP, l.TP)
		want(!l.FP8Scores || gemmType(l.Dtype) != "bf16" && l.Flash, "fp8-attention needs dtype fp8, mxfp8, fp8block or nvfp4, and flash=on")
		l.checkExperts(m, want)
	}
	want(l.Document <= l.Seq || l.Seq < 1, "document=%d is longer than a sequence of %d; leave it out for one document a sequence",
		l.Document, l.Seq)
	want(l.Shard == 0 || l.DP*l.CP%l.Shard == 0, "shard %d does not divide the %d data ranks", l.Shard, l.DP*l.CP)
	want(l.PP == 1 || l.ZeRO < 2 || l.Schedule != schedule.DualPipe, "zero %d with dualpipe", l.ZeRO)
	if l.PP > 1 && l.Batch%(l.Micro*l.DP) == 0 && l.Batch > 0 {
		p := schedule.Pipe{Kind: l.Schedule, Ranks: l.PP, Chunks: l.VPP, Micro: l.MicroBatches()}
		if err := p.Legal(); err != nil {
			bad = append(bad, err.Error())
		}
	} else if l.PP == 1 {
		want(l.VPP == 1, "vpp %d needs pp above 1", l.VPP)
	}
	if len(bad) > 0 {
		return fmt.Errorf("layout %s: %s", l, strings.Join(bad, "; "))
	}
	return nil
}
