package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// verdictsFile has what the frameworks' own parsers say to files that weft emits, and to changed ones: dialect, model, layout, change, hash
// of the file, ACCEPT or REFUSE, and what they understood or object to. testdata/parsers/parse.py runs them: Accelerate 1.14, DeepSpeed
// 0.19.5 and torchtitan 0.2.2.
const verdictsFile = "testdata/parsers/verdicts.tsv"

// frameworkFile is a file for one of the frameworks.
type frameworkFile struct {
	dialect, model, change string
	layout                 Layout
	text                   string
}

func (e frameworkFile) key() string {
	return strings.Join([]string{e.dialect, e.model, e.layout.String(), e.change}, "\t")
}

// file is the name of the i-th file.
func (e frameworkFile) file(i int) string {
	return fmt.Sprintf("%d.%s", i, map[string]string{"accelerate": "yaml", "deepspeed": "json", "torchtitan": "toml"}[e.dialect])
}

func (e frameworkFile) hash() string {
	sum := sha256.Sum256([]byte(e.text))
	return hex.EncodeToString(sum[:6])
}

// changes are texts in place of others that a framework's parser must have an opinion about.
var changes = []struct{ dialect, name, from, to string }{
	{"accelerate", "a key of Accelerator()", "mixed_precision:", "gradient_accumulation_steps: 4\nmixed_precision:"},
	{"accelerate", "another key", "num_machines:", "num_hosts: 2\nnum_machines:"},
	{"accelerate", "no such kind", "distributed_type: FSDP", "distributed_type: FSDP3"},
	{"accelerate", "a mesh that is too small", "parallelism_config_tp_size: 2", "parallelism_config_tp_size: 1"},
	{"deepspeed", "an unknown key of ZeRO", "\"overlap_comm\"", "\"overlap_communication\""},
	{"deepspeed", "a batch that does not divide", "\"train_batch_size\": 64", "\"train_batch_size\": 65"},
	{"deepspeed", "no such stage", "\"stage\": 3", "\"stage\": 4"},
	{"torchtitan", "an unknown key", "seq_len", "sequence_len"},
	{"torchtitan", "a mesh that is too small", "tensor_parallel_degree = 2", "tensor_parallel_degree = 1"},
	{"torchtitan", "no such size", "tensor_parallel_degree = 2", "tensor_parallel_degree = 0"},
}

// files emits a cross product of models and layouts in three dialects, and changes some.
func files(t testing.TB) (out []frameworkFile) {
	t.Helper()
	for _, d := range []struct {
		dialect   string
		framework Framework
		models    []string
		layouts   []string
	}{
		{"accelerate", FSDP, []string{"llama3-8b", "qwen3-32b"},
			[]string{"dp=8", "dp=16,shard=8", "tp=2,dp=4", "tp=8,dp=4", "tp=2,dp=8,shard=4", "cp=2,dp=4,cp-kind=ring",
				"tp=2,cp=2,dp=4,cp-kind=ring"}},
		{"deepspeed", DeepSpeed, []string{"llama3-8b", "gpt3-13b"},
			[]string{"dp=8", "tp=2,dp=4", "pp=4,dp=4", "tp=2,pp=2,dp=8", "cp=2,dp=4,cp-kind=ulysses", "dp=8,offload=on", "dp=16,shard=8"}},
		{"torchtitan", FSDP, []string{"llama3-8b", "llama3-70b", "llama3.1-405b", "qwen3-8b", "deepseek-v3"},
			[]string{"dp=8", "dp=32,shard=8", "tp=2,dp=8", "tp=8,pp=4,dp=4", "tp=2,pp=2,dp=4,schedule=interleaved,vpp=4",
				"pp=4,dp=8,schedule=zbv,vpp=2", "cp=4,dp=8,cp-kind=gather", "tp=2,cp=2,dp=8,cp-kind=ring", "dp=64,ep=8,etp=1", "dp=64,ep=8,etp=1,dispatcher=deepep"}},
	} {
		for _, model := range d.models {
			m := named(t, model)
			for _, parts := range d.layouts {
				for _, zero := range []int{0, 1, 2, 3} {
					for _, more := range []string{"", ",recompute=full", ",dtype=fp8", ",dtype=fp16", ",grad=fp32"} {
						l, err := ParseLayout(fmt.Sprintf("%s,zero=%d,micro=1,batch=64,seq=4096%s", parts, zero, more), d.framework, 0)
						if err != nil || l.Check(m, 0) != nil {
							continue
						}
						if text, err := Emit(d.dialect, m, l); err == nil {
							out = append(out, frameworkFile{d.dialect, model, "", l, text})
						}
					}
				}
			}
		}
	}
	for _, c := range changes {
		for _, e := range out {
			if e.dialect == c.dialect && e.change == "" && strings.Contains(e.text, c.from) {
				e.change, e.text = c.name, strings.Replace(e.text, c.from, c.to, 1)
				out = append(out, e)
				break
			}
		}
	}
	return out
}

