package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/work"
)

// args are Megatron's arguments: a flag's value, or "true" where it has none.
type args map[string]string

func (a args) num(key string) (int, bool) {
	v, ok := a[key]
	if !ok {
		return 0, false
	}
	return number(v)
}

// dropout reports whether a rate is above 0. Megatron's own default is 0.1.
func (a args) dropout(key string) bool {
	v, err := strconv.ParseFloat(a[key], 64)
	return err != nil || v > 0
}

func (a args) on(key string) bool { v, ok := a[key]; return ok && truthy(v) }

// plain flags of Megatron that a plan needs; a flag that is nearly one of them is taken for a typing error.
var megatronKeys = []string{"num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels",
	"seq-length", "micro-batch-size", "global-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size",
	"num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "sequence-parallel", "context-parallel-size",
	"expert-model-parallel-size", "expert-tensor-parallel-size", "use-distributed-optimizer", "recompute-granularity",
	"recompute-method", "recompute-num-layers", "recompute-modules", "num-experts", "moe-router-topk", "moe-ffn-hidden-size",
	"moe-shared-expert-intermediate-size", "moe-layer-freq", "multi-latent-attention", "group-query-attention"}

// known longer flags that lie near a plan's flag by chance.
var megatronOthers = []string{"seq-lengths", "eval-micro-batch-size"}

// endOfLine stands between the words of two lines: a flag that ends its line has no value.
const endOfLine = "\n"

// whole is a line that is a comment; a backslash at its end continues nothing.
var whole = regexp.MustCompile(`(?m)^[ \t]*#.*\n`)

var numeric = regexp.MustCompile(`^-?[0-9.]`)

// readMegatronShell reads the arguments out of a shell script: arrays, variables with defaults, arithmetic,
// continued lines. It runs nothing.
func readMegatronShell(name, text string) (*Config, error) {
	vars := map[string]string{}
	a := args{}
	nodes := map[string]string{}
	text = strings.ReplaceAll(whole.ReplaceAllString(strings.ReplaceAll(text, "\r", ""), ""), "\\\n", " ")
	assign := regexp.MustCompile(`^\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)$`)
	var words []string
	take := func(line string) {
		words = append(words, tokens(expand(line, vars))...)
		words = append(words, endOfLine)
	}
	quote := ""
	held := ""
	for _, line := range strings.Split(text, "\n") {
		if quote != "" { // inside a string of several lines
			held += " " + line
			if strings.Count(line, quote)%2 == 1 {
				line, held, quote = held, "", ""
			} else {
				continue
			}
		}
		line = uncomment(line)
		for _, q := range []string{`"`, `'`} {
			if strings.Count(line, q)%2 == 1 {
				quote, held = q, line
				break
			}
		}
		if quote != "" {
			continue
		}
		m := assign.FindStringSubmatch(line)
		switch {
		case m != nil && strings.HasPrefix(strings.TrimSpace(m[2]), "("):
			take(strings.Trim(strings.TrimSpace(m[2]), "()"))
		case m != nil:
			value := strings.TrimSpace(m[2])
			plain := strings.Trim(expand(value, vars), `"'`)
			if strings.Contains(plain, "--") {
				take(plain)
			} else {
				vars[m[1]] = strings.TrimSpace(plain)
			}
		default:
			take(line)
		}
	}
	for i := 0; i < len(words); i++ {
		w := words[i]
		if !strings.HasPrefix(w, "--") {
			continue
		}
		if parts := strings.Fields(w); len(parts) > 1 { // "--flag value" in one pair of quotes
			words = slices.Insert(slices.Delete(words, i, i+1), i, append(parts, endOfLine)...)
			w = words[i]
		}
		key, value, ok := strings.Cut(w[2:], "=")
		if !ok {
			value = "true"
			if i+1 < len(words) && words[i+1] != endOfLine && words[i+1] != ")" && !strings.HasPrefix(words[i+1], "--") {
				value = words[i+1]
				for j := i + 2; j < len(words) && key == "recompute-modules" && isModule(words[j]); j++ {
					value += " " + words[j]
				}
			}
		}
		key = strings.ReplaceAll(key, "_", "-")
		switch key {
		case "nproc-per-node", "nnodes", "nodes", "ntasks-per-node", "gpus-per-node":
			nodes[key] = value
		default:
			a[key] = value
		}
	}
	c, err := a.config(name)
	if err != nil {
		return nil, err
	}
	per, ok1 := number(first(nodes["nproc-per-node"], nodes["gpus-per-node"], vars["GPUS_PER_NODE"]))
	n, ok2 := number(first(nodes["nnodes"], nodes["nodes"], vars["NNODES"], vars["NUM_NODES"]))
	if ok1 && ok2 {
		need := max(c.Values["tp"], 1) * max(c.Values["pp"], 1) * max(c.Values["cp"], 1)
		if got := per * n; got%need == 0 && got > 0 {
			c.GPUs = got
		} else {
			c.find("the launcher's %d GPUs are a stub: the layout needs a multiple of %d; say --gpus", got, need)
		}
	}
	return c, nil
}

