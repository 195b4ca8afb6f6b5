package work

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/spell"
)

// row is a dense model of the catalogue. kv 0 means as many as heads, dim 0 hidden over heads.
type row struct {
	name                                       string
	layers, hidden, ffn, heads, kv, dim, vocab int
	gated, tied                                bool
	more                                       func(*Model)
}

func gpt(m *Model)     { m.LayerNorm, m.Bias = true, true }
func plainLN(m *Model) { m.LayerNorm = true }
func learned(n int) func(*Model) {
	return func(m *Model) { gpt(m); m.Positions = n }
}
func qkv(m *Model)    { m.QKVBias = true }
func oss(m *Model)    { m.Bias, m.Sinks, m.ClampGLU = true, true, 7 }
func qkNorm(m *Model) { m.QKNorm = true }
func moe(experts, topk, ffn, shared, dense int, more ...func(*Model)) func(*Model) {
	return func(m *Model) {
		m.Experts, m.TopK, m.ExpertFFN, m.SharedFFN, m.DenseFirst = experts, topk, ffn, shared, dense
		for _, f := range more {
			f(m)
		}
	}
}
func latent(q, kv, nope, rope, v int) func(*Model) {
	return func(m *Model) { m.MLA = &MLA{q, kv, nope, rope, v} }
}
func groups(n, top int) func(*Model) {
	return func(m *Model) { m.Groups, m.TopGroups = n, top }
}
func sigmoid(bias bool, scale float64) func(*Model) {
	return func(m *Model) { m.Router, m.RouterBias, m.RouterScale = "sigmoid", bias, scale }
}
func gated(layers, keyHeads, valueHeads int) func(*Model) { // gated delta networks with heads of 128
	return func(m *Model) {
		m.Linear = &Linear{layers, keyHeads, 128, valueHeads, 128, 4}
		m.QGate, m.QKNorm, m.SharedGate = true, true, true
	}
}
func windowed(w, layers int) func(*Model) {
	return func(m *Model) { m.Window, m.Windowed = w, layers }
}
func all(fs ...func(*Model)) func(*Model) {
	return func(m *Model) {
		for _, f := range fs {
			f(m)
		}
	}
}

