//go:build unix

package conform

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// Ranks that are processes: the test binary starts itself again, once for each
// rank, and a rank finds in its environment what it is to do. A socket to the
// parent carries its Gather. A pipe that the parent never writes to is its leash:
// when the parent ends, however it does, so does the rank.

// Body is what a rank does in a process of its own.
type Body func(c *Child) error

// Child is a rank in a process of its own.
type Child struct {
	Rank, Size int
	Args       []string
	hub        *os.File
}

const (
	envBody = "WEFT_CONFORM_BODY"
	envRank = "WEFT_CONFORM_RANK"
	envSize = "WEFT_CONFORM_SIZE"
	envArgs = "WEFT_CONFORM_ARGS"
	hubFile = 3 // what a process is started with begins here
	leash   = 4
)

// Main runs the tests, or, in a process that Spawn started, the body of its
// name. A TestMain calls it and exits with what it says.
func Main(m *testing.M, bodies map[string]Body) int {
	name := os.Getenv(envBody)
	if name == "" {
		return m.Run()
	}
	c := &Child{hub: os.NewFile(hubFile, "hub")}
	go func() {
		_, _ = os.NewFile(leash, "leash").Read(make([]byte, 1))
		os.Exit(3)
	}()
	c.Rank, _ = strconv.Atoi(os.Getenv(envRank))
	c.Size, _ = strconv.Atoi(os.Getenv(envSize))
	if s := os.Getenv(envArgs); s != "" {
		c.Args = strings.Split(s, "\n")
	}
	err := fmt.Errorf("no body %q", name)
	if body := bodies[name]; body != nil {
		err = body(c)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "rank %d: %v\n", c.Rank, err)
		return 1
	}
	return 0
}

// Gather hands every rank what each of them gives. Ranks take part one call
// after another; a rank whose process has ended gives nothing from then on.
func (c *Child) Gather(_ context.Context, mine []byte) ([][]byte, error) {
	if err := writeBlob(c.hub, mine); err != nil {
		return nil, err
	}
	all := make([][]byte, c.Size)
	for r := range all {
		b, err := readBlob(c.hub)
		if err != nil {
			return nil, err
		}
		all[r] = b
	}
	return all, nil
}

// Say tells the parent something, which it gets from Hear.
func (c *Child) Say(b []byte) error { return writeBlob(c.hub, b) }

// Hear waits for what the parent says.
func (c *Child) Hear() ([]byte, error) { return readBlob(c.hub) }

func writeBlob(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readBlob(r io.Reader) ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.LittleEndian.Uint32(n[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

// Children are ranks in processes of their own.
type Children struct {
	commands []*exec.Cmd
	hubs     []*os.File
	leashes  []*os.File
	outputs  []*bytes.Buffer
	ended    []bool
}

// Spawn starts n processes of the test binary that run a body.
func Spawn(t testing.TB, n int, body string, args ...string) *Children {
	t.Helper()
	return SpawnWith(t, n, func(int, *exec.Cmd) {}, body, args...)
}

// SpawnWith does so with commands that are changed before they are started.
func SpawnWith(t testing.TB, n int, change func(rank int, cmd *exec.Cmd), body string, args ...string) *Children {
	t.Helper()
	c := &Children{ended: make([]bool, n)}
	t.Cleanup(func() {
		for r := range c.commands {
			if !c.ended[r] {
				c.Kill(r)
			}
		}
		for r := range c.hubs {
			c.hubs[r].Close()
			c.leashes[r].Close()
		}
	})
	for r := range n {
		syscall.ForkLock.RLock()
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err == nil {
			syscall.CloseOnExec(pair[0])
			syscall.CloseOnExec(pair[1])
		}
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
		theirs := os.NewFile(uintptr(pair[1]), "hub")
		c.hubs = append(c.hubs, os.NewFile(uintptr(pair[0]), "hub"))
		end, held, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c.leashes = append(c.leashes, held)
		cmd := bounded.Server(t, os.Args[0])
		cmd.Env = append(os.Environ(), envBody+"="+body, envRank+"="+strconv.Itoa(r), envSize+"="+strconv.Itoa(n),
			envArgs+"="+strings.Join(args, "\n"))
		cmd.ExtraFiles = []*os.File{hubFile - 3: theirs, leash - 3: end}
		out := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		change(r, cmd)
		err = cmd.Start()
		theirs.Close()
		end.Close()
		if err != nil {
			t.Fatal(err)
		}
		c.commands, c.outputs = append(c.commands, cmd), append(c.outputs, out)
	}
	return c
}

// Gather carries out one Gather of the ranks.
func (c *Children) Gather() error {
	all := make([][]byte, len(c.hubs))
	for r := range all {
		b, err := c.Hear(r)
		if err != nil {
			return fmt.Errorf("gather from rank %d: %w\n%s", r, err, c.outputs[r])
		}
		all[r] = b
	}
	for r := range c.hubs {
		for _, b := range all {
			if err := writeBlob(c.hubs[r], b); err != nil {
				return fmt.Errorf("gather to rank %d: %w", r, err)
			}
		}
	}
	return nil
}

// Hear waits for what a rank says.
func (c *Children) Hear(rank int) ([]byte, error) { return readBlob(c.hubs[rank]) }

// Say tells a rank something.
func (c *Children) Say(rank int, b []byte) error { return writeBlob(c.hubs[rank], b) }

// Pid is the process of a rank.
func (c *Children) Pid(rank int) int { return c.commands[rank].Process.Pid }

// Kill ends a rank as kill -9 does, and waits until it is gone.
func (c *Children) Kill(rank int) {
	_ = c.commands[rank].Process.Kill()
	_ = c.commands[rank].Wait()
	c.ended[rank] = true
}

// hung is how long Wait waits before it takes a rank for hung. No rank works for
// so long; one that hangs is made to print what its goroutines wait for.
const hung = 2 * bounded.Limit

// Wait waits for all ranks that were not killed; a rank that failed is an error
// with what it printed.
func (c *Children) Wait() error {
	errs := make([]error, len(c.commands))
	var wg sync.WaitGroup
	for r, cmd := range c.commands {
		if c.ended[r] {
			continue
		}
		wg.Go(func() {
			alarm := time.AfterFunc(hung, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
			defer alarm.Stop()
			if err := cmd.Wait(); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w\n%s", r, err, c.outputs[r])
			}
			c.ended[r] = true
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
