package evidence

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Jobs have the names that people gave them; a name is the same on all hosts and differs between jobs.
func TestJobNames(t *testing.T) {
	const slurm, port = "SLURM_JOB_ID=4411 SLURM_PROCID=0 SLURM_NTASKS=8 ", "RANK=0 WORLD_SIZE=8 MASTER_PORT=29500 "
	for _, c := range []struct{ env, command, cgroup, want string }{
		{slurm + "SLURM_JOB_NAME=llama-sft", "python train.py", "", "llama-sft-4411"},
		{slurm, "python train.py", "", "4411"},
		{slurm + "SLURM_JOB_NAME=llama-sft WEFT_JOB=ablation7", "python train.py", "", "ablation7"},
		{port, "/usr/bin/python3 -u /home/me/pretrain.py --lr 1e-4", "", "pretrain-29500"},
		{port, "python -m torchtune.train -x", "", "torchtune.train-29500"},
		{port, "/opt/bench/all_reduce_perf -b 8", "", "all_reduce_perf-29500"},
		{port, "python -c pass", "", "python-29500"},
		{port + "TORCHELASTIC_RUN_ID=none", "python train.py", "", "train-29500"},
		{port + "TORCHELASTIC_RUN_ID=0a1b2c3d-1111-2222-3333-444455556666", "python train.py", "", "train-0a1b2c3d"},
		{port + "TORCHELASTIC_RUN_ID=night-run", "python train.py", "", "night-run"},
		{port + "PBS_JOBID=77.head PBS_JOBNAME=cfd", "python train.py", "", "cfd-77.head"},
		{port + "HOSTNAME=vit-worker-3", "python train.py", "0::/kubepods/burstable/podabc\n", "vit"},
	} {
		proc := t.TempDir()
		dir := filepath.Join(proc, "42")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"environ": strings.ReplaceAll(strings.TrimSpace(c.env), " ", "\x00") + "\x00",
			"cmdline": strings.ReplaceAll(c.command, " ", "\x00") + "\x00", "cgroup": c.cgroup, "comm": "python\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		p, ok := Rank(proc, "n0", 42)
		if !ok || p.Job != c.want {
			t.Errorf("%s, %s: %q, want %q", c.env, c.command, p.Job, c.want)
		}
	}
}
