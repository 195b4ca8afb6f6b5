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
	"time"

	"github.com/weft-fabric/weft/run/comm"
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

// Processes starts ranks that are processes of their own, each one the program that this
// is, which has to call Rank first of all.
func Processes(n int, transport string, limit time.Duration) (Group, error) {
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
		cmd.Env = append(os.Environ(), rankEnv+"="+strconv.Itoa(r), "WEFT_TEST_SIZE="+strconv.Itoa(n), "WEFT_TEST_ADDR="+addr,
			"WEFT_TEST_TRANSPORT="+transport, "WEFT_TEST_LIMIT="+limit.String())
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
	wg.Wait()
	return outs, errors.Join(errs...)
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

func serve(rank string) error {
	r, err := strconv.Atoi(rank)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(os.Getenv("WEFT_TEST_SIZE"))
	if err != nil {
		return err
	}
	limit, err := time.ParseDuration(os.Getenv("WEFT_TEST_LIMIT"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m, err := comm.Join(ctx, comm.Config{Rank: r, Size: n, LocalRank: r, Addr: os.Getenv("WEFT_TEST_ADDR"), Transport: os.Getenv("WEFT_TEST_TRANSPORT"), Timeout: limit})
	if err != nil {
		return err
	}
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var c Case
		if err := in.Decode(&c); err != nil {
			return m.Close() // no more of them
		}
		var a answer
		if a.Out, err = c.Run(context.Background(), m); err != nil {
			a.Err = fmt.Sprintf("rank %d: %v", r, err)
		}
		if err := out.Encode(&a); err != nil {
			return err
		}
	}
}
