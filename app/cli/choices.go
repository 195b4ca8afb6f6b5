package cli

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/move/xfer/measure"
	"github.com/weft-fabric/weft/run/reduce"
)

// choice is a flag that takes one of a few words: of one verb, or, without a verb, of all that have the flag.
type choice struct {
	verb, flag string
	words      []string
}

// choices are what completion offers.
func choices() []choice {
	collectives := strings.Split(collectiveList(), ", ")
	var types []string
	for _, t := range reduce.Types() {
		types = append(types, t.String())
	}
	return []choice{
		{"sim collective", "routing", slices.Sorted(maps.Keys(routings))},
		{"sim collective", "congestion", slices.Sorted(maps.Keys(congestions))},
		{"", "routing", []string{"adaptive", "ecmp"}},
		{"", "nvls", []string{"on", "off"}},
		{"", "framework", []string{"megatron", "fsdp", "deepspeed"}},
		{"", "device", []string{"cuda", "soft"}},
		{"", "path", []string{"process", "shm", "pull", "gpu", "unix", "tcp", "ucx"}},
		{"", "posix_api_type", []string{"URING", "CALLS"}},
		{"algo show", "to", []string{"weft", "msccl", "mscclpp", "svg"}},
		{"algo synth", "to", []string{"weft", "msccl", "mscclpp", "svg", "nccl-tuner"}},
		{"algo synth", "op", []string{"all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"}},
		{"bench", "op", []string{"sum", "prod", "min", "max", "avg", "premulsum", "band", "bor", "bxor"}},
		{"bench", "datatype", types},
		{"bench", "transport", []string{"shm", "tcp", "mixed", "ucx", "mem"}},
		{"calibrate", "op", collectives},
		{"explain", "op", collectives},
		{"run", "nproc", []string{"auto", "cpu", "gpu"}},
		{"run", "rdzv-backend", []string{"c10d", "static", "etcd", "etcd-v2"}},
		{"sim collective", "op", collectives},
		{"sim collective", "transport", []string{"rdma", "tcp"}},
		{"sim serve", "kv", []string{"bf16", "fp8"}},
		{"sim serve", "weights", []string{"bf16", "fp8", "fp4"}},
		{"xfer bench", "class", []string{"latency", "bulk", "background"}},
		{"xfer bench", "scheme", measure.Schemes},
		{"xfer bench", "op_type", []string{"READ", "WRITE"}},
		{"xfer bench", "initiator_seg_type", []string{"DRAM", "FILE", "OBJ", "VRAM"}},
		{"xfer bench", "target_seg_type", []string{"DRAM", "FILE", "OBJ", "VRAM"}},
		{"xfer serve", "io", []string{"ring", "calls"}},
	}
}

// completeFlags registers choices, and clusters for --cluster, where a verb has not done so itself.
func completeFlags(cmd *cobra.Command, list []choice) {
	register := func(flag string, complete cobra.CompletionFunc) {
		if cmd.Flags().Lookup(flag) == nil {
			return
		}
		if _, done := cmd.GetFlagCompletionFunc(flag); !done {
			_ = cmd.RegisterFlagCompletionFunc(flag, complete) // it is a flag
		}
	}
	for _, c := range list {
		if c.verb == "" || "weft "+c.verb == cmd.CommandPath() {
			register(c.flag, cobra.FixedCompletions(c.words, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	register("cluster", clusterNames)
	for _, sub := range cmd.Commands() {
		completeFlags(sub, list)
	}
}
