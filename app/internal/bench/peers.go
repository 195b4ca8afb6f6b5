package bench

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/launch"
)

//go:embed peers
var sources embed.FS

// Families of competitors: what a column of the comparison shows.
const (
	Registered = "registered" // ours, on memory that peers map
	Plain      = "plain"      // ours, on any memory
	Canonical  = "canonical"  // ours, on memory that peers map, with WEFT_CANONICAL=1
	Limit      = "limit"      // what memory, or sockets, allow
	MPI        = "MPI"        // the best of them
	Gloo       = "Gloo"
	TorchGloo  = "torch-gloo"
)

// Peer is a library in one configuration, as a competitor.
type Peer struct {
	Name      string // "open-mpi vader"
	Family    string
	Transport string // shm or tcp
	Install   string // how to get it on Debian

	tools    []string // programs that building and running need
	build    []string // compiler and flags; SRC and BIN are put in. Nil: nothing to build
	source   string   // in peers
	probe    []string // a command that fails where the library is missing; nil: building tells
	variants map[string][]string
	start    func(bin string, n int, most int64, dir string) launch.Spec
}

// Missing is a peer that could not take part.
type Missing struct {
	Name    string `json:"name"`
	Why     string `json:"why"`
	Install string `json:"install,omitempty"`
}

func openMPI(more ...string) func(string, int, int64, string) launch.Spec {
	return func(bin string, n int, _ int64, _ string) launch.Spec {
		args := []string{"mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-np", strconv.Itoa(n)}
		if os.Getuid() == 0 {
			args = slices.Insert(args, 1, "--allow-run-as-root")
		}
		args = append(args, more...)
		return launch.Spec{N: 1, Command: append(args, bin)}
	}
}

func mpich(env ...string) func(string, int, int64, string) launch.Spec {
	return func(bin string, n int, _ int64, _ string) launch.Spec {
		return launch.Spec{N: 1, Command: []string{"mpirun.mpich", "-np", strconv.Itoa(n), bin}, Env: env}
	}
}

// Peers are the libraries to compare with, over shm or tcp. Gloo has no shared
// memory and takes part in both.
func Peers(transport string) []*Peer {
	cc := []string{"-O3", "-march=native", "SRC", "-o", "BIN"}
	ompi := Peer{
		Family: MPI, Transport: transport, Install: "openmpi-bin libopenmpi-dev gcc", tools: []string{"mpicc.openmpi", "mpirun.openmpi"},
		build: append([]string{"mpicc.openmpi"}, cc...), source: "mpi.c", variants: map[string][]string{"reduce-scatter": {"block", "v"}},
	}
	mpch := ompi
	mpch.Install, mpch.tools = "mpich libmpich-dev gcc", []string{"mpicc.mpich", "mpirun.mpich"}
	mpch.build = append([]string{"mpicc.mpich"}, cc...)
	with := func(p Peer, name string, start func(string, int, int64, string) launch.Spec) *Peer {
		p.Name, p.start = name, start
		return &p
	}
	gloo := &Peer{
		Name: "gloo", Family: Gloo, Transport: "tcp", Install: "libgloo-dev g++", tools: []string{"g++"}, source: "gloo.cc",
		build:    []string{"g++", "-O3", "-march=native", "SRC", "-o", "BIN", "-lgloo", "-pthread"},
		variants: map[string][]string{"all-reduce": {"default", "bcube", "halving-doubling"}},
		start: func(bin string, n int, _ int64, dir string) launch.Spec {
			return launch.Spec{N: n, Command: []string{bin, dir}}
		},
	}
	torch := &Peer{
		Name: "torch-gloo", Family: TorchGloo, Transport: "tcp", Install: "python3-torch", tools: []string{"python3"}, source: "torch_gloo.py",
		probe: []string{"python3", "-c", "import torch.distributed"},
		start: func(bin string, n int, _ int64, _ string) launch.Spec {
			return launch.Spec{N: n, Command: []string{"python3", bin}, Env: []string{"OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo"}}
		},
	}
	if transport == "tcp" {
		return []*Peer{
			{
				Name: "limit", Family: Limit, Transport: transport, Install: "gcc", tools: []string{"gcc"}, source: "wire.c",
				build:    append([]string{"gcc"}, cc...),
				variants: map[string][]string{"all-reduce": {"double", "halve", "pair", "ring"}},
				start: func(bin string, n int, _ int64, _ string) launch.Spec {
					return launch.Spec{N: 1, Command: []string{bin, strconv.Itoa(n)}}
				},
			},
			with(ompi, "open-mpi tcp", openMPI("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo")),
			with(mpch, "mpich tcp", mpich("UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo", "MPIR_CVAR_NOLOCAL=1")),
			gloo, torch,
		}
	}
	limit := &Peer{
		Name: "limit", Family: Limit, Transport: "shm", Install: "gcc", tools: []string{"gcc"}, source: "limit.c",
		build:    append([]string{"gcc"}, cc...),
		variants: map[string][]string{"all-reduce": {"fused", "slot", "flat"}, "broadcast": {"direct", "slot"}},
		start: func(bin string, n int, most int64, _ string) launch.Spec {
			return launch.Spec{N: 1, Command: []string{bin, strconv.Itoa(n), strconv.FormatInt(most, 10)}}
		},
	}
	return []*Peer{
		limit,
		with(ompi, "open-mpi vader", openMPI("--mca", "pml", "ob1", "--mca", "btl", "self,vader")),
		with(ompi, "open-mpi coll/sm", openMPI("--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca", "coll_sm_priority", "100")),
		with(ompi, "open-mpi ucx", openMPI("--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices",
			"any", "-x", "UCX_TLS=sm,self")),
		with(mpch, "mpich", mpich()),
		gloo, torch,
	}
}

