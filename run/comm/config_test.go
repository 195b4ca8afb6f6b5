package comm

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// environ is an environment of two ranks with changes; an empty value unsets.
func environ(changes map[string]string) []string {
	set := map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
	maps.Copy(set, changes)
	var list []string
	for k, v := range set {
		list = append(list, k+"="+v)
	}
	return list
}

func configOf(list []string) (Config, error) {
	e := newEnv(list)
	c := e.settings()
	e.identity(&c)
	return c, e.err()
}

// Every value that is not known is an error that names the variable, the value and what is known, whatever the variable.
func TestWrongEnvironment(t *testing.T) {
	tried := map[string]bool{}
	for _, x := range []struct{ name, value, want string }{
		{"RANK", "a", `RANK="a" is not a number`},
		{"RANK", "2", "RANK=2 of WORLD_SIZE=2"},
		{"RANK", "", "WORLD_SIZE=2 is set and RANK is not"},
		{"WORLD_SIZE", "-2", `WORLD_SIZE="-2" is below 0`},
		{"WORLD_SIZE", "", "RANK=1 is set and WORLD_SIZE is not"},
		{"LOCAL_WORLD_SIZE", "x", `LOCAL_WORLD_SIZE="x" is not a number`},
		{"MASTER_PORT", "", "both are needed"},
		{"WEFT_STREAMS", "-3", `WEFT_STREAMS="-3" is below 0`},
		{"WEFT_EPOCH", "-1", `WEFT_EPOCH="-1" is below 0`},
		{"WEFT_FLIGHT", "-3", `WEFT_FLIGHT="-3" is below 0`},
		{"WEFT_RAILS", "two", "none of one, all, discover"},
		{"WEFT_TIMEOUT", "30", "such as 30s"},
		{"WEFT_TIMEOUT", "-3s", "such as 30s"},
		{"WEFT_FLOOR", "5", "WEFT_FLOOR"},
		{"WEFT_LOG", "loud", "none of off, warn, info"},
		{"WEFT_CANONICAL", "no", `WEFT_CANONICAL="no" is none of 1, true, 0, false`},
		{"WEFT_TRANSPORT", "ib", "none of shm, tcp, mixed"},
		{"WEFT_TRANSPORT", "mem", "goroutines"},
		{"WEFT_TRANSPORT", "ucx:nothing", `UCX has no transport "nothing"`},
		{"WEFT_TRANSPORT", "tcp:eth0", "behind its colon"},
		{"WEFT_STREAMS", "1000", "above 64"},
		{"WEFT_FLIGHT", "99999999", "above 1048576"},
		{"WEFT_TIMEOUT", "1us", "too short"},
		{"WEFT_FLOOR", "-5GB/s", "such as 5GB/s"},
		{"WEFT_OUTAGE", "30", "such as 30s nor none"},
		{"WEFT_SLICE", "fast", "such as 100us nor none"},
		{"WEFT_SLICE", "1us", "is not from 100µs to 100ms"},
		{"WEFT_SLICE", "1s", "is not from 100µs to 100ms"},
		{"WEFT_CHECKSUM", "some", "none of hosts, all, none"},
		{"WEFT_CONGESTION", "none", "not a congestion control this process may use"},
		{"WEFT_TLS", "/nowhere", "ca.pem"},
		{"WEFT_MEASURE", "2", "none of 1, true, 0, false"},
		{"WEFT_EXPLAIN", "yes", "none of 1, true, 0, false"},
		{"WEFT_QUORUM", "most", "none of majority, any, witness:HOST:PORT"},
		{"WEFT_QUORUM", "witness:here", "names no witness"},
		{"WEFT_INTERFACES", "eth0,,eth1", "without spaces, such as eth0,"},
		{"WEFT_INTERFACES", "eth0, eth1", "without spaces, such as eth0,"},
		{"WEFT_INTERFACES", "10.1.0.0/99", "not a prefix such as"},
		{"MASTER_PORT", "http", `MASTER_PORT="http" is not a number`},
		{"MASTER_PORT", "70000", "above 65535"},
		{"WEFT_REQUIRE", "ib", "none of shm, tcp, mixed"},
		{"WEFT_TRANPORT", "tcp", "WEFT_TRANPORT is not a weft variable (did you mean WEFT_TRANSPORT?); ranks read WEFT_CANONICAL, "},
		{"WEFT_INTERFACES", "eth0,ib0,eth0", `names "eth0" twice`},
		{"WEFT_FLIGHT_DIR", "/proc/nothing", `"/proc/nothing"`},
		{"WEFT_WATCH", "/proc/nothing", `"/proc/nothing"`},
	} {
		c, err := configOf(environ(map[string]string{x.name: x.value}))
		if err == nil {
			_, err = Join(context.Background(), c)
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s=%q: %v, want %q in it", x.name, x.value, err, x.want)
		}
		wrong, typed := errors.AsType[*SettingError](err)
		if !typed || strings.HasPrefix(x.name, "WEFT_") && (wrong.Name != x.name || wrong.Value != x.value && x.name != "WEFT_TRANPORT") {
			t.Errorf("%s=%q: %#v", x.name, x.value, wrong)
		}
		if strings.HasPrefix(x.name, "WEFT_") && CheckEnviron([]string{x.name + "=" + x.value}, true) == nil {
			t.Errorf("CheckEnviron takes %s=%s", x.name, x.value)
		}
		tried[x.name] = true
	}
	e := newEnv(nil)
	e.settings()
	for _, name := range e.read {
		if any := name == "WEFT_TOKEN" || name == "WEFT_HOST"; !tried[name] && !any {
			t.Errorf("no wrong value of %s was tried", name)
		}
	}
	// Folders of other hosts are not looked for on this one.
	if err := CheckEnviron([]string{"WEFT_TLS=/nowhere", "WEFT_FLIGHT_DIR=/proc/nothing"}, false); err != nil {
		t.Error(err)
	}
	_, err := configOf(environ(map[string]string{"WEFT_TRANSPORT": "tcp", "WEFT_REQUIRE": "shm"}))
	if err == nil || !strings.Contains(err.Error(), "contradict") {
		t.Error(err)
	}
	_, err = configOf(environ(map[string]string{"WEFT_RAILS": "all", "WEFT_INTERFACES": "eth0"}))
	if err == nil || !strings.Contains(err.Error(), "WEFT_RAILS=all and WEFT_INTERFACES=eth0 contradict") {
		t.Error(err)
	}
}

