package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// accuracyPage writes docs/plan-accuracy.md.
func accuracyPage(t testing.TB, rows []scored) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# How well plans are predicted\n")
	p("`make plan-accuracy` fits the factors again and writes this page. The points are measured training steps that NVIDIA (Megatron-Bridge, NeMo,")
	p("dgxc-benchmarking), MosaicML, the PyTorch team (torchtitan), BigScience and Hugging Face published; they lie in plan/points.csv.")
	p("Errors are |predicted / measured - 1|. *In sample*: one factor for each framework, GPU and type, fitted to all points. *Model left out*: the factor")
	p("comes from other models alone, never from other rows of the same model. Nothing is tuned to a row.\n")
	p("## Step time\n")
	p("| group | points | in sample: median / p90 | model left out: median / p90 | wanted |")
	p("|---|---|---|---|---|")
	want := map[string]string{"dense, Megatron": "5 / 12%", "FSDP": "8 / 20%", "MoE, Megatron": "12 / 25%"}
	in, out := map[string][]float64{}, map[string][]float64{}
	var groups []string
	for _, r := range rows {
		g := groupOf(r.Point)
		if in[g] == nil {
			groups = append(groups, g)
		}
		in[g] = append(in[g], math.Abs(r.pred/r.Step-1))
		if !math.IsNaN(r.loo) {
			out[g] = append(out[g], math.Abs(r.loo/r.Step-1))
		}
	}
	slices.Sort(groups)
	bold := func(text string, met bool) string {
		if met {
			return text
		}
		return "**" + text + "**"
	}
	for _, g := range groups {
		a, c := quantiles(in[g])
		d, e := quantiles(out[g])
		met := true
		if w := want[g]; w != "" {
			var x, y float64
			fmt.Sscanf(w, "%f / %f", &x, &y)
			met = 100*d <= x && 100*e <= y
		}
		p("| %s | %d | %.1f / %.1f%% | %s | %s |", g, len(in[g]), 100*a, 100*c, bold(fmt.Sprintf("%.1f / %.1f%%", 100*d, 100*e), met), want[g])
	}
	p("\nBold: missed. Layers with experts got 1.5 times faster from one release of Megatron-Bridge to the next for the same layout; the table knows the")
	p("release of each point, and `weft plan --release` takes it. nanotron's rows are derived from a picture and from a FLOP convention that is not stated.")
	p("The MoE figures are optimistic: how much of the experts' traffic hides behind compute, and the host's time for a layer, were set by hand")
	p("with the left-out errors of some variants in view.\n")
	p("## By class, model left out\n")
	p("| framework, GPU, type, kind | points | models | factor | median | p90 |")
	p("|---|---|---|---|---|---|")
	var classes []string
	for _, r := range rows {
		if !slices.Contains(classes, r.class) {
			classes = append(classes, r.class)
		}
	}
	slices.Sort(classes)
	for _, c := range classes {
		var errs []float64
		n := 0
		for _, r := range rows {
			if r.class == c {
				n++
				if !math.IsNaN(r.loo) {
					errs = append(errs, math.Abs(r.loo/r.Step-1))
				}
			}
		}
		f, _, models := classMedian(rows, func(r scored) bool { return r.class == c })
		m, q := quantiles(errs)
		if len(errs) == 0 {
			p("| %s | %d | %d | %.3f | no other model | |", strings.ReplaceAll(c, ",", ", "), n, models, f)
			continue
		}
		factor := fmt.Sprintf("%.3f", f)
		if models == 0 {
			factor = "the host sets the pace"
		}
		p("| %s | %d | %d | %s | %.1f%% | %.1f%% |", strings.ReplaceAll(c, ",", ", "), n, models, factor, 100*m, 100*q)
	}
	b.WriteString(measuredElsewhere)
	return b.String()
}

