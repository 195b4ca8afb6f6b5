package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// hear takes what the agent says, until it ends. What nobody waits for is dropped.
func (c *Child) hear(r *bufio.Reader) {
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var x Heard
		if json.Unmarshal(line, &x) == nil {
			select {
			case c.lines <- x:
			default:
			}
		}
	}
}

// Start starts an agent's process: command is the program with its arguments, which must call Serve. It ends with
// this process at the latest.
func Start(ctx context.Context, command []string, env ...string) (*Child, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 2 * time.Second
	dieWithParent(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start an agent: %w", err)
	}
	c := &Child{Pid: cmd.Process.Pid, proc: cmd.Process, in: in, lines: make(chan Heard, 1024), ended: make(chan struct{})}
	hello := make(chan Hello, 1)
	go func() {
		defer close(c.ended)
		r := bufio.NewReaderSize(out, 1<<20)
		first, _ := r.ReadBytes('\n')
		var h Hello
		if json.Unmarshal(first, &h) == nil {
			hello <- h
		}
		c.hear(r)
		_ = cmd.Wait()
	}()
	select {
	case c.Hello = <-hello:
		return c, nil
	case <-c.ended:
		return nil, fmt.Errorf("the agent's process ended before it said hello: %s", cmd.ProcessState)
	case <-time.After(30 * time.Second):
		c.Stop()
		return nil, fmt.Errorf("the agent's process said nothing for 30 s")
	case <-ctx.Done():
		c.Stop()
		return nil, ctx.Err()
	}
}

// Stop ends the process and waits for it.
func (c *Child) Stop() {
	c.in.Close()
	select {
	case <-c.ended:
	case <-time.After(2 * time.Second):
		_ = c.proc.Kill()
		<-c.ended
	}
}

// Kill ends the process at once.
func (c *Child) Kill() {
	_ = c.proc.Kill()
	<-c.ended
}

// Next waits for a line of the agent.
func (c *Child) Next(ctx context.Context) (Heard, error) {
	select {
	case x := <-c.lines:
		return x, nil
	case <-c.ended:
		return Heard{}, fmt.Errorf("the agent's process ended")
	case <-ctx.Done():
		return Heard{}, fmt.Errorf("wait for a word of the agent: %w", ctx.Err())
	}
}

// CPU asks for the processor time of the agent so far, in seconds. Notices that come meanwhile are passed over.
func (c *Child) CPU(ctx context.Context) (float64, error) {
	if _, err := io.WriteString(c.in, "usage\n"); err != nil {
		return 0, err
	}
	for {
		x, err := c.Next(ctx)
		if err != nil {
			return 0, err
		}
		if x.CPU > 0 {
			return x.CPU, nil
		}
	}
}