// isModule reports whether a word names what may be computed again.
func isModule(word string) bool {
	r, err := work.ParseRecompute(strings.Trim(word, "[],"))
	return err == nil && len(r.Modules) == 1
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" && v != "true" {
			return v
		}
	}
	return ""
}

// uncomment cuts a comment that begins a word.
func uncomment(line string) string {
	in := byte(0)
	for i := 0; i < len(line); i++ {
		switch ch := line[i]; {
		case in != 0:
			if ch == in {
				in = 0
			}
		case ch == '"' || ch == '\'':
			in = ch
		case ch == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t'):
			return line[:i]
		}
	}
	return line
}

var (
	withDefault = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*):?[-=]"?([^}"]*)"?\}`)
	braced      = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)
	bare        = regexp.MustCompile(`\$([A-Za-z_][A-Za-z0-9_]*)`)
	word        = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	arithmetic  = regexp.MustCompile(`\$\(\(([^()]*)\)\)`)
)

// expand puts variables in that the script set, defaults where they stand, and products of numbers.
func expand(s string, vars map[string]string) string {
	for range 4 {
		before := s
		s = withDefault.ReplaceAllStringFunc(s, func(x string) string {
			m := withDefault.FindStringSubmatch(x)
			if v := vars[m[1]]; v != "" {
				return v
			}
			return m[2]
		})
		for _, re := range []*regexp.Regexp{braced, bare} {
			s = re.ReplaceAllStringFunc(s, func(x string) string {
				if v, ok := vars[re.FindStringSubmatch(x)[1]]; ok {
					return v
				}
				return x
			})
		}
		s = arithmetic.ReplaceAllStringFunc(s, func(x string) string {
			inner := word.ReplaceAllStringFunc(arithmetic.FindStringSubmatch(x)[1], func(name string) string {
				if v, ok := vars[name]; ok {
					return v
				}
				return name
			})
			if n, ok := calculate(inner); ok {
				return strconv.Itoa(n)
			}
			return x
		})
		if s == before {
			break
		}
	}
	return s
}

// calculate works products, quotients, sums and differences of whole numbers out, from left to right with
// products first.
func calculate(s string) (int, bool) {
	s = strings.NewReplacer(" ", "", "$", "").Replace(s)
	sum, sign := 0, 1
	for _, part := range regexp.MustCompile(`[+-]|[^+-]+`).FindAllString(s, -1) {
		switch part {
		case "+":
			sign = 1
			continue
		case "-":
			sign = -1
			continue
		}
		product, op := 1, byte('*')
		for _, x := range regexp.MustCompile(`[*/]|[^*/]+`).FindAllString(part, -1) {
			if x == "*" || x == "/" {
				op = x[0]
				continue
			}
			n, err := strconv.Atoi(x)
			if err != nil || op == '/' && n == 0 {
				return 0, false
			}
			if op == '*' {
				product *= n
			} else {
				product /= n
			}
		}
		sum += sign * product
		sign = 1
	}
	return sum, s != ""
}

