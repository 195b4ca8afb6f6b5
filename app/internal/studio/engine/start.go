package engine

import (
	"embed"
	"path"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/work"
)

//go:embed samples
var samples embed.FS

// Sample is a cluster file to start from.
type Sample struct {
	Name string `json:"name"`
	Note string `json:"note"` // its first comment
	Text string `json:"text"`
}

// order is how samples are listed; the first is what an empty page shows.
var order = []string{"rail-1k", "two-hosts", "four-hosts", "superpod", "nvl72", "dragonfly", "dgx-1v", "tpu", "rail-16k", "rail-131k"}

// Samples lists them.
func Samples() []Sample {
	var list []Sample
	for _, name := range order {
		b, err := samples.ReadFile(path.Join("samples", name+".yaml"))
		if err != nil {
			panic(err) // it is embedded
		}
		first, _, _ := strings.Cut(string(b), "\n")
		list = append(list, Sample{name, strings.TrimPrefix(first, "# "), string(b)})
	}
	return list
}

// start is all that the page has to know before it asks anything.
func (j *job) start(struct{}) (any, error) {
	var ops []string
	for _, c := range sched.Collectives() {
		ops = append(ops, c.String())
	}
	type preset struct {
		Name string `json:"name"`
		Note string `json:"note"`
	}
	presets := []preset{}
	for _, p := range cluster.Presets() {
		presets = append(presets, preset{p.Name, p.Summary})
	}
	models := work.Names()
	slices.Sort(models)
	return map[string]any{"samples": Samples(), "ops": ops, "algorithms": algorithms(), "presets": presets, "models": models,
		"frameworks": []string{"megatron", "fsdp", "deepspeed"}, "dtypes": []string{"bf16", "fp8", "mxfp8", "nvfp4", "fp16", "fp32"},
		"limits": map[string]any{"gpus": j.e.limits.GPUs, "bound_gpus": mostBounded, "synth_gpus": mostSynthesised}, "methods": Methods()}, nil
}
