package comm

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// What launchers leave that do not set RANK.
func TestLaunched(t *testing.T) {
	for _, x := range []struct{ env, want string }{
		{"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_STEP_NODELIST=n[3-4]",
			"5 of 8, local 1, n3:"},
		{"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=n3",
			"1 of 2, local 1, 127.0.0.1:"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=12",
			"1 of 2, local 1, 127.0.0.1:"},
		{"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=12 MASTER_ADDR=a",
			"3 of 4, local 1, a:"},
		{"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_PORT=77", "1 of 2, local 1, 127.0.0.1:77"},
		{"JOB_COMPLETION_INDEX=2 HOSTNAME=train-2 WORLD_SIZE=4", "2 of 4, local 0, train-0.train:29400"},
	} {
		c, err := configOf(strings.Fields(x.env))
		if got := fmt.Sprintf("%d of %d, local %d, %s", c.Rank, c.Size, c.LocalRank, c.Addr); err != nil || !strings.HasPrefix(got, x.want) {
			t.Errorf("%s: %s, %v; want %s", x.env, got, err, x.want)
		}
	}
	// The ranks of a job agree on the port, those of different jobs do not.
	port := func(rank int, job string) string {
		c, err := configOf(strings.Fields(fmt.Sprintf("OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=%s",
			rank, job)))
		if err != nil {
			t.Fatal(err)
		}
		return c.Addr
	}
	if port(0, "12") != port(1, "12") || port(0, "12") == port(0, "13") {
		t.Error("ports of jobs are not theirs")
	}
}

// A process manager of version 1 of PMI on several hosts is asked for the host of rank 0.
func TestAskPMI(t *testing.T) {
	store := map[string]string{}
	serve := func(c net.Conn) {
		for in := bufio.NewScanner(c); in.Scan(); {
			kv := map[string]string{}
			for _, x := range strings.Fields(in.Text()) {
				k, v, _ := strings.Cut(x, "=")
				kv[k] = v
			}
			switch kv["cmd"] {
			case "init":
				fmt.Fprintln(c, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
			case "get_my_kvsname":
				fmt.Fprintln(c, "cmd=my_kvsname kvsname=kvs_1")
			case "put":
				store[kv["key"]] = kv["value"]
				fmt.Fprintln(c, "cmd=put_result rc=0 msg=success")
			case "barrier_in":
				fmt.Fprintln(c, "cmd=barrier_out")
			case "get":
				if store[kv["key"]] == "" {
					fmt.Fprintln(c, "cmd=get_result rc=-1 msg=key_not_found")
					continue
				}
				fmt.Fprintln(c, "cmd=get_result rc=0 msg=success value="+store[kv["key"]])
			case "finalize":
				fmt.Fprintln(c, "cmd=finalize_ack rc=0")
			}
		}
	}
	ask := func(rank int) (string, string, error) {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fds[1]), "manager")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		defer c.Close()
		go serve(c)
		return askPMI(strconv.Itoa(fds[0]), rank, "")
	}
	if _, _, err := ask(1); err == nil || !strings.Contains(err.Error(), "key_not_found") {
		t.Errorf("rank 1 before rank 0: %v", err)
	}
	own, _ := os.Hostname()
	for rank := range 2 {
		if host, job, err := ask(rank); host != own || job != "pmi-kvs_1" || err != nil {
			t.Errorf("rank %d: %s %s %v", rank, host, job, err)
		}
	}
}

const envWho = "WEFT_TEST_COMM_WHO"

// who is the main of a rank that a launcher started: it says which rank it is, and the sum of all.
func who() {
	err := func() error {
		cfg, err := FromEnv()
		if err != nil {
			return err
		}
		c, err := Join(context.Background(), cfg)
		if err != nil {
			return err
		}
		x := []int32{int32(c.Rank())}
		if err := AllReduce(context.Background(), c, x, Sum); err != nil {
			return err
		}
		fmt.Printf("rank %d of %d: sum %d\n", c.Rank(), c.Size(), x[0])
		return c.Close()
	}()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Real launchers bring ranks together that know nothing but FromEnv.
func TestRealLaunchers(t *testing.T) {
	for _, x := range []struct{ name, args string }{
		{"mpirun.openmpi", "--allow-run-as-root --oversubscribe -n 3"},
		{"mpiexec.hydra", "-n 3"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(x.name)
			if err != nil {
				t.Skip("not installed")
			}
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := bounded.Command(t, path, append(strings.Fields(x.args), exe)...)
			cmd.Env = append(os.Environ(), envWho+"=1", "WEFT_TIMEOUT=60s")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if got := regexp.MustCompile(`(?m)^rank \d of 3: sum 3$`).FindAll(out, -1); len(got) != 3 {
				t.Errorf("%s", out)
			}
		})
	}
}