// understood is what our own reader understands of a file, in the words of parse.py.
func (e frameworkFile) understood(t testing.TB) (string, error) {
	c, err := ReadConfig(e.file(0), []byte(e.text))
	if err != nil {
		return "", err
	}
	g := Given{Seq: 4096, Dtype: e.layout.Dtype}
	if e.dialect == "accelerate" {
		g.Batch, g.Micro = e.layout.Batch, e.layout.Micro
	}
	l, err := c.Layout(named(t, e.model), e.layout.GPUs(), g)
	if err != nil {
		return "", err
	}
	replicate, shard := 1, l.DP
	if l.Shard > 0 {
		replicate, shard = l.DP*l.CP/l.Shard, l.Shard/l.CP
	}
	switch e.dialect {
	case "accelerate":
		dtype := l.Dtype
		if dtype == "fp32" {
			dtype = "no"
		}
		text := fmt.Sprintf("FSDP %d processes %s", l.GPUs(), dtype)
		if strings.Contains(e.text, "parallelism_config") {
			text += fmt.Sprintf(" replicate %d shard %d tp %d cp %d", replicate, shard, l.TP, l.CP)
		}
		return text, nil
	case "deepspeed":
		return fmt.Sprintf("batch %d micro %d steps %d stage %d", l.Batch, l.Micro, l.MicroBatches(), l.ZeRO), nil
	}
	local := l.Micro
	if l.PP > 1 {
		local = l.Batch / l.DP
	}
	flavour := ""
	for k, v := range flavours {
		if v == e.model {
			name, size, _ := strings.Cut(k, "/")
			flavour = name + " " + strings.ToUpper(size)
		}
	}
	return fmt.Sprintf("%s replicate %d shard %d tp %d cp %d pp %d ep %d local %d global %d seq %d",
		flavour, replicate, shard, l.TP, l.CP, l.PP, l.EP, local, l.Batch, l.Seq), nil
}

// Every emitted file is one that the framework's own parser was shown and accepts, and our reader understands of it what that parser does.
// What it refuses of changed files, our reader refuses.
func TestEmittedFilesAreAccepted(t *testing.T) {
	data, err := os.ReadFile(verdictsFile)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		c := strings.Split(line, "\t")
		known[strings.Join(c[:4], "\t")] = c[4:]
	}
	accepted, refused := 0, 0
	for _, e := range files(t) {
		v := known[e.key()]
		if v == nil || v[0] != e.hash() {
			t.Errorf("%s: no verdict on this file; run make plan-parsers", strings.ReplaceAll(e.key(), "\t", ", "))
			continue
		}
		ours, err := e.understood(t)
		switch {
		case v[1] == "ACCEPT" && (err != nil || ours != v[2]):
			t.Errorf("%s: the framework understands %q, we %q, %v", e.key(), v[2], ours, err)
		case v[1] == "REFUSE" && e.change == "":
			t.Errorf("%s: emitted and refused: %s", e.key(), v[2])
		case v[1] == "REFUSE" && err == nil:
			t.Errorf("%s: the framework refuses it (%s), we read %q", e.key(), v[2], ours)
		}
		accepted += b2i(v[1] == "ACCEPT")
		refused += b2i(v[1] == "REFUSE")
	}
	t.Logf("%d files accepted, %d changed ones refused", accepted, refused)
	if accepted < 100 || refused < 8 {
		t.Errorf("%d files accepted, %d refused", accepted, refused)
	}
}

// TestFrameworkParsers shows every file to the real parsers, where their sources are at hand, and compares their verdicts with the recorded
// ones.
func TestFrameworkParsers(t *testing.T) {
	sources := os.Getenv("WEFT_FRAMEWORKS")
	if sources == "" {
		t.Skip("WEFT_FRAMEWORKS=DIR has no sources: DIR/accelerate, DIR/deepspeed, DIR/torchtitan")
	}
	dir := t.TempDir()
	all := files(t)
	args := map[string][]string{}
	for i, e := range all {
		path := filepath.Join(dir, e.file(i))
		if err := os.WriteFile(path, []byte(e.text), 0o644); err != nil {
			t.Fatal(err)
		}
		switch e.dialect {
		case "deepspeed":
			path = fmt.Sprintf("%d:%s", e.layout.DP*e.layout.CP, path) // it divides them by sequence_parallel_size itself
		case "torchtitan":
			path = fmt.Sprintf("%d:%s", e.layout.GPUs(), path)
		}
		args[e.dialect] = append(args[e.dialect], path)
	}
	said := map[string][2]string{}
	for dialect, files := range args {
		out, err := bounded.Command(t, "python3", append([]string{"testdata/parsers/parse.py", dialect, filepath.Join(sources, dialect)},
			files...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", dialect, err, out)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			c := strings.Split(line, "\t")
			if len(c) != 3 {
				t.Fatalf("%s: %q", dialect, line)
			}
			said[c[1]] = [2]string{c[0], c[2]}
		}
	}
	var b bytes.Buffer
	for i, e := range all {
		name := e.file(i)
		v, ok := said[name]
		if !ok {
			t.Errorf("%s: no verdict", e.key())
		}
		fmt.Fprintf(&b, "%s\t%s\t%s\t%s\n", e.key(), e.hash(), v[0], strings.ReplaceAll(v[1], name, "FILE"))
	}
	if *update {
		if err := os.WriteFile(verdictsFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if data, _ := os.ReadFile(verdictsFile); !bytes.Equal(data, b.Bytes()) {
		t.Errorf("the parsers' verdicts differ from %s; -update writes them", verdictsFile)
	}
}
