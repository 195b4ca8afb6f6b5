package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/work"
)

const bash = `#!/bin/bash
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"2"}
TP=${TP:-4}
MODEL_ARGS=(
    --num-layers 32   # deep
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --swiglu --untie-embeddings-and-output-weights --disable-bias-linear
    --normalization RMSNorm --position-embedding-type rope
    --vocab-size 128256
    --seq-length 8192
)
OTHER="--micro-batch-size 1 \
  --global-batch-size $((8*GPUS_PER_NODE)) --bf16"
PAR=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size 2
    --num-layers-per-virtual-pipeline-stage 4
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce
    --recompute-granularity selective --recompute-modules layernorm mlp
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py "${MODEL_ARGS[@]}" $OTHER "${PAR[@]}"
`

func TestMegatronScript(t *testing.T) {
	c, err := ReadConfig("run.sh", []byte(bash))
	if err != nil {
		t.Fatal(err)
	}
	if c.Dialect != "megatron" || c.GPUs != 16 || c.Model == nil || c.Model.KVHeads != 8 {
		t.Fatalf("%+v %+v", c, c.Model)
	}
	l, err := c.Layout(c.Model, 16, Given{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "tp=4,cp=1,pp=2,vpp=4,dp=2,ep=1,sp=on,zero=1,schedule=interleaved,micro=1,batch=64,seq=8192,recompute=layernorm+mlp,dtype=bf16,grad=fp32,tp-overlap=off,dropout=on"; l.String() != want {
		t.Errorf("got  %s\nwant %s", l, want)
	}
	if m, _ := work.Named("llama3-8b"); m.Params().Total != c.Model.Params().Total {
		t.Errorf("the model has %.4g parameters", c.Model.Params().Total)
	}
}

// What scripts of several years do: a comment that ends in a backslash, flags and values in one pair of quotes, arguments in
// strings of many lines, and the words of older releases and of Megatron-DeepSpeed.
func TestOldScripts(t *testing.T) {
	c, err := ReadConfig("run.slurm", []byte(`TP=4
PP=12
GPT_ARGS=" \
    --num-layers 70 \
    --hidden-size 14336 \
    --num-attention-heads 112 \
    --seq-length 2048 --micro-batch-size 2 --global-batch-size 2048 \
    --bf16 --checkpoint-activations --pad-vocab-size-to 250880 \
    "
DS_ARGS=" --deepspeed --zero-stage 0 "
#    --universal-checkpoint \
export CMD=" \
    pretrain_gpt.py \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    $GPT_ARGS \
    $DS_ARGS \
    "
MORE=(
    "--optimizer adam"
    "--position-embedding-type alibi"
)
srun bash -c "$CMD"
`))
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Layout(c.Model, 384, Given{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "tp=4,cp=1,pp=12,dp=8,ep=1,sp=off,zero=1,schedule=1f1b,micro=2,batch=2048,seq=2048,recompute=full,dtype=bf16,grad=fp32,overlap=off,dropout=on"; l.String() != want ||
		c.Model.Vocab != 250880 {
		t.Errorf("got  %s, %d words\nwant %s", l, c.Model.Vocab, want)
	}
	// A flag that ends its line has no value; a pair of quotes may hold a flag and its value.
	c, err = ReadConfig("run.sh",
		[]byte("A=(\n \"--num-layers 4\"\n \"--vocab-size 1000\"\n --hidden-size 512\n --num-attention-heads 8\n --seq-length 64 --micro-batch-size 1 --global-batch-size 8\n --bf16\n)\ntorchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${A[@]}\n"))
	if err != nil || c.Dtype != "bf16" || c.Model == nil || c.Model.Layers != 4 || c.Model.Vocab != 1000 || c.GPUs != 8 {
		t.Errorf("%+v, %v", c, err)
	}
	// One expert is a plain MLP, as Megatron-DeepSpeed's dense scripts have it.
	c, err = ReadConfig("dense.sh",
		[]byte("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 64 --micro-batch-size 1 --global-batch-size 8 --bf16 --num-experts 1 --moe-expert-parallel-size 1"))
	if err != nil || c.Model == nil || c.Model.Experts != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	// GPT-NeoX gives the width that two matrices would have; gated layers have three.
	c, err = ReadConfig("70B.yml",
		[]byte("{\"pipe_parallel_size\": 0, \"model_parallel_size\": 8, \"num_layers\": 80, \"hidden_size\": 8192, \"intermediate_size\": 86016, \"num_attention_heads\": 64, \"num_kv_heads\": 8, \"activation\": \"swiglu\", \"norm\": \"rmsnorm\", \"seq_length\": 4096, \"no_weight_tying\": true}"))
	if err != nil || c.Model.FFN != 28672 {
		t.Errorf("%+v, %v", c, err)
	}
	// Megatron's own tests give a key twice, and take the last.
	c, err = ReadConfig("model_config.yaml",
		[]byte("MODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --seq-length: 1024\n  --num-layers: 24\n"))
	if err != nil || c.Model.Layers != 24 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestConfigs(t *testing.T) {
	for _, x := range []struct {
		name, text string
		model      string
		gpus       int
		given      Given
		want       string
	}{
		{"ds.json",
			`{"train_batch_size": 64, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "overlap_comm": true}} // note`,
			"llama3-8b", 8, Given{Seq: 4096}, "zero=3,schedule=1f1b,micro=4,batch=64,seq=4096"},
		{"auto.json",
			`{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8,},}`,
			"llama3-8b", 8, Given{Batch: 32, Micro: 2, Seq: 2048, Dtype: "bf16"}, "zero=2,schedule=1f1b,micro=2,batch=32"},
		{"titan.toml",
			"[model]\nname=\"llama3\"\nflavor=\"70B\"\n[training]\nlocal_batch_size=8\nseq_len=8192\n[parallelism]\ndata_parallel_shard_degree=-1\ntensor_parallel_degree=8\n[activation_checkpoint]\nmode=\"full\"\n",
			"", 64, Given{}, "tp=8,cp=1,pp=1,dp=8"},
		{"acc.yaml",
			"distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_activation_checkpointing: true\n",
			"llama3-8b", 8, Given{Batch: 16, Micro: 1, Seq: 4096}, "zero=2,schedule=1f1b,micro=1,batch=16,seq=4096,recompute=full"},
		{"neox.yml",
			"# a comment\n{\n \"pipe_parallel_size\": 2,\n \"model_parallel_size\": 2, # two\n \"num_layers\": 32, \"hidden_size\": 4096, \"num_attention_heads\": 32, \"seq_length\": 2048,\n \"pos_emb\": \"rotary\", \"no_weight_tying\": true,\n \"zero_optimization\": {\"stage\": 1, \"overlap_comm\": True,},\n \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 8, \"checkpoint_activations\": true,\n \"fp16\": {\"enabled\": true},\n}\n",
			"", 16, Given{}, "tp=2,cp=1,pp=2,dp=4"},
		{"model_config.yaml",
			"ENV_VARS:\n  X: 1\nMODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --micro-batch-size: 4\n  --global-batch-size: 32\n  --seq-length: 1024\n  --max-position-embeddings: 1024\n  --tensor-model-parallel-size: 2\n  --pipeline-model-parallel-size: 2\n  --bf16: true\n",
			"", 8, Given{}, "tp=2,cp=1,pp=2,dp=2"},
	} {
		c, err := ReadConfig(x.name, []byte(x.text))
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		m := c.Model
		if x.model != "" {
			m, _ = work.Named(x.model)
		}
		if m == nil {
			t.Errorf("%s: no model", x.name)
			continue
		}
		l, err := c.Layout(m, x.gpus, x.given)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		if !strings.Contains(l.String(), x.want) {
			t.Errorf("%s: %s; want %s", x.name, l, x.want)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	for _, x := range []struct {
		name, text, want string
		gpus             int
	}{
		{"contradicts.json",
			`{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}`,
			"64 is not micro-batch 4 x accumulation 4 x 8 data ranks = 128", 8},
		{"typo.json", `{"train_batch_sise": 64}`, `did you mean "train_batch_size"`, 8},
		{"typo2.json", `{"train_batch_size": 64, "zero_optimization": {"stag": 1, "overlap_com": true}}`, "did you mean", 8},
		{"both.json", `{"train_batch_size": 64, "bf16": {"enabled": true}, "fp16": {"enabled": true}}`, "both enabled", 8},
		{"stage.json", `{"train_batch_size": 64, "zero_optimization": {"stage": 7}}`, "0 to 3", 8},
		{"range.json", `{"train_micro_batch_size_per_gpu": [1, 2], "zero_optimization": {"stage": 3}}`, "list of 2 candidates", 8},
		{"asks.json", `{"zero_optimization": {"stage": 3}}`, "--batch SEQUENCES, --micro", 8},
		{"empty.json", ``, "empty", 8},
		{"what.txt", `hello`, "no known dialect", 8},
		{"broken.json", `{"train_batch_size": `, "not JSON", 8},
		{"template.json", `{"train_batch_size": CONFIG_BATCH_SIZE, "zero_optimization": {"stage": ZERO_STAGE}}`,
			"write the value of CONFIG_BATCH_SIZE", 8},
		{"typo.toml", "[training]\nseq_len=2048\n[parallelism]\ntensor_parallel_degre=8\n", "did you mean", 8},
		{"heads.sh",
			"--num-layers 4 --hidden-size 512 --num-attention-heads 6 --kv-channels 64 --tensor-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 8 --seq-length 512 --bf16",
			"tp 4 does not divide 6 heads", 8},
		{"typo.sh", "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --tensor-model-paralel-size 4",
			"did you mean --tensor-model-parallel-size", 8},
		{"typo.yml",
			"\"pipe_parallel_size\": 1\n\"model_paralel_size\": 2\n\"num_layers\": 12\n\"hidden_size\": 768\n\"num_attention_heads\": 12\n",
			`did you mean "model_parallel_size"`, 8},
		{"kind.yaml", "distributed_type: MAGIC\n", "known: FSDP", 8},
		{"mesh.yaml", "distributed_type: FSDP\nnum_processes: 8\nparallelism_config:\n  parallelism_config_tp_size: 3\n", "makes 3 ranks", 8},
	} {
		c, err := ReadConfig(x.name, []byte(x.text))
		if err == nil {
			m := c.Model
			if m == nil {
				m, _ = work.Named("llama3-8b")
			}
			_, err = c.Layout(m, x.gpus, Given{})
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v; want %q", x.name, err, x.want)
		}
	}
}

// What is written is read back equal.
func TestEmitReadsBackEqual(t *testing.T) {
	for _, x := range []struct {
		dialect, model, layout string
		f                      Framework
	}{
		{"deepspeed", "llama3-8b", "dp=8,zero=3,micro=2,batch=64,seq=4096,recompute=full,dtype=bf16", DeepSpeed},
		{"deepspeed", "gpt3-13b", "tp=2,pp=4,dp=2,zero=1,micro=1,batch=64,seq=2048,dtype=fp16,sp=off", DeepSpeed},
		{"megatron", "llama3-70b", "tp=4,cp=2,pp=4,vpp=5,dp=2,zero=1,micro=1,batch=128,seq=8192,dtype=fp8,p2p=blocking", Megatron},
		{"megatron", "deepseek-v3",
			"pp=4,vpp=1,dp=64,ep=64,etp=1,zero=1,micro=1,batch=4096,seq=4096,dtype=mxfp8,recompute=mla_up_proj+moe_act,grad=bf16", Megatron},
		{"megatron", "gpt3-175b", "tp=8,pp=8,dp=2,zero=0,micro=1,batch=64,seq=2048,dtype=fp16,recompute=full,overlap=off,flash=off,grad=bf16",
			Megatron},
		{"megatron", "llama3-8b", "tp=2,dp=8,shard=4,zero=1,micro=1,batch=64,seq=8192,dtype=bf16", Megatron},
		{"torchtitan", "llama3-8b", "dp=8,zero=3,micro=2,batch=16,seq=8192,dtype=bf16,recompute=op,cp-kind=gather", FSDP},
		{"torchtitan", "llama3-70b", "tp=8,dp=32,zero=3,micro=16,batch=512,seq=8192,dtype=fp8,recompute=full,cp-kind=gather", FSDP},
		{"accelerate", "llama3-8b", "dp=8,zero=3,micro=2,batch=64,seq=4096,recompute=full", FSDP},
		{"accelerate", "llama3-8b", "tp=2,dp=4,zero=2,micro=2,batch=64,seq=4096", FSDP},
		// Shards of a mesh leave context parallel ranks out of their count.
		{"torchtitan", "llama3-8b", "cp=2,dp=4,zero=3,micro=2,batch=16,seq=32768,dtype=bf16,recompute=op,cp-kind=gather", FSDP},
		{"torchtitan", "llama3-8b", "cp=2,dp=8,shard=4,zero=3,micro=1,batch=16,seq=32768,dtype=bf16,recompute=full,cp-kind=gather", FSDP},
		{"accelerate", "llama3-8b", "cp=8,dp=1,zero=3,micro=1,batch=8,seq=65536", FSDP},
		{"megatron", "qwen2.5-7b", "tp=4,dp=2,zero=1,micro=1,batch=64,seq=4096", Megatron},
		{"megatron", "gpt-oss-120b", "tp=1,pp=4,dp=8,ep=8,etp=1,zero=1,micro=1,batch=64,seq=4096", Megatron},
	} {
		m := named(t, x.model)
		l := layout(t, x.layout, x.f)
		if err := l.Check(m, 0); err != nil {
			t.Fatal(err)
		}
		text, err := Emit(x.dialect, m, l)
		if err != nil {
			t.Errorf("%s %s: %v", x.dialect, x.layout, err)
			continue
		}
		name := map[string]string{"deepspeed": "a.json", "megatron": "a.sh", "torchtitan": "a.toml", "accelerate": "a.yaml"}[x.dialect]
		c, err := ReadConfig(name, []byte(text))
		if err != nil {
			t.Errorf("%s: %v\n%s", x.dialect, err, text)
			continue
		}
		given := Given{}
		if x.dialect == "deepspeed" || x.dialect == "accelerate" {
			given.Seq = l.Seq
		}
		if x.dialect == "accelerate" {
			given.Batch, given.Micro = l.Batch, l.Micro
		}
		got, err := c.Layout(m, l.GPUs(), given)
		if err != nil {
			t.Errorf("%s: %v\n%s", x.dialect, err, text)
			continue
		}
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", l) {
			t.Errorf("%s\nread back %+v\nwas       %+v\n%s", x.dialect, got, l, text)
		}
		if c.Model != nil && x.dialect == "megatron" && c.Model.Params().Total != m.Params().Total {
			t.Errorf("%s: %s has %.6g parameters, read back %.6g", x.dialect, x.model, m.Params().Total, c.Model.Params().Total)
		}
	}
	if _, err := Emit("deepspeed", named(t, "deepseek-v3"), layout(t, "dp=8,ep=8,batch=8,seq=4096", Megatron)); err == nil ||
		!strings.Contains(err.Error(), "no words for ep") {
		t.Errorf("%v", err)
	}
	if _, err := Emit("deepspeed", named(t, "llama3-8b"), layout(t, "dp=8,batch=8,seq=4096,flash=off", DeepSpeed)); err == nil ||
		!strings.Contains(err.Error(), "no words for flash") {
		t.Errorf("%v", err)
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add([]byte(bash))
	f.Add([]byte(`{"train_batch_size": 64, "zero_optimization": {"stage": 3}}`))
	f.Add([]byte("[training]\nseq_len=2\n[parallelism]\n"))
	f.Add([]byte("distributed_type: FSDP\nnum_processes: 8\n"))
	f.Add([]byte("MODEL_ARGS:\n  --num-layers: 12\n"))
	f.Add([]byte("{\"pipe_parallel_size\": 1}"))
	m, _ := work.Named("llama3-8b")
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ReadConfig("x", data)
		if err == nil {
			_, _ = c.Layout(m, 8, Given{Batch: 64, Seq: 2048, Micro: 1, Dtype: "bf16"})
		}
	})
}

// FuzzParseLayout: a layout that is read is written so that it is read again as the same.
func FuzzParseLayout(f *testing.F) {
	for _, s := range []string{"tp=8,pp=4,dp=16,micro=1,batch=128,seq=4096", "tp=8 ep=8,etp=1,zero=3", "tp=0", "tp=1,tp=2",
		"vpp=2,pp=2,schedule=interleaved", "cp=4,cp-kind=all-to-all", "recompute=full,dtype=fp8,offload=on", "x", "dp=99999999999"} {
		f.Add(s, 64)
	}
	f.Fuzz(func(t *testing.T, text string, gpus int) {
		for _, fw := range []Framework{Megatron, DeepSpeed} {
			l, err := ParseLayout(text, fw, gpus)
			if err != nil {
				continue
			}
			again, err := ParseLayout(l.String(), fw, gpus)
			if err != nil {
				t.Fatalf("%q is %q, which is refused: %v", text, l, err)
			}
			if again.String() != l.String() {
				t.Errorf("%q is %q, and read again %q", text, l, again)
			}
		}
	})
}

// FuzzReadFactor: a factor that is read is a number above 0.
func FuzzReadFactor(f *testing.F) {
	for _, s := range []string{"1.2", "1.2x", "Inf", "NaN", "-1", "0x1p4"} {
		f.Add([]byte("framework,gpu,dtype,factor,steps,error\nmegatron,H100,bf16," + s + ",3,0.1\n"))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if v, err := ReadFactor(data, Megatron, "H100", "bf16"); err == nil && !(v > 0 && !math.IsInf(v, 1)) {
			t.Errorf("factor %g", v)
		}
	})
}