// rows are published shapes.
var rows = []row{
	{"llama3-8b", 32, 4096, 14336, 32, 8, 0, 128256, true, false, nil},
	{"llama3-70b", 80, 8192, 28672, 64, 8, 0, 128256, true, false, nil},
	{"llama3.1-405b", 126, 16384, 53248, 128, 8, 0, 128256, true, false, nil},
	{"llama3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, true, true, nil},
	{"llama3.2-3b", 28, 3072, 8192, 24, 8, 128, 128256, true, true, nil},
	{"llama2-7b", 32, 4096, 11008, 32, 0, 0, 32000, true, false, nil},
	{"llama2-13b", 40, 5120, 13824, 40, 0, 0, 32000, true, false, nil},
	{"llama2-70b", 80, 8192, 28672, 64, 8, 0, 32000, true, false, nil},
	{"llama-33b", 60, 6656, 17920, 52, 0, 0, 32000, true, false, nil},
	{"llama-65b", 80, 8192, 22016, 64, 0, 0, 32000, true, false, nil},
	{"codellama-34b", 48, 8192, 22016, 64, 8, 0, 32000, true, false, nil},
	{"tinyllama-1.1b", 22, 2048, 5632, 32, 4, 0, 32000, true, false, nil},
	{"smollm3-3b", 36, 2048, 11008, 16, 4, 0, 128256, true, true, nil},
	{"skywork-13b", 52, 4608, 12288, 36, 0, 0, 65519, true, false, nil},
	{"glm-130b", 70, 12288, 32768, 96, 0, 0, 150528, true, true, gpt},
	{"gpt2-xl", 48, 1600, 6400, 25, 0, 0, 50257, false, true, learned(1024)},
	{"gpt3-5b", 24, 4096, 16384, 32, 0, 0, 51200, false, true, learned(2048)},
	{"gpt3-13b", 40, 5120, 20480, 40, 0, 0, 51200, false, true, learned(2048)},
	{"gpt3-20b", 44, 6144, 24576, 48, 0, 0, 51200, false, true, learned(2048)},
	{"gpt3-175b", 96, 12288, 49152, 96, 0, 0, 51200, false, true, learned(2048)},
	{"gpt-22b", 48, 6144, 24576, 64, 0, 0, 51200, false, true, learned(2048)},
	{"gpt-530b", 105, 20480, 81920, 128, 0, 0, 51200, false, true, learned(2048)},
	{"gpt-1t", 128, 25600, 102400, 160, 0, 0, 51200, false, true, learned(2048)},
	{"gpt-neox-20b", 44, 6144, 24576, 64, 0, 0, 50432, false, false, gpt},
	{"nemotron-8b", 32, 4096, 16384, 32, 0, 0, 256000, false, false, plainLN},
	{"nemotron-22b", 40, 6144, 24576, 48, 0, 0, 256000, false, false, plainLN},
	{"nemotron4-15b", 32, 6144, 24576, 48, 8, 0, 256000, false, false, plainLN},
	{"nemotron4-340b", 96, 18432, 73728, 96, 8, 0, 256000, false, false, plainLN},
	{"mpt-125m", 12, 768, 3072, 12, 0, 0, 50368, false, true, plainLN},
	{"mpt-350m", 24, 1024, 4096, 16, 0, 0, 50368, false, true, plainLN},
	{"mpt-1b", 24, 2048, 8192, 16, 0, 0, 50368, false, true, plainLN},
	{"mpt-3b", 32, 2560, 10240, 20, 0, 0, 50368, false, true, plainLN},
	{"mpt-7b", 32, 4096, 16384, 32, 0, 0, 50368, false, true, plainLN},
	{"mpt-13b", 40, 5120, 20480, 40, 0, 0, 50368, false, true, plainLN},
	{"mpt-30b", 48, 7168, 28672, 56, 0, 0, 50368, false, true, plainLN},
	{"mpt-70b", 80, 8192, 32768, 64, 0, 0, 50368, false, true, plainLN},
	{"opt-13b", 40, 5120, 20480, 40, 0, 0, 50272, false, true, learned(2050)},
	{"opt-66b", 64, 9216, 36864, 72, 0, 0, 50272, false, true, learned(2050)},
	{"opt-175b", 96, 12288, 49152, 96, 0, 0, 50272, false, true, learned(2050)},
	{"bloom-176b", 70, 14336, 57344, 112, 0, 0, 250880, false, true, gpt},
	{"falcon-40b", 60, 8192, 32768, 128, 8, 64, 65024, false, true, plainLN},
	{"falcon-180b", 80, 14848, 59392, 232, 8, 64, 65024, false, true, plainLN},
	{"mistral-7b", 32, 4096, 14336, 32, 8, 128, 32000, true, false, nil},
	{"mistral-large", 88, 12288, 28672, 96, 8, 128, 32768, true, false, nil},
	{"mistral-small-24b", 40, 5120, 32768, 32, 8, 128, 131072, true, false, nil},
	{"mixtral-8x7b", 32, 4096, 14336, 32, 8, 128, 32000, true, false, moe(8, 2, 14336, 0, 0)},
	{"mixtral-8x22b", 56, 6144, 16384, 48, 8, 128, 32768, true, false, moe(8, 2, 16384, 0, 0)},
	{"grok-1", 64, 6144, 32768, 48, 8, 128, 131072, true, true, moe(8, 2, 32768, 0, 0)},
	{"dbrx", 40, 6144, 10752, 48, 8, 128, 100352, true, false, moe(16, 4, 10752, 0, 0, plainLN)},
	{"qwen2.5-0.5b", 24, 896, 4864, 14, 2, 64, 151936, true, true, qkv},
	{"qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 128, 151936, true, true, qkv},
	{"qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, true, false, qkv},
	{"qwen2.5-14b", 48, 5120, 13824, 40, 8, 128, 152064, true, false, qkv},
	{"qwen2.5-32b", 64, 5120, 27648, 40, 8, 128, 152064, true, false, qkv},
	{"qwen2.5-72b", 80, 8192, 29568, 64, 8, 128, 152064, true, false, qkv},
	{"qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, 151936, true, true, qkNorm},
	{"qwen3-1.7b", 28, 2048, 6144, 16, 8, 128, 151936, true, true, qkNorm},
	{"qwen3-4b", 36, 2560, 9728, 32, 8, 128, 151936, true, true, qkNorm},
	{"qwen3-8b", 36, 4096, 12288, 32, 8, 128, 151936, true, false, qkNorm},
	{"qwen3-14b", 40, 5120, 17408, 40, 8, 128, 151936, true, false, qkNorm},
	{"qwen3-32b", 64, 5120, 25600, 64, 8, 128, 151936, true, false, qkNorm},
	{"qwen3-30b-a3b", 48, 2048, 6144, 32, 4, 128, 151936, true, false, moe(128, 8, 768, 0, 0, qkNorm)},
	{"qwen3-235b-a22b", 94, 4096, 12288, 64, 4, 128, 151936, true, false, moe(128, 8, 1536, 0, 0, qkNorm)},
	{"qwen3-next-80b-a3b", 48, 2048, 5120, 16, 2, 256, 151936, true, false, moe(512, 10, 512, 512, 0, gated(36, 16, 32))},
	{"qwen3.5-397b-a17b", 60, 4096, 0, 32, 2, 256, 248320, true, false, moe(512, 10, 1024, 1024, 0, gated(45, 16, 64))},
	{"qwen3.5-35b-a3b", 40, 2048, 0, 16, 2, 256, 248320, true, false, moe(256, 8, 512, 512, 0, gated(30, 16, 32))},
	{"minimax-m2", 62, 3072, 0, 48, 8, 128, 200064, true, false, moe(256, 8, 1536, 0, 0, qkNorm, sigmoid(true, 0))},
	{"deepseek-v2", 60, 5120, 12288, 128, 128, 128, 102400, true, false, moe(160, 6, 1536, 3072, 1, latent(1536, 512, 128, 64, 128))},
	{"deepseek-v2-lite", 27, 2048, 10944, 16, 16, 128, 102400, true, false, moe(64, 6, 1408, 2816, 1, latent(0, 512, 128, 64, 128))},
	{"deepseek-v3", 61, 7168, 18432, 128, 128, 128, 129280, true, false,
		moe(256, 8, 2048, 2048, 3, latent(1536, 512, 128, 64, 128), groups(8, 4), sigmoid(true, 2.5))},
	{"kimi-k2", 61, 7168, 18432, 64, 64, 128, 163840, true, false,
		moe(384, 8, 2048, 2048, 1, latent(1536, 512, 128, 64, 128), sigmoid(true, 2.827))},
	{"llama4-scout", 48, 5120, 8192, 40, 8, 128, 202048, true, false, moe(16, 1, 8192, 8192, 0, sigmoid(false, 0))},
	{"llama4-maverick", 48, 5120, 16384, 40, 8, 128, 202048, true, false,
		moe(128, 1, 8192, 8192, 0, func(m *Model) { m.MoEEvery = 2 }, sigmoid(false, 0))},
	{"gpt-oss-20b", 24, 2880, 2880, 64, 8, 64, 201088, true, false,
		moe(32, 4, 2880, 0, 0, oss, windowed(128, 12))},
	{"gpt-oss-120b", 36, 2880, 2880, 64, 8, 64, 201088, true, false,
		moe(128, 4, 2880, 0, 0, oss, windowed(128, 18))},
	{"glm-4.5", 92, 5120, 12288, 96, 8, 128, 151552, true, false, moe(160, 8, 1536, 1536, 3, qkv, qkNorm, sigmoid(true, 2.5))},
	{"glm-4.5-air", 46, 4096, 10944, 96, 8, 128, 151552, true, false, moe(128, 8, 1408, 1408, 1, qkv, sigmoid(true, 0))},
	{"glm-5", 78, 6144, 12288, 64, 64, 192, 154880, true, false, moe(256, 8, 2048, 2048, 3, latent(2048, 512, 192, 64, 256),
		sigmoid(true, 2.5), func(m *Model) { m.Notes = append(m.Notes, chosen(2048)) })},
	{"gemma2-9b", 42, 3584, 14336, 16, 8, 256, 256000, true, true, all(windowed(4096, 21), func(m *Model) { m.PostNorms = true })},
	{"gemma2-27b", 46, 4608, 36864, 32, 16, 128, 256000, true, true, all(windowed(4096, 23), func(m *Model) { m.PostNorms = true })},
	{"gemma3-27b", 62, 5376, 21504, 32, 16, 128, 262208, true, true,
		all(windowed(1024, 52), func(m *Model) { m.PostNorms, m.QKNorm = true, true })},
	{"phi-4", 40, 5120, 17920, 40, 10, 128, 100352, true, false, nil},
	{"bert-large", 24, 1024, 4096, 16, 0, 0, 30592, false, true, all(learned(512), func(m *Model) { m.BothWays = true })},
	{"megatron-1.2b", 40, 1536, 6144, 16, 0, 0, 51200, false, true, learned(1024)},
	{"megatron-8.3b", 72, 3072, 12288, 32, 0, 0, 51200, false, true, learned(1024)},
	{"megatron-1.7b", 24, 2304, 9216, 24, 0, 0, 51200, false, true, learned(2048)},
	{"megatron-3.6b", 30, 3072, 12288, 32, 0, 0, 51200, false, true, learned(2048)},
	{"megatron-7.5b", 36, 4096, 16384, 32, 0, 0, 51200, false, true, learned(2048)},
	{"megatron-18b", 40, 6144, 24576, 48, 0, 0, 51200, false, true, learned(2048)},
	{"megatron-39b", 48, 8192, 32768, 64, 0, 0, 51200, false, true, learned(2048)},
	{"megatron-76b", 60, 10240, 40960, 80, 0, 0, 51200, false, true, learned(2048)},
	{"megatron-145b", 80, 12288, 49152, 96, 0, 0, 51200, false, true, learned(2048)},
	{"megatron-310b", 96, 16384, 65536, 128, 0, 0, 51200, false, true, learned(2048)},
	{"nano-1.34b", 16, 2048, 8192, 32, 0, 0, 131072, true, true, nil},
	{"nano-8.86b", 32, 4096, 14336, 32, 0, 0, 131072, true, false, nil},
}

// ropeBases are rope_theta of the published config.json files, by what names begin with; the longest that fits counts.
var ropeBases = map[string]int{
	"llama3": 500000, "llama2": 10000, "llama-": 10000, "llama4": 500000, "codellama": 1000000, "tinyllama": 10000, "smollm3": 5000000,
	"mistral-large": 1000000, "mistral-small": 100000000, "mixtral": 1000000, "grok-1": 10000, "dbrx": 500000, "qwen2.5": 1000000,
	"qwen3-": 1000000, "qwen3-next": 10000000, "qwen3.5": 10000000, "glm-5": 1000000, "minimax-m2": 5000000, "deepseek": 10000,
	"kimi-k2": 50000, "gpt-oss": 150000,
	"glm-4.5": 1000000, "gemma2": 10000, "gemma3": 1000000, "phi-4": 250000,
}

// ropeBase finds a model's base; 0 where none is published.
func ropeBase(name string) int {
	base, long := 0, 0
	for start, b := range ropeBases {
		if strings.HasPrefix(name, start) && len(start) > long {
			base, long = b, len(start)
		}
	}
	return base
}

// aliases are other spellings of catalogue names.
var aliases = map[string]string{
	"llama3.1-8b": "llama3-8b", "llama3.1-70b": "llama3-70b", "llama3.3-70b": "llama3-70b", "llama3-405b": "llama3.1-405b",
	"gpt3": "gpt3-175b", "gpt-175b": "gpt3-175b", "grok1": "grok-1",
	"deepseek-r1": "deepseek-v3", "deepseek-v3.1": "deepseek-v3", "bloom": "bloom-176b", "bloom-175b": "bloom-176b",
	"mistral-large-2": "mistral-large", "mixtral": "mixtral-8x7b",
	"qwen3-30b": "qwen3-30b-a3b", "qwen3-235b": "qwen3-235b-a22b", "llama-7b": "llama2-7b", "llama-13b": "llama2-13b", "grok1-314b": "grok-1",
	"glm-4.6":      "glm-4.5",
	"minimax-m2.5": "minimax-m2", "kimi-k2-thinking": "kimi-k2", "kimi-k2.5": "kimi-k2",
	"nemotron-4-15b": "nemotron4-15b", "nemotron-4-340b": "nemotron4-340b",
	"gpt-145.6b": "megatron-145b", "megatron-22b": "gpt-22b", "megatron-175b": "gpt3-175b", "megatron-530b": "gpt-530b",
	"megatron-1t": "gpt-1t", "mt-nlg-530b": "gpt-530b", "turing-nlg-530b": "gpt-530b",
}

var networks = map[string]CNN{
	"resnet-50":  {Blocks: [4]int{3, 4, 6, 3}, Image: 224, Classes: 1000},
	"resnet-101": {Blocks: [4]int{3, 4, 23, 3}, Image: 224, Classes: 1000},
	"resnet-152": {Blocks: [4]int{3, 8, 36, 3}, Image: 224, Classes: 1000},
}

// Names lists the catalogue.
func Names() []string {
	var names []string
	for _, r := range rows {
		names = append(names, r.name)
	}
	for n := range networks {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// model fills in what a row leaves out: as many heads of keys and values as of queries, which share the hidden size.
func (r row) model() *Model {
	m := &Model{Name: r.name, Layers: r.layers, Hidden: r.hidden, FFN: r.ffn, Heads: r.heads, KVHeads: r.kv, HeadDim: r.dim, Vocab: r.vocab,
		Gated: r.gated, Tied: r.tied, RoPEBase: ropeBase(r.name)}
	if m.KVHeads == 0 {
		m.KVHeads = m.Heads
	}
	if m.HeadDim == 0 {
		m.HeadDim = m.Hidden / m.Heads
	}
	if r.more != nil {
		r.more(m)
	}
	return m
}

// Named finds a model of the catalogue. Case, and whether words are joined by '-', '_' or
// nothing, make no difference.
func Named(name string) (*Model, error) {
	plain := func(s string) string {
		s = strings.ToLower(s)
		if i := strings.LastIndex(s, "/"); i >= 0 {
			s = s[i+1:]
		}
		return strings.NewReplacer("-", "", "_", "", " ", "", ".", "", "meta", "", "instruct", "").Replace(s)
	}
	asked := plain(name)
	for other, n := range aliases {
		if plain(other) == asked {
			asked = plain(n)
			break
		}
	}
	for _, r := range rows {
		if plain(r.name) != asked {
			continue
		}
		return r.model(), nil
	}
	for n, c := range networks {
		if plain(n) == asked {
			return &Model{Name: n, CNN: &c}, nil
		}
	}
	for start, layers := range unmodelled {
		if strings.HasPrefix(asked, plain(start)) {
			return nil, fmt.Errorf("%s has %s, which are not modelled", name, layers)
		}
	}
	return nil, fmt.Errorf("no model %q in the catalogue; nearest: %s. A config.json of Hugging Face or a YAML file describes any other",
		name, strings.Join(nearest(asked, plain), ", "))
}

// unmodelled are well-known models that are no transformers as weft has them, and why.
var unmodelled = map[string]string{
	"nemotron-h": stateSpace, "nemotron-nano": stateSpace, "nemotron-3-nano": stateSpace, "nemotron-3-super": stateSpace,
	"nemotron-3-ultra": stateSpace, "jamba": stateSpace, "falcon-h1": stateSpace, "mamba": stateSpace,
	"llama-3.3-nemotron-super": "layers of different shapes", "llama-3.1-nemotron-ultra": "layers of different shapes",
	"kimi-linear": "linear attention of another kind", "minimax-text-01": "linear attention of another kind",
}

const stateSpace = "state-space layers"

// nearest lists four names: those that begin with what was asked first, then those with the least edits.
func nearest(asked string, plain func(string) string) []string {
	names := Names()
	far := map[string]int{}
	for _, n := range names {
		far[n] = spell.Distance(asked, plain(n), 80)
		if asked != "" && strings.HasPrefix(plain(n), asked) {
			far[n] -= 80
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return far[a] - far[b] })
	return names[:min(4, len(names))]
}

// GPTLike is a dense model of about params parameters in the proportions of GPT-3, for
// when nothing but a size is known: h = 128 L, V = 51,200.
func GPTLike(params float64) *Model {
	h := math.Cbrt(params / 12 * 128)
	hidden := max(int(math.Round(h/128))*128, 128)
	layers := max(int(math.Round((params-51200*float64(hidden))/(12*float64(hidden)*float64(hidden)))), 1)
	m := &Model{Name: fmt.Sprintf("GPT of %.3gB", params/1e9), Layers: layers, Hidden: hidden, FFN: 4 * hidden, Heads: hidden / 128,
		KVHeads: hidden / 128, HeadDim: 128, Vocab: 51200, Tied: true}
	gpt(m)
	return m
}