// tokens cuts a line into words; quotes hold words together.
func tokens(line string) []string {
	var out []string
	var word strings.Builder
	in := byte(0)
	flush := func() {
		if word.Len() > 0 {
			out = append(out, word.String())
			word.Reset()
		}
	}
	for i := 0; i < len(line); i++ {
		switch ch := line[i]; {
		case in != 0:
			if ch == in {
				in = 0
			} else {
				word.WriteByte(ch)
			}
		case ch == '"' || ch == '\'':
			in = ch
		case ch == ' ' || ch == '\t' || ch == '(' || ch == ')' || ch == ';':
			flush()
		default:
			word.WriteByte(ch)
		}
	}
	flush()
	return out
}

// readMegatronYAML reads arguments as a mapping: under MODEL_ARGS as Megatron's tests have them, or plain.
func readMegatronYAML(name string, data []byte) (*Config, error) {
	m, err := decodeYAML(name, data)
	if err != nil {
		return nil, err
	}
	if inner, ok := m["MODEL_ARGS"].(map[string]any); ok {
		m = inner
	}
	a := args{}
	var walk func(map[string]any)
	walk = func(m map[string]any) {
		for k, v := range m {
			k = strings.ReplaceAll(strings.TrimPrefix(k, "--"), "_", "-")
			switch x := v.(type) {
			case map[string]any:
				walk(x)
			case []any:
				var parts []string
				for _, p := range x {
					parts = append(parts, fmt.Sprint(p))
				}
				a[k] = strings.Join(parts, " ")
			case nil:
			default:
				a[k] = fmt.Sprint(x)
			}
		}
	}
	walk(m)
	return a.config(name)
}

