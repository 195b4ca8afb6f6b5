package plan

import (
	"slices"
	"strconv"
	"strings"
)

// recipe sets what Megatron-Bridge's performance recipes turned on for a published step with experts. The tables of results do not say it;
// the recipes of the release do: scripts/performance at v0.1.0rc4 for 25.09, v0.2.0 for 25.11, v0.3.0 for 26.02, v0.3.1 for 26.02.01,
// v0.4.0 for 26.04, v0.4.2 for 26.04.01 and v0.5.0 since 26.06.
func recipe(l *Layout, model, gpu, release string) {
	l.Recompute.Modules = strings.Fields(ruleOf(recipeAgain, l, model, gpu, release))
	l.EPOverlap = ruleOf(recipeHides, l, model, gpu, release) == "on" && l.mayHideExperts()
	l.DPOverlap = ruleOf(recipeReduces, l, model, gpu, release) != "off"
	l.Fused, l.FP8Scores = ruleOf(recipeFuses, l, model, gpu, release) == "on", ruleOf(recipeScores, l, model, gpu, release) == "on"
	if l.EP > 1 {
		l.Sender = ruleOf(recipeSends, l, model, gpu, release)
	}
	l.cutEnds(model)
}

// cutEnds sets how recipes cut 61 layers in chunks of 64/n: Et*4|(t*4|)*14tmL, or Et|(tt|)*30mL.
func (l *Layout) cutEnds(model string) {
	if model == "deepseek-v3" || model == "kimi-k2" {
		switch chunks := l.PP * l.VPP; {
		case chunks == 32:
			l.FirstLess, l.LastLess = 1, 2
		case chunks > 1 && 64%chunks == 0:
			l.LastLess = 3
		}
	}
}

// recipeRow is a rule of the recipes: it holds where everything that it names is as it says. "" holds for all.
type recipeRow struct {
	models, gpus, dtype string // names that the row is for, apart by blanks
	from, until         string // releases: since, and before
	ep                  int
	says                string // modules, or on and off
}

func (r recipeRow) holds(l *Layout, model, gpu, release string) bool {
	among := func(list, name string) bool { return list == "" || slices.Contains(strings.Fields(list), name) }
	return among(r.models, model) && among(r.gpus, gpu) && among(r.dtype, l.Dtype) && release >= r.from &&
		(r.until == "" || release < r.until) && (r.ep == 0 || l.EP == r.ep)
}

// ruleOf is what the first row says that holds.
func ruleOf(rows []recipeRow, l *Layout, model, gpu, release string) string {
	for _, r := range rows {
		if r.holds(l, model, gpu, release) {
			return r.says
		}
	}
	return ""
}

const hoppers = "H100 H200 H800"

// recipeAgain is what recipes compute again.
var recipeAgain = []recipeRow{
	{models: "gpt-oss-120b", gpus: "GB300 B300"},
	{models: "gpt-oss-120b", dtype: "mxfp8"},
	{models: "gpt-oss-120b", says: "layernorm moe_act"},
	{models: "deepseek-v3 kimi-k2", gpus: hoppers, says: "mla_up_proj mlp"},
	{models: "deepseek-v3", gpus: "B200", ep: 32, says: "mla_up_proj mlp"},
	{models: "deepseek-v3 kimi-k2", gpus: "GB300", until: "26.02", says: "moe_act"},
	{models: "deepseek-v3 kimi-k2", gpus: "GB300", dtype: "bf16", says: "moe_act"},
	{models: "deepseek-v3", gpus: "GB300", from: "26.06"},
	{models: "deepseek-v3", gpus: "GB200", dtype: "fp8 mxfp8 nvfp4", from: "26.04", until: "26.06", says: "mlp"},
	{models: "deepseek-v3 kimi-k2", says: "mla_up_proj"},
}

