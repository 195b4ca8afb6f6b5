package plan

import "strings"

// recipe sets what Megatron-Bridge's performance recipes turned on for a published step with experts. The tables of results do not say it; the
// recipes of the release (scripts/performance/configs at v0.2.0 for 25.11, v0.3.0 for 26.02, v0.4.0 for 26.04, v0.5.0 since 26.06) do.
func recipe(l *Layout, model, gpu, release string) {
	l.Recompute.Modules = recipeModules(l, model, gpu, release)
	l.EPOverlap = recipeOverlaps(l, model, gpu, release) && l.mayHideExperts()
	if model == "deepseek-v3" || model == "kimi-k2" { // 61 layers in chunks of 64/n: Et*4|(t*4|)*14tmL, or Et|(tt|)*30mL
		switch chunks := l.PP * l.VPP; {
		case chunks == 32:
			l.FirstLess, l.LastLess = 1, 2
		case chunks > 1 && 64%chunks == 0:
			l.LastLess = 3
		}
	}
}

// recipeModules is what a recipe computes again.
func recipeModules(l *Layout, model, gpu, release string) []string {
	latent := model == "deepseek-v3" || model == "kimi-k2"
	switch {
	case model == "gpt-oss-120b" && (gpu == "GB300" || gpu == "B300" || l.Dtype == "mxfp8"):
		return nil
	case model == "gpt-oss-120b":
		return []string{"layernorm", "moe_act"}
	case !latent:
		return nil
	case chipOf(gpu) == "h100" || l.EPOverlap && gpu == "B200":
		return []string{"mla_up_proj", "mlp"}
	case gpu == "GB300" && (release < "26.02" || l.Dtype == "bf16"):
		return []string{"moe_act"}
	case gpu == "GB300" && release >= "26.06" && model == "deepseek-v3":
		return nil
	case gpu == "GB200" && release >= "26.04" && release < "26.06" && model == "deepseek-v3" && l.Dtype != "bf16":
		return []string{"mlp"}
	}
	return []string{"mla_up_proj"}
}

// recipeOverlaps reports whether a recipe sets --overlap-moe-expert-parallel-comm (moe_a2a_overlap).
func recipeOverlaps(l *Layout, model, gpu, release string) bool {
	switch {
	case model == "kimi-k2":
		return false
	case model == "qwen3-235b-a22b" && chipOf(gpu) == "h100":
		return true
	case chipOf(gpu) == "h100":
		return release < "26.02" || release < "26.04" && model == "qwen3-30b-a3b"
	case model == "qwen3-235b-a22b" && (gpu == "B200" && release < "26.02" || gpu == "B300" && release < "26.04"):
		return true
	case gpu == "B200": // the one recipe over several hosts' GPUs
		return model == "deepseek-v3" && l.EP == 32
	case model == "gpt-oss-120b" && gpu == "GB200" && release >= "26.04":
		return true
	case gpu == "B300":
		return release >= "26.06" && model == "qwen3-30b-a3b"
	}
	return release >= "26.06" && l.Dtype == "mxfp8" && strings.HasPrefix(gpu, "GB")
}

// hostOf is the host's time for a layer with experts by release, over that without CUDA graphs since 25.09; 1 where no release is given.
// Recipes for Grace put attention and router into graphs since 25.11, and those for mxfp8 that overlap experts' traffic the whole step since 26.06.
func hostOf(q Question) float64 {
	grace := strings.HasPrefix(q.Machine.GPU.Name, "GB")
	switch {
	case q.Model.Experts == 0 || q.Framework != Megatron || q.Release == "":
		return 1
	case q.Release >= "26.06" && q.Layout.Dtype == "mxfp8" && q.Layout.EPOverlap:
		return 0
	case q.Release >= "25.11" && grace:
		return .7
	case q.Release < "25.09":
		return 4
	case q.Release < "25.11":
		return 1.5
	}
	return 1
}