// Own is weft itself as a competitor; command starts a rank of it (Serve).
func Own(family, transport string, command []string) *Peer {
	return &Peer{
		Name: "weft " + family, Family: family, Transport: transport,
		start: func(_ string, n int, _ int64, _ string) launch.Spec {
			return launch.Spec{N: n, Command: command, Env: append([]string{"WEFT_TRANSPORT=" + transport, "WEFT_REQUIRE=" + transport},
				ownEnv(family)...)}
		},
	}
}

// ownEnv is what ranks of a family of ours need to know.
func ownEnv(family string) []string {
	if family == Canonical {
		return []string{buffersEnv + "=" + Registered, "WEFT_CANONICAL=1"}
	}
	return []string{buffersEnv + "=" + family}
}

// of lists the ways in which the peer can do op.
func (p *Peer) of(op string) []string {
	if v := p.variants[op]; v != nil {
		return v
	}
	return []string{"default"}
}

// checkTools says which tool of a peer is missing. The probe finds out about libraries, which have no command of their own.
func (p *Peer) checkTools(ctx context.Context) error {
	for _, tool := range p.tools {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is not installed", tool)
		}
	}
	if p.probe == nil {
		return nil
	}
	probe := exec.CommandContext(ctx, p.probe[0], p.probe[1:]...)
	probe.WaitDelay = outputTime
	if err := probe.Run(); err != nil {
		return fmt.Errorf("%s fails", strings.Join(p.probe, " "))
	}
	return nil
}

// ready builds the peer's program in the cache unless it is there, and gives
// its path. An error says what is missing.
func (p *Peer) ready(ctx context.Context, cache string) (string, error) {
	if p.source == "" {
		return "", nil
	}
	if err := p.checkTools(ctx); err != nil {
		return "", err
	}
	dir, err := p.unpack(cache)
	if err != nil {
		return "", err
	}
	src := filepath.Join(dir, p.source)
	if p.build == nil {
		return src, nil
	}
	bin := filepath.Join(dir, p.build[0]+"-"+strings.TrimSuffix(p.source, filepath.Ext(p.source)))
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	tmp := fmt.Sprintf("%s.%d", bin, os.Getpid())
	args := slices.Clone(p.build)
	for i, a := range args {
		switch a {
		case "SRC":
			args[i] = src
		case "BIN":
			args[i] = tmp
		}
	}
	defer os.Remove(tmp)
	build := exec.CommandContext(ctx, args[0], args[1:]...)
	build.WaitDelay = outputTime
	if out, err := build.CombinedOutput(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%s cannot build its program: %v: %s", p.build[0], err, first)
	}
	return bin, os.Rename(tmp, bin)
}

// outputTime is how long a process that ended may leave its output to others that it started.
const outputTime = 5 * time.Second

// unpack writes the sources into a folder named after them and the processor,
// for which they are compiled.
func (p *Peer) unpack(cache string) (string, error) {
	h := sha256.New()
	entries, err := sources.ReadDir("peers")
	if err != nil {
		return "", err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		data, err := sources.ReadFile("peers/" + e.Name())
		if err != nil {
			return "", err
		}
		files[e.Name()] = data
		fmt.Fprintf(h, "%s %d\n%s", e.Name(), len(data), data)
	}
	fmt.Fprintf(h, "%s %s %q", runtime.GOARCH, cpuFlags(), p.build)
	dir := filepath.Join(cache, "peers", hex.EncodeToString(h.Sum(nil))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if _, err := os.Stat(path); err == nil {
			continue
		}
		tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
		if err := errors.Join(os.WriteFile(tmp, files[e.Name()], 0o644), os.Rename(tmp, path)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// cpuFlags is what the processor can do, as the kernel lists it.
func cpuFlags() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if name, flags, ok := strings.Cut(line, ":"); ok && (strings.HasPrefix(name, "flags") || strings.HasPrefix(name, "Features")) {
			return strings.TrimSpace(flags)
		}
	}
	return ""
}

// Cache is the folder where built programs are kept between runs.
func Cache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the programs of other libraries: %w", err)
	}
	return filepath.Join(dir, "weft"), nil
}