// measuredElsewhere is what other tests measure: they say which.
const measuredElsewhere = `
## Kernels

Matrix products with every point left out of what predicts it: median 2.6 to 4.8%, p90 9.3 to 13.8% over seven tables (A100, H100, B200; bf16, fp8, fp4). With all
points of the same weights left out: 2.8 to 5.4% and 10.6 to 15.8%. Attention over prompts 2.9 to 3.9%, of a new token 3.1 to 4.7%. ` + "`" + `go test -v ./plan/kernel` + "`" + ` prints them.

## Memory

134 runs of Megatron-LM's own tests on eight A100 and H100, read from their arguments (small models, 0.2 to 60 GB; Megatron logs on its last rank, so the last stage's memory is compared):
state median 1.5% dense and 1.3% with experts (3% wanted), peak 5.0% and 3.5% (8% wanted); p90 9 and 23%, 13 and 8% (` + "`" + `go test -v -run MemoryOfMegatron ./plan` + "`" + `). Grouped matrix products of experts keep four workspaces of
32 MiB on Hopper and of 4 MiB on A100: 134.2 and 16.9 MB lie between two pairs of tests that differ in nothing else. Which tests group them is taken from Megatron-LM's own files; before, without it, the state with experts was off by 5.1%.
What is left: Muon's state (-36%), CUDA graphs (-25 and -50%), interleaved stages with a further-token layer (-28%), and peaks of tp 2 with pp 2 (-21%: half a GB of 2.3 that is not understood) and of four interleaved stages (+12%). Peaks that torchtitan reports (14): median 3.6%, p90 28.7%. **Peaks of BLOOM (40, of whole processes) are 18% above the prediction, nanotron's (14) 18%**: fragmentation
and buffers of Megatron-DeepSpeed and nanotron are not modelled.

Whether a step fits: all measured steps ran. Where the measurement says what is computed again, 262 of 266 (98%) are said to fit; elsewhere 320 of 321 are with full recompute, and the
others would fit with less than that (` + "`" + `go test -v -run MeasuredStepsFit ./plan` + "`" + `). A GPU has what its driver shows: 80 GB are 85.5 billion bytes. The allocator's slack, up to 19% with FSDP, goes when memory is short and is
no part of the verdict. Steps that ran out of memory are not among the open points, so nothing is known of verdicts that are too kind.

## Schedules

What schedules gain over 1F1B, beside 24 measured rates of Qi et al. (8 and 16 stages on A100, 24 to 128 micro-batches, models of 1.5B and 14.6B that are in
no fit): ZB-1p median 2.8%, worst 4.0%; ZB-2p 0.3% and 1.0%; interleaved 2.6% and 5.4%, priced with sends that block, as Megatron's did in 2023 (` + "`" + `p2p=blocking` + "`" + `): three times as many of them through the NIC
between hosts make up half of what it loses. The rates themselves are off by 0 to 2% with 8 stages and by 7 to 15% with 16 (` + "`" + `go test -v -run SchedulesBeside ./plan` + "`" + `).

## Published steps that are in no fit

Layouts and published figures are from memory of the papers; where a layout is not stated it was assumed. Steps are compared, or rates where the paper has those. This is the second run: after the
first the model's attention and host times were changed (see Peers), MT-NLG, GLM-130B and NeoX were typed as deepspeed instead of megatron, and MegaScale's larger run with vpp 12. The first gave MT-NLG
-5 and -8%, GLM +4, NeoX +4, MegaScale +7 at 12,288 GPUs, LLaMA 65B +7. Typed and not in the table, for want of a sure layout: OPT-175B (about -14%), Nemotron-4 15B (-30%), Llama 2 13B and 70B, Falcon.

| paper | typed as | predicted | published | step off by |
|---|---|---|---|---|
| MT-NLG 530B, 2,240 and 3,360 A100 | deepspeed, tp 8, pp 35, batch 1,920, as in 2021 | 57.8 and 41.1 s | 60.1 and 44.4 s | -4 and -8% |
| GLM-130B, 768 A100-40GB | deepspeed, tp 4, pp 8, batch 4,224, as in 2022 | 42.3% of the peak, recompute counted | 43.3% | +2% |
| GPT-NeoX-20B, 96 A100-40GB | deepspeed, tp 2, pp 4, batch 1,536 | 38.6%, recompute counted | 117 TFLOP/s: 37.5% | -3% |
| MegaScale 175B, 256 and 12,288 A100 | megatron, tp 8, pp 8, vpp 6 and 12 | 36.1 and 6.36 s | 32.0 and 6.34 s (Megatron-LM on the 256: 40.0 s) | +13 and 0% (-10% beside Megatron-LM) |
| LLaMA 65B, 2,048 A100 | megatron, tp 8 | 366 tokens/s a GPU | 380 | +4% |
| Llama 2 7B with FSDP, 128 A100 | fsdp, micro 2 | 3,721 tokens/s a GPU | 3,700 | -1% |
| DeepSeek-V3, 2,048 H800 | megatron on H100, dualpipe, ep 64, fp8block | 1,436 tokens/s a GPU | 1,543 | +7% |
| Mixtral 8x22B, 128 H100 | megatron, tp 2, pp 8, ep 8 | 440 TFLOP/s (full) | 468 | +6% |
| Nemotron-4 340B, 1,536 and 6,144 H100 | megatron, tp 8, pp 12, vpp 8 | 9.1 and 6.95 s | 10.3 and 8.0 s | **-12 and -13%** |
| Llama 3 405B, 8,192, 16,384 and (128K tokens) 16,384 H100 | megatron, tp 8, pp 16, vpp 8, cp 16 | 506, 467, 393 TFLOP/s | 430, 400, 380 | **-15, -14, -3%** |
| torchtitan 405B, 512 H100 of 500 W | fsdp on H100, tp 8, pp 8, fp8, vpp 1 and 2 | 157 and 174 tokens/s a GPU | 100 and 130 | **-36 and -25%** |

Megatron's steps on A100 that were measured are of 2022, before flash attention; with it the factor of H100 is taken, and says so: the one of 2022 gave 71% of the peak for 13B on one GPU, where MosaicML measured
57% on eight. Megatron's factor on H100 comes from NVIDIA's tuned recipes of 2024 to 2026. What others ran, or NVIDIA before, was 12 to 15% slower for large dense models; ` + "`" + `weft calibrate` + "`" + ` fits a factor to one's own steps. torchtitan's
405B rows ran on slower GPUs, and its pipeline is not understood here.

## Choosing a layout

Of the layouts that the BLOOM team tried on 384 GPUs the model would choose one that is 3.5% slower than the best measured (` + "`" + `go test -run Regret ./plan` + "`" + `).
Nanotron published only the best layout of each of its 14 cells, so what another choice would have cost there cannot be said. The model prices these layouts 8 to 51% (median 24%) above the one it
would choose itself with the same habits, without overlap or interleaving (` + "`go test -v -run Nanotron ./plan`" + `): mostly data parallelism with ZeRO-1 where nanotron's sweep took two pipeline stages. Its steps of small models are hardly understood here (12% off in the median), and a choice for nanotron should not rest on this model.

## Peers

Steps on A100. The model was changed with these rows in view, so they are no blind test: attention that writes its scores and kernels started one by one are priced by what programs of that time
do, but the 1.2 ms of host time a layer and pass were chosen from vTrain's rows, and Korthikanti's set Megatron's factor on A100 (each of its models is left out where it is predicted).

| | points | here | the peer |
|---|---|---|---|
| Korthikanti et al., 22B to 1T on 8 to 512 GPUs | 8 | mean 1.8%, whole models left out | Calculon: mean 3.65%, in sample |
| Narayanan et al., 1.7B to 1T on 32 to 3,072 GPUs | 10 | mean 4.3%, median 5.3%, p90 8.0% | |
| vTrain, GPTs of 0.2B to 1.4B on one host | 360 of 1,440 | mean 12.6%, median 10.5% | vTrain: mean 8.4%, with every kernel measured on the same GPU before |

Megatron-DeepSpeed on the same GPU is 1.3 times slower than Megatron-LM (BLOOM above; 126 beside 163 TFLOP/s for the 530B model in the two papers), so the two have factors of their own. vTrain's rows of
four and more sequences of a small model are 15 to 30% slower than predicted: its vector work is not understood here.
`
