package differential

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/device"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/soft"
)

// Group is the ranks of a communicator that run cases.
type Group interface {
	// Run makes the call on all ranks and gives their outputs. After an error the
	// group is of no use any more.
	Run(c *Case) ([][]byte, error)
	Close()
}

// local is a group of goroutines.
type local []*comm.Comm

// Local starts ranks that are goroutines of this process, over run/transport/mem.
func Local(n int, limit time.Duration) (Group, error) {
	list, err := comm.LocalWith(n, comm.Config{Timeout: limit})
	return local(list), err
}

func (g local) Run(c *Case) ([][]byte, error) {
	outs, errs := make([][]byte, len(g)), make([]error, len(g))
	var wg sync.WaitGroup
	for r, m := range g {
		wg.Go(func() { outs[r], errs[r] = c.Run(context.Background(), m) })
	}
	wg.Wait()
	return outs, errors.Join(errs...)
}

func (g local) Close() {
	var wg sync.WaitGroup
	for _, m := range g {
		wg.Go(func() { _ = m.Close() })
	}
	wg.Wait()
}

// processes is a group of processes of this host.
type processes []*process

type process struct {
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
	end func() error
}

// answer is what a process says of a case.
type answer struct {
	Out []byte
	Err string
}

// rankEnv says that a process is a rank of a group, and which.
const rankEnv = "WEFT_TEST_DIFFERENTIAL_RANK"

// Setting is where ranks are and how they talk.
type Setting struct {
	Transport string
	Hosts     []int      // of each rank; nil if all are on one
	GPU       device.Way // calls are on memory of software GPUs; empty if they are not
}

// host is the host of a rank, and its number there.
func (s *Setting) host(rank int) (name string, seat int) {
	if s.Hosts == nil {
		return "", rank
	}
	for _, h := range s.Hosts[:rank] {
		if h == s.Hosts[rank] {
			seat++
		}
	}
	return strconv.Itoa(s.Hosts[rank]), seat
}

// Processes starts ranks that are processes of their own, each one the program that this
// is, which has to call Rank first of all.
func Processes(n int, s Setting, limit time.Duration) (Group, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	var g processes
	for r := range n {
		cmd := exec.Command(os.Args[0])
		cmd.WaitDelay = 5 * time.Second
		// The system hangs up on a process group that loses its last tie to its session while one of its processes is stopped.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		host, seat := s.host(r)
		cmd.Env = append(os.Environ(), rankEnv+"="+strconv.Itoa(r), "WEFT_TEST_SIZE="+strconv.Itoa(n), "WEFT_TEST_ADDR="+addr,
			"WEFT_TEST_TRANSPORT="+s.Transport, "WEFT_TEST_LIMIT="+limit.String(), "WEFT_TEST_HOST="+host, "WEFT_TEST_SEAT="+strconv.Itoa(seat),
			"WEFT_TEST_GPU="+string(s.GPU))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			g.Close()
			return nil, err
		}
		g = append(g, &process{cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out)), end: in.Close})
	}
	return g, nil
}

func (g processes) Run(c *Case) ([][]byte, error) {
	outs, errs := make([][]byte, len(g)), make([]error, len(g))
	var wg sync.WaitGroup
	for r, p := range g {
		wg.Go(func() {
			var a answer
			err := p.in.Encode(c)
			if err == nil {
				err = p.out.Decode(&a)
			}
			if err == nil && a.Err != "" {
				err = errors.New(a.Err)
			}
			outs[r], errs[r] = a.Out, err
		})
	}
	var froze error
	if c.Frozen > 0 {
		froze = g[c.Frozen-1].freeze(c.After)
	}
	wg.Wait()
	return outs, errors.Join(append(errs, froze)...)
}

func (g processes) Close() {
	for _, p := range g {
		_ = p.end()
	}
	for _, p := range g {
		stop := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		stop.Stop()
	}
}

// Rank is the life of a process that Processes started; in any other it returns at once.
func Rank() {
	rank, ok := os.LookupEnv(rankEnv)
	if !ok {
		return
	}
	if err := serve(rank); err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// given reads which rank of which world a process of a test is.
func given(rank string) (cfg comm.Config, err error) {
	cfg = comm.Config{Host: os.Getenv("WEFT_TEST_HOST"), Addr: os.Getenv("WEFT_TEST_ADDR"), Transport: os.Getenv("WEFT_TEST_TRANSPORT")}
	if cfg.Rank, err = strconv.Atoi(rank); err != nil {
		return cfg, err
	}
	if cfg.Size, err = strconv.Atoi(os.Getenv("WEFT_TEST_SIZE")); err != nil {
		return cfg, err
	}
	if cfg.Timeout, err = time.ParseDuration(os.Getenv("WEFT_TEST_LIMIT")); err != nil {
		return cfg, err
	}
	cfg.LocalRank, err = strconv.Atoi(os.Getenv("WEFT_TEST_SEAT"))
	return cfg, err
}

func serve(rank string) error {
	cfg, err := given(rank)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m, err := comm.Join(ctx, cfg)
	if err != nil {
		return err
	}
	run := func(c *Case) ([]byte, error) { return c.Run(context.Background(), m) }
	if way := os.Getenv("WEFT_TEST_GPU"); way != "" {
		g, err := device.Open(ctx, m, func() (gpu.Device, error) { return soft.New(gpu.Plain), nil },
			device.Config{Way: device.Way(way), Sums: device.OnHost, Timeout: cfg.Timeout})
		if err != nil {
			return err
		}
		defer g.Close()
		run = func(c *Case) ([]byte, error) { return c.RunOnGPU(context.Background(), g) }
	}
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var c Case
		if err := in.Decode(&c); err != nil {
			return m.Close() // no more of them
		}
		var a answer
		if a.Out, err = run(&c); err != nil {
			a.Err = fmt.Sprintf("rank %d: %v", cfg.Rank, err)
		}
		if err := out.Encode(&a); err != nil {
			return err
		}
	}
}