// recipeHides is where recipes set --overlap-moe-expert-parallel-comm (moe_a2a_overlap).
var recipeHides = []recipeRow{
	{models: "kimi-k2", says: "off"},
	{models: "qwen3-235b-a22b", gpus: hoppers, from: "25.11", says: "on"},
	{models: "deepseek-v3", gpus: hoppers, until: "26.02", says: "on"},
	{until: "25.11"},
	{gpus: hoppers, until: "26.02", says: "on"},
	{models: "qwen3-30b-a3b", gpus: hoppers, until: "26.04", says: "on"},
	{gpus: hoppers, says: "off"},
	{models: "qwen3-235b-a22b", gpus: "B200", until: "26.02", says: "on"},
	{models: "qwen3-235b-a22b", gpus: "B300", until: "26.04", says: "on"},
	{models: "deepseek-v3", gpus: "B200", ep: 32, says: "on"}, // the one recipe over several hosts' GPUs
	{gpus: "B200", says: "off"},
	{models: "gpt-oss-120b", gpus: "GB200", from: "26.04", says: "on"},
	{models: "qwen3-30b-a3b", gpus: "B300", from: "26.06", says: "on"},
	{gpus: "GB200 GB300", dtype: "mxfp8", from: "26.06", says: "on"},
}

// recipeSends is what brings tokens to experts: moe_flex_dispatcher_backend, and all-to-all without.
var recipeSends = []recipeRow{
	{until: "25.09"},
	{models: "deepseek-v3", gpus: hoppers, until: "26.02", says: "deepep"},
	{until: "25.11"}, // tokens are dropped
	{models: "deepseek-v3 kimi-k2", gpus: "GB200 GB300", says: "hybridep"},
	{models: "deepseek-v3", gpus: "B200", ep: 32, says: "deepep"},
	{models: "deepseek-v3", from: "26.02", says: "hybridep"},
	{models: "qwen3-30b-a3b qwen3-235b-a22b", gpus: "GB200 GB300", says: "hybridep"},
	{models: "qwen3-30b-a3b", gpus: "B300", says: "hybridep"},
	{models: "qwen3-30b-a3b", gpus: hoppers, from: "26.02", until: "26.02.01", says: "deepep"},
	{models: "qwen3-30b-a3b", from: "26.02.01", says: "hybridep"},
	{models: "qwen3-235b-a22b", gpus: "B300", from: "26.04.01", says: "hybridep"},
	{models: "gpt-oss-120b", gpus: "GB200 GB300", dtype: "mxfp8", from: "26.06", says: "hybridep"},
	{models: "gpt-oss-120b", gpus: "GB200 B200 B300", from: "26.04", until: "26.06", says: "hybridep"},
	{models: "gpt-oss-120b", gpus: "B300", from: "26.06", says: "hybridep"},
}

// recipeReduces is where recipes do not reduce gradients beside the last backward, recipeFuses where they set cutedsl_fused_grouped_mlp, and
// recipeScores where they set fp8_dot_product_attention.
var (
	recipeReduces = []recipeRow{{models: "deepseek-v3 kimi-k2", gpus: hoppers, from: "25.09", says: "off"}}
	recipeFuses   = []recipeRow{{models: "kimi-k2"}, {gpus: "GB200 GB300", dtype: "mxfp8", from: "26.06", says: "on"}}
	recipeScores  = append([]recipeRow{{models: "deepseek-v3", gpus: "GB200"}}, recipeFuses...)
)

// recipeHosts is the host's time for a layer with experts, over that without CUDA graphs since 25.11. Recipes for Grace put attention and
// router into graphs since then, and those for mxfp8 that overlap experts' traffic the whole step since 26.06. Where tokens are dropped
// shapes are fixed, and graphs hold whole layers.
var recipeHosts = []recipeRow{
	{until: "25.09", says: "4"},
	{models: "qwen3-30b-a3b", gpus: "B200 GB200", until: "25.11", says: "0"},
	{until: "25.11", says: "1.5"},
	{gpus: "GB200 GB300", says: ".7"},
	{says: "1"},
}

// hostOf is what recipeHosts says by release; 1 where no release is given.
func hostOf(q Question) float64 {
	if q.Model.Experts == 0 || q.Framework != Megatron || q.Release == "" {
		return 1
	}
	if q.Release >= "26.06" && q.Layout.Dtype == "mxfp8" && q.Layout.EPOverlap {
		return 0
	}
	times, _ := strconv.ParseFloat(ruleOf(recipeHosts, &q.Layout, q.Model.Name, q.Machine.GPU.Name, q.Release), 64)
	return times
}