// config makes a plan of Megatron's arguments.
func (a args) config(name string) (*Config, error) {
	c := newConfig("megatron", Megatron)
	c.args = a
	for _, read := range []func(args) error{refuseOthers, refuseMisspelt, c.parallel, c.zero, c.overlaps, c.readStages, c.types, c.recompute,
		c.attention} {
		if err := read(a); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if a["rampup-batch-size"] != "" || a["step-batch-size-schedule"] != "" {
		c.find("the batch grows during the run; the plan is for the last size")
	}
	c.Looped = !a.on("moe-grouped-gemm")
	if err := a.model(name, c); err != nil {
		return nil, err
	}
	return c, nil
}

// refuseOthers names models that no plan can be made for.
func refuseOthers(a args) error {
	for _, other := range []struct{ key, what string }{{"encoder-num-layers", "an encoder and a decoder"},
		{"decoder-num-layers", "an encoder and a decoder"}, {"hybrid-layer-pattern", "layers of Mamba"},
		{"hybrid-override-pattern", "layers of Mamba"}, {"is-hybrid-model", "layers of Mamba"}} {
		if _, ok := a[other.key]; ok {
			return fmt.Errorf("--%s: the model has %s; only decoders of transformer layers can be planned", other.key, other.what)
		}
	}
	return nil
}

// refuseMisspelt names arguments that are nearly one that a plan needs.
func refuseMisspelt(a args) error {
	for _, k := range slices.Sorted(maps.Keys(a)) {
		if len(k) <= 8 || slices.Contains(megatronKeys, k) || slices.Contains(megatronOthers, k) {
			continue
		}
		for _, w := range megatronKeys {
			if len(w) > 9 && spell.Distance(k, w, 3) < 3 {
				return fmt.Errorf("unknown argument --%s; did you mean --%s?", k, w)
			}
		}
	}
	return nil
}

// megatronNumbers are arguments by the name of their value in a Config.
var megatronNumbers = []struct{ to, key string }{{"tp", "tensor-model-parallel-size"}, {"pp", "pipeline-model-parallel-size"},
	{"cp", "context-parallel-size"}, {"ep", "expert-model-parallel-size"}, {"etp", "expert-tensor-parallel-size"},
	{"vpp", "num-virtual-stages-per-pipeline-rank"}, {"layers-per-chunk", "num-layers-per-virtual-pipeline-stage"},
	{"micro", "micro-batch-size"}, {"batch", "global-batch-size"}, {"seq", "seq-length"},
	{"replicate", "num-distributed-optimizer-instances"}}

// parallel reads the degrees of parallelism and the sizes of batches.
func (c *Config) parallel(a args) error {
	outside := map[string]string{} // what the script does not set itself
	var list []string
	for _, k := range megatronNumbers {
		v, ok := a[k.key]
		if !ok {
			continue
		}
		n, isNumber := number(v)
		switch {
		case isNumber:
			c.Values[k.to] = n
		case strings.Contains(v, "$"):
			outside[k.to] = "--" + k.key + " " + v
			list = append(list, outside[k.to])
		default:
			return fmt.Errorf("--%s is %q; want a whole number", k.key, v)
		}
	}
	if list != nil {
		c.find("set outside the script: %s", strings.Join(list, " "))
	}
	for _, k := range []string{"tp", "pp", "cp"} {
		if _, ok := c.Values[k]; !ok && outside[k] == "" {
			c.Values[k] = 1
		}
	}
	for _, k := range []string{"tp", "pp"} {
		if _, ok := c.Values[k]; !ok {
			return fmt.Errorf("%s is set outside the script (%s); write its value into it", k, strings.Join(list, " "))
		}
	}
	if c.Values["vpp"] > 0 && c.Values["layers-per-chunk"] > 0 {
		return errors.New("--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank are both given; Megatron takes one")
	}
	if c.Values["vpp"] == 0 {
		delete(c.Values, "vpp")
	}
	return nil
}

// shardings are Megatron FSDP's words for what ZeRO numbers.
var shardings = map[string]int{"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3, "": 3}

// zero reads what data ranks share.
func (c *Config) zero(a args) error {
	c.Values["zero"] = b2i(a.on("use-distributed-optimizer"))
	if n, ok := a.num("zero-stage"); ok && a.on("deepspeed") { // Megatron-DeepSpeed
		if n < 0 || n > 3 {
			return fmt.Errorf("--zero-stage is %d; want 0 to 3", n)
		}
		c.Values["zero"] = n
		if n == 0 && a.on("bf16") {
			c.Values["zero"] = 1
			c.find("--zero-stage 0 with --bf16: DeepSpeed's optimizer for bf16 shares its state as stage 1 does")
		}
	}
	if a.on("use-megatron-fsdp") || a.on("use-torch-fsdp2") || a.on("use-custom-fsdp") {
		s := a["data-parallel-sharding-strategy"]
		stage, ok := shardings[s]
		if !ok {
			return fmt.Errorf("--data-parallel-sharding-strategy is %q; known: no_shard, optim, optim_grads, optim_grads_params", s)
		}
		c.Values["zero"] = stage
	}
	return nil
}

// overlaps reads which traffic runs beside compute.
func (c *Config) overlaps(a args) error {
	sp := a.on("sequence-parallel")
	c.Sequence = &sp
	if sp && c.Values["tp"] == 1 {
		c.find("--sequence-parallel does nothing with tp 1")
	}
	tp, dp := a.on("tp-comm-overlap"), a.on("overlap-grad-reduce") || c.Values["zero"] >= 2
	overlap := tp || dp
	c.Overlap = &overlap
	if overlap {
		c.TPOverlap, c.DPOverlap = &tp, &dp
		if !tp && sp && c.Values["tp"] > 1 {
			c.find("no --tp-comm-overlap: forward waits for the transfers of tensor parallelism")
		}
	} else {
		c.find("neither --overlap-grad-reduce nor --tp-comm-overlap: all traffic is visible")
	}
	c.Blocking = a.on("no-overlap-p2p-communication")
	c.EPOverlap = a.on("overlap-moe-expert-parallel-comm")
	c.Fused, c.FP8Scores = a.on("use-transformer-engine-op-fuser"), a.on("fp8-dot-product-attention")
	if a["moe-token-dispatcher-type"] == "flex" {
		c.Sender = cmp.Or(a["moe-flex-dispatcher-backend"], "deepep")
	}
	return nil
}

// fp8Recipes are Megatron's recipes that have types of their own.
var fp8Recipes = map[string]string{"mxfp8": "mxfp8", "blockwise": "fp8block"}

// types reads which types a run computes and sums in, and whether it drops anything.
func (c *Config) types(a args) error {
	given := func(key string) bool { return a[key] != "" && a[key] != "false" }
	c.Dtype = "fp32"
	for _, t := range []struct {
		name string
		on   bool
	}{{"fp16", a.on("fp16")}, {"bf16", a.on("bf16")}, {cmp.Or(fp8Recipes[a["fp8-recipe"]], "fp8"), given("fp8-format")},
		{"nvfp4", given("fp4-format")}} { // the narrowest counts
		if t.on {
			c.Dtype = t.name
		}
	}
	if a.on("bf16") && a.on("fp16") {
		return errors.New("--bf16 and --fp16 are both given; Megatron takes one")
	}
	c.Dropout = a.dropout("attention-dropout") || a.dropout("hidden-dropout")
	c.Grad = "fp32"
	if a.on("grad-reduce-in-bf16") || a.on("fp16") && !a.on("accumulate-allreduce-grads-in-fp32") {
		c.Grad = "bf16"
	}
	return nil
}

// recompute reads what the backward pass computes again.
func (c *Config) recompute(a args) error {
	c.Recompute = &work.Recompute{}
	switch g := a["recompute-granularity"]; {
	case g == "full":
		c.Recompute.Full = true
		if a["recompute-method"] == "" {
			c.find("full recompute without --recompute-method recomputes nothing in old releases")
		}
	case g == "selective" || a.on("recompute-activations"):
		modules, err := a.modules()
		c.Recompute.Modules = modules
		return err
	case g == "": // of older releases
		c.Recompute.Full = a.on("checkpoint-activations") || a.on("deepspeed-activation-checkpointing")
	case g != "none" && g != "None":
		return fmt.Errorf("--recompute-granularity is %q; known: full, selective", g)
	}
	return nil
}

// modules are those that selective recompute names.
func (a args) modules() ([]string, error) {
	names := strings.Fields(strings.NewReplacer("[", "", "]", "", ",", " ", `"`, "").Replace(a["recompute-modules"]))
	if len(names) == 0 || slices.Equal(names, []string{"true"}) {
		return []string{"core_attn"}, nil
	}
	for _, x := range names {
		if !slices.Contains(megatronModules, x) {
			return nil, fmt.Errorf("--recompute-modules: %s is not known; want some of %s", x, strings.Join(megatronModules, ", "))
		}
	}
	slices.Sort(names)
	return names, nil
}

// attention reads how attention is computed, and how it is cut over context parallel ranks.
func (c *Config) attention(a args) error {
	b := a["attention-backend"]
	flash := b != "unfused" && b != "local" && (b != "" || a["transformer-impl"] != "local" || a.on("use-flash-attn"))
	c.Flash = &flash
	if flash && slices.Equal(c.Recompute.Modules, []string{"core_attn"}) {
		c.find("selective recompute saves almost nothing with flash attention, which keeps no scores")
	}
	c.Context = map[string]string{"a2a": "ulysses", "all_gather": "gather"}[a["cp-comm-type"]]
	return nil
}

var freqList = regexp.MustCompile(`^\(?\[0\]\*(\d+)\+\[1\]\*(\d+)\)?$`)

// model takes the model's shape, where the arguments have it.
func (a args) model(name string, c *Config) error {
	L, ok1 := a.num("num-layers")
	h, ok2 := a.num("hidden-size")
	heads, ok3 := a.num("num-attention-heads")
	if !ok1 || !ok2 || !ok3 {
		if ok1 || ok2 {
			c.find("the model's shape is not whole in the arguments: name the model")
		}
		return nil
	}
	m := &work.Model{Name: name, Layers: L, Hidden: h, Heads: heads, KVHeads: heads, Gated: a.on("swiglu") ||
		a.on("quick-geglu"), Tied: !a.on("untie-embeddings-and-output-weights"), LayerNorm: a["normalization"] != "RMSNorm",
		Bias: !a.on("disable-bias-linear"), QKNorm: a.on("qk-layernorm"), QKVBias: a.on("add-qkv-bias") && a.on("disable-bias-linear")}
	m.Sinks = a["softmax-type"] == "learnable"
	m.ClampGLU, _ = strconv.ParseFloat(a["activation-func-clamp-value"], 64)
	if n, ok := a.num("num-query-groups"); ok && a.on("group-query-attention") {
		m.KVHeads = n
	}
	if n, ok := a.num("kv-channels"); ok {
		m.HeadDim = n
	} else if heads > 0 {
		m.HeadDim = h / heads
	}
	if n, ok := a.num("ffn-hidden-size"); ok {
		m.FFN = n
	} else if m.Gated {
		m.FFN = h * 8 / 3 / 64 * 64
	} else {
		m.FFN = 4 * h
	}
	if p := a["position-embedding-type"]; (p == "" || p == "learned_absolute") && !a.on("no-position-embedding") {
		m.Positions, _ = a.num("max-position-embeddings")
	}
	m.Vocab, _ = a.num("vocab-size")
	if m.Vocab == 0 {
		m.Vocab, _ = a.num("padded-vocab-size")
		if m.Vocab == 0 {
			m.Vocab, _ = a.num("pad-vocab-size-to")
		}
	}
	if m.Vocab == 0 {
		switch t := a["tokenizer-type"]; {
		case strings.Contains(t, "Llama2"), a["tokenizer-type"] == "Llama2Tokenizer":
			m.Vocab = 32000
		case strings.Contains(t, "Llama3"), strings.Contains(a["tokenizer-model"], "lama-3"):
			m.Vocab = 128256
		default:
			m.Vocab = 51200
		}
		c.find("the vocabulary is the tokenizer's and not in the file: %d is taken", m.Vocab)
	}
	if e, ok := a.num("num-experts"); ok && e > 1 { // one expert is a plain MLP
		m.Experts = e
		m.TopK = 2
		if k, ok := a.num("moe-router-topk"); ok {
			m.TopK = k
		}
		m.ExpertFFN = m.FFN
		if f, ok := a.num("moe-ffn-hidden-size"); ok {
			m.ExpertFFN = f
		}
		m.SharedFFN, _ = a.num("moe-shared-expert-intermediate-size")
		a.router(m)
		if f := strings.ReplaceAll(a["moe-layer-freq"], " ", ""); f != "" {
			if x := freqList.FindStringSubmatch(strings.Trim(f, `"'`)); x != nil {
				m.DenseFirst, _ = strconv.Atoi(x[1])
			} else if n, ok := number(f); ok {
				m.MoEEvery = n
			} else if numeric.MatchString(f) {
				c.find("--moe-layer-freq %s is not understood; all layers are taken to have experts", f)
			}
		}
	}
	if a.on("multi-latent-attention") {
		get := func(key string, otherwise int) int {
			if n, ok := a.num(key); ok {
				return n
			}
			return otherwise
		}
		m.MLA = &work.MLA{QRank: get("q-lora-rank", 0), KVRank: get("kv-lora-rank", 32), NoPE: get("qk-head-dim", 128),
			RoPE: get("qk-pos-emb-head-dim", 64), V: get("v-head-dim", 128)}
		m.HeadDim = m.MLA.NoPE
	}
	if w, _, _ := strings.Cut(strings.Trim(a["window-size"], "()\"' "), ","); w != "" {
		n, ok := number(w)
		if !ok || n < 1 {
			return fmt.Errorf("%s: --window-size is %q; want TOKENS,0", name, a["window-size"])
		}
		m.Window, m.Windowed = n, m.Layers
		if every, ok := a.num("window-attn-skip-freq"); ok && every > 0 { // one layer in this number looks at everything
			m.Windowed -= m.Layers / every
		}
	}
	m.MTP, _ = a.num("mtp-num-layers")
	if a["position-embedding-type"] == "rope" {
		m.RoPEBase = 10000
		if n, ok := a.num("rotary-base"); ok {
			m.RoPEBase = n
		}
	}
	if err := m.Check(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.Model = m
	return nil
}

// router reads how tokens are given to experts.
func (a args) router(m *work.Model) {
	if n, ok := a.num("moe-router-num-groups"); ok {
		if top, ok := a.num("moe-router-group-topk"); ok && top < n {
			m.Groups, m.TopGroups = n, top
		}
	}
	if f := a["moe-router-score-function"]; f != "softmax" {
		m.Router = f
	}
	m.RouterBias = a.on("moe-router-enable-expert-bias")
	if x, err := strconv.ParseFloat(a["moe-router-topk-scaling-factor"], 64); err == nil && x != 1 {
		m.RouterScale = x
	}
}

// readStages reads how layers are cut over stages, in each of the ways that Megatron has.
func (c *Config) readStages(a args) error {
	text, named := a["pipeline-model-parallel-layout"]
	embedding, loss := a.on("account-for-embedding-in-pipeline-split"), a.on("account-for-loss-in-pipeline-split")
	if named && (embedding || loss || c.Values["vpp"] > 0 || c.Values["layers-per-chunk"] > 0) {
		return fmt.Errorf("--pipeline-model-parallel-layout excludes --account-for-... and the flags of virtual stages")
	}
	c.Values["first-less"], c.Values["last-less"] = b2i(embedding), b2i(loss)
	if !named {
		return nil
	}
	chunks, err := readChunks(text)
	if err != nil {
		return fmt.Errorf("--pipeline-model-parallel-layout %s: %w", text, err)
	}
	c.Chunks = chunks
	return nil
}

var repeated = regexp.MustCompile(`(\(([^()]*)\)|([EtmL]))\*(\d+)`)

// readChunks counts the layers of every chunk of a string such as E|t*2|(t|)*4mL.
func readChunks(text string) ([]int, error) {
	text = strings.NewReplacer(",", "", " ", "", `"`, "", "'", "").Replace(text)
	for {
		at := repeated.FindStringSubmatchIndex(text)
		if at == nil {
			break
		}
		part := repeated.FindStringSubmatch(text)
		n, err := strconv.Atoi(part[4])
		if err != nil || n > 1<<14 || len(text) > 1<<16 {
			return nil, fmt.Errorf("%s repeats too often", part[0])
		}
		text = text[:at[0]] + strings.Repeat(part[2]+part[3], n) + text[at[1]:]
	}
	if bad := strings.Trim(text, "EtmL|"); bad != "" {
		return nil, fmt.Errorf("%q is none of E, t, m, L and |", bad)
	}
	var out []int
	for _, chunk := range strings.Split(text, "|") {
		out = append(out, strings.Count(chunk, "t"))
	}
	return out, nil
}

// cutAs sets chunks and what the ends are relieved of from the layers of every chunk.
func (l *Layout) cutAs(chunks []int, layers int) error {
	sum := 0
	for _, c := range chunks {
		sum += c
	}
	if sum != layers || len(chunks)%l.PP != 0 {
		return fmt.Errorf("the stages hold %d layers in %d chunks; there are %d layers and pp %d", sum, len(chunks), layers, l.PP)
	}
	l.VPP = len(chunks) / l.PP
	var ok bool
	if l.FirstLess, l.LastLess, ok = splitOf(chunks); !ok {
		return fmt.Errorf("stages between the first and the last differ by more than a layer; such a plan is not modelled")
	}
	return nil
}
