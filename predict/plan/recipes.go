package plan

import (
	"slices"
	"strings"
)

// recipe sets what Megatron-Bridge's performance recipes turned on for a published step with experts. The tables of results do not say it;
// the recipes of the release do: scripts/performance at v0.1.0rc4 for 25.09, v0.2.0 for 25.11, v0.3.0 for 26.02, v0.3.1 for 26.02.01,
// v0.4.0 for 26.04, v0.4.2 for 26.04.01 and v0.5.0 since 26.06.
func recipe(l *Layout, model, gpu, release string) {
	l.Recompute.Modules = strings.Fields(ruleOf(recipeAgain, l, model, gpu, release))
	l.EPOverlap = ruleOf(recipeHides, l, model, gpu, release) == "on" && l.mayHideExperts()
	l.DPOverlap = !slices.Contains(strings.Fields(hoppers), gpu) || model != "deepseek-v3" && model != "kimi-k2" || release < "25.09"
	if l.EP > 1 {
		l.Sender = ruleOf(recipeSends, l, model, gpu, release)
	}
	l.Fused = strings.HasPrefix(gpu, "GB") && l.Dtype == "mxfp8" && release >= "26.06" && model != "kimi-k2"
	l.FP8Scores = l.Fused && (model != "deepseek-v3" || gpu == "GB300")
	if model == "deepseek-v3" || model == "kimi-k2" { // 61 layers in chunks of 64/n: Et*4|(t*4|)*14tmL, or Et|(tt|)*30mL
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

// hostOf is the host's time for a layer with experts by release, over that without CUDA graphs since 25.11; 1 where no release is given.
// Recipes for Grace put attention and router into graphs since then, and those for mxfp8 that overlap experts' traffic the whole step since
// 26.06.
func hostOf(q Question) float64 {
	if q.Model.Experts == 0 || q.Framework != Megatron || q.Release == "" {
		return 1
	}
	if q.Release >= "26.06" && q.Layout.Dtype == "mxfp8" && q.Layout.EPOverlap {
		return 0
	}
	switch {
	case q.Release < "25.09":
		return 4
	case q.Release < "25.11" && q.Model.Name == "qwen3-30b-a3b" && chipOf(q.Machine.GPU.Name) == "b200":
		return 0 // tokens are dropped, so that shapes are fixed and graphs hold whole layers
	case q.Release < "25.11":
		return 1.5
	case strings.HasPrefix(q.Machine.GPU.Name, "GB"):
		return .7
	}
	return 1
}
