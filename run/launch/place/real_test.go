package place

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weft-fabric/weft/internal/bounded"
)

// asked makes this program print where it stands.
const asked = "PLACE_TEST_PRINT"

func TestMain(m *testing.M) {
	if os.Getenv(asked) == "" {
		os.Exit(m.Run())
	}
	p, err := Recognise(os.Getenv)
	if err == nil {
		p.Here = nil
		err = json.NewEncoder(os.Stdout).Encode(struct {
			By                           string
			Rank, Size, LocalRank, NProc int
			Job                          string
		}{p.By, p.Rank, p.Size, p.LocalRank, p.NProc, p.Job})
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// What real launchers leave in the environment of real processes.
func TestUnderMPI(t *testing.T) {
	for _, c := range []struct {
		by      string
		command []string
	}{
		{"openmpi", []string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3"}},
		{"pmi", []string{"mpiexec.hydra", "-n", "3"}},
	} {
		t.Run(c.by, func(t *testing.T) {
			if _, err := exec.LookPath(c.command[0]); err != nil {
				t.Skip(c.command[0] + " is not installed")
			}
			cmd := bounded.Command(t, c.command[0], append(c.command[1:], os.Args[0])...)
			cmd.Env = append(os.Environ(), asked+"=1")
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			seen, jobs := map[int]bool{}, map[string]bool{}
			for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
				var p Place
				if err := d.Decode(&p); err != nil {
					t.Fatalf("%v in %q", err, out)
				}
				if p.By != c.by || p.Size != 3 || p.NProc != 3 || p.LocalRank != p.Rank {
					t.Errorf("%+v", p)
				}
				seen[p.Rank], jobs[p.Job] = true, true
			}
			if !seen[0] || !seen[1] || !seen[2] || len(seen) != 3 || len(jobs) != 1 {
				t.Errorf("ranks %v, jobs %v", seen, jobs)
			}
			if c.by == "openmpi" && jobs[""] {
				t.Error("mpirun says no id of its run")
			}
		})
	}
}

// What Slurm 22.05 with nodes n1, n2, n3 left in the environment of processes,
// cut to what is of interest here. The number at the end of a file's name is
// SLURM_PROCID, r1 is after a requeue. The batch job asks for four tasks on each
// of two nodes, the plain one for two nodes and nothing more.
func TestSlurmTranscripts(t *testing.T) {
	want := map[string]Place{
		"srun-n4-3":           {Node: 1, Nodes: 2, NProc: 2, Rank: 3, Size: 4, LocalRank: 1, Addr: "n1", Job: "slurm-1.0"},
		"srun-n3-2":           {Node: 1, Nodes: 2, NProc: 1, Rank: 2, Size: 3, LocalRank: 0, Addr: "n1", Job: "slurm-2.0"},
		"srun-one-per-node-1": {Node: 1, Nodes: 2, Rank: 1, Size: 2, Addr: "n1", Job: "slurm-3.0"},
		"srun-pmi2-1":         {Node: 1, Nodes: 2, Rank: 1, Size: 2, Addr: "n1", Job: "slurm-4.0"},
		"salloc-shell":        {Nodes: 2, Rank: -1, LocalRank: -1, Addr: "n1", Job: "slurm-5", Alone: true},
		"salloc-srun-1":       {Node: 1, Nodes: 2, Rank: 1, Size: 2, Addr: "n1", Job: "slurm-5.0"},
		"batch-plain-0":       {Nodes: 2, Rank: -1, LocalRank: -1, Addr: "n1", Job: "slurm-8", Alone: true},
		"batch-plain-srun-1":  {Node: 1, Nodes: 2, Rank: 1, Size: 2, Addr: "n1", Job: "slurm-8.0"},
		"batch-r0-0":          {Nodes: 2, NProc: 4, Rank: -1, LocalRank: -1, Addr: "n1", Job: "slurm-13", Alone: true},
		"batch-r1-0":          {Nodes: 2, NProc: 4, Rank: -1, LocalRank: -1, Addr: "n1", Job: "slurm-13-r1", Alone: true, Restart: 1},
		"batch-srun-r1-5": {Node: 1, Nodes: 2, NProc: 4, Rank: 5, Size: 8, LocalRank: 1, Addr: "n1", Job: "slurm-13.2-r1",
			Restart: 1},
		"batch-srun-second-node-r1-0": {Nodes: 1, Rank: 0, Size: 1, Addr: "n2", Job: "slurm-13.1-r1", Restart: 1},
		"array-0-0":                   {Nodes: 1, NProc: 1, Rank: -1, LocalRank: -1, Addr: "n1", Job: "slurm-10"},
		"array-1-0":                   {Nodes: 1, NProc: 1, Rank: -1, LocalRank: -1, Addr: "n2", Job: "slurm-9"},
	}
	files, err := filepath.Glob("testdata/slurm/*.env")
	if err != nil || len(files) < len(want) {
		t.Fatalf("%d transcripts, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".env")
		got, err := Recognise(lines(string(b)))
		if strings.HasPrefix(name, "het-") {
			if err == nil || !strings.Contains(err.Error(), "SLURM_HET_SIZE=2: a heterogeneous job") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		w, ok := want[name]
		if w.By = "slurm"; !ok {
			t.Errorf("%s is not expected", name)
		} else if d := cmp.Diff(w, got, cmpopts.IgnoreFields(Place{}, "Why")); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