// A process that a launcher started beside others is not taken for a world of one.
func TestNoSilentWorldOfOne(t *testing.T) {
	for _, x := range []struct {
		env  string
		want string // "" if the process is alone
	}{
		{"HOME=/", ""},
		{"SLURM_PROCID=1 SLURM_NTASKS=2", "SLURM_JOB_ID as well"},
		{"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1", ""},
		{"SLURM_PROCID=0 SLURM_NTASKS=1", ""},
		{"SLURM_NTASKS=4", ""}, // the shell of salloc
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", "Open MPI started 2 processes (this is rank 0), not all of them on this host"},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2", "set MASTER_PORT to a free port"},
		{"JOB_COMPLETION_INDEX=2 HOSTNAME=train-2", "set WORLD_SIZE to the Job's completions"},
		{"PET_NODE_RANK=1 PET_NNODES=2", "torchrun started several processes"},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", ""},
		{"PMI_RANK=3 PMI_SIZE=4", "weft run -n 4"},
		{"PMI_RANK=3 PMI_SIZE=4 PMI_FD=999", "asking it where rank 0 is failed"},
		{"PMIX_RANK=2", "weft run -n 3"},
		{"PMIX_RANK=0", "PMIx started several processes (PMIX_RANK=0)"},
		{"PMIX_RANK=0 SLURM_NTASKS=1", ""},
		{"PMIX_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", ""},
		{"OMPI_COMM_WORLD_SIZE=2", "Open MPI started several processes (OMPI_COMM_WORLD_SIZE=2)"},
		{"PMI_SIZE=2", "MPI started several processes (PMI_SIZE=2)"},
		{"PET_NNODES=2", "torchrun started several processes (PET_NNODES=2)"},
		{"OMPI_COMM_WORLD_RANK=0", "Open MPI started several processes (OMPI_COMM_WORLD_RANK=0)"},
		{"PMI_RANK=0", "MPI started several processes (PMI_RANK=0)"},
		{"GROUP_RANK=1", "torchrun started several processes (GROUP_RANK=1)"},
		{"GROUP_RANK=0 GROUP_WORLD_SIZE=1", ""},
		{"ROLE_RANK=0 ROLE_WORLD_SIZE=4", "torchrun started several processes (ROLE_RANK=0 ROLE_WORLD_SIZE=4)"},
		{"FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2", "flux run started several processes (FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2)"},
		{"FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1", ""},
		{"FLUX_JOB_SIZE=4", ""},
		{"JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2", "jsrun started several processes (JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2)"},
		{"MPI_LOCALRANKID=0 MPI_LOCALNRANKS=4", "mpiexec started several processes"},
		{"LOCAL_RANK=1", "a launcher started several processes (LOCAL_RANK=1)"},
		{"LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", ""},
		{"WEFT_AGENT_FD=3", "package elastic"},
		{"SLURM_PROCID=1 SLURM_NTASKS=2 WORLD_SIZE=1", ""},
	} {
		c, err := configOf(strings.Fields(x.env))
		switch {
		case x.want == "" && (err != nil || c.Size != 1 || c.Rank != 0):
			t.Errorf("%s: rank %d of %d, %v; want 0 of 1", x.env, c.Rank, c.Size, err)
		case x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)):
			t.Errorf("%s: %v, want %q in it", x.env, err, x.want)
		}
	}
}

// Every variable that weft reads is known to ranks, so that none is refused.
func TestEveryVariableIsKnown(t *testing.T) {
	e := newEnv(nil)
	e.settings()
	known := append(slices.Clone(e.read), elsewhere...)
	name := regexp.MustCompile(`"(WEFT_[A-Z0-9_]+)["=]`)
	inPython := regexp.MustCompile(`environ[.\[a-z(]*["'](WEFT_[A-Z0-9_]+)["']`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		name := name
		if strings.HasSuffix(path, ".py") && !strings.Contains(path, "tests") {
			name = inPython
		} else if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.Contains(path, "conform") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range name.FindAllStringSubmatch(string(text), -1) {
			if n := m[1]; !slices.Contains(known, n) && !strings.HasPrefix(n, "WEFT_BENCH_") && !strings.HasPrefix(n, "WEFT_TEST_") {
				t.Errorf("%s reads %s, which FromEnv refuses: add it to elsewhere", path, n)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAddressInBrackets(t *testing.T) {
	if c, err := configOf(environ(map[string]string{"MASTER_ADDR": "[::1]", "MASTER_PORT": "29500"})); c.Addr != "[::1]:29500" || err != nil {
		t.Errorf("address %q, %v", c.Addr, err)
	}
}

// Where nobody comes Join ends, although its context does not.
func TestJoinEnds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Join(context.Background(), Config{Size: 2, Listener: ln, Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "rank 1 of 2 did not come") {
		t.Error(err)
	}
}
