package measure

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/gpu"
)

// ucx is UCX by its own ucx_perftest: one message of all blocks of a request, always in the same memory.
func (c *Config) ucx(ctx context.Context, block int64, batch int) other {
	o := other{name: "ucx_perftest"}
	path, err := exec.LookPath("ucx_perftest")
	if err != nil {
		o.Why = "ucx_perftest is not installed; on Debian: apt-get install ucx-utils"
		return o
	}
	test, transports := "ucp_get", "posix,sysv,cma,self"
	if c.Op == xfer.Write {
		test = "ucp_put_bw"
	}
	if c.Path == "tcp" {
		// UCX's tcp has no reads of its own: two-sided messages move the same bytes.
		test, transports = "tag_bw", "tcp,self"
	}
	per := block * int64(batch)
	o.run = func(iters int) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		port, err := freePort()
		if err != nil {
			return 0, err
		}
		env := append(os.Environ(), "UCX_TLS="+transports, "UCX_NET_DEVICES=lo", "UCX_WARN_UNUSED_ENV_VARS=n")
		if c.Path != "tcp" {
			env = append(os.Environ(), "UCX_TLS="+transports)
		}
		server := exec.CommandContext(ctx, path, "-p", strconv.Itoa(port))
		server.Env, server.WaitDelay = env, time.Second
		dieWithParent(server)
		if err := server.Start(); err != nil {
			return 0, fmt.Errorf("ucx_perftest: %w", err)
		}
		defer func() {
			_ = server.Process.Kill()
			_ = server.Wait()
		}()
		out, err := ucxClient(ctx, env, path, "127.0.0.1", "-p", strconv.Itoa(port), "-t", test, "-s", strconv.FormatInt(per, 10),
			"-n", strconv.Itoa(iters), "-w", "2", "-f", "-v")
		if err != nil {
			return 0, err
		}
		return ucxTime(out, per, iters)
	}
	return o
}

// ucxClient runs the client of ucx_perftest once its server listens.
func ucxClient(ctx context.Context, env []string, path string, args ...string) ([]byte, error) {
	for {
		client := exec.CommandContext(ctx, path, args...)
		client.Env, client.WaitDelay = env, time.Second
		dieWithParent(client)
		out, err := client.CombinedOutput()
		if err == nil {
			return out, nil
		}
		if ctx.Err() != nil || !bytes.Contains(out, []byte("refused")) {
			return nil, fmt.Errorf("ucx_perftest: %w: %s", err, lastLine(string(out)))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ucxTime reads the line of ucx_perftest -v: megabytes, of 2^20, a second over the whole run are under overall_bw.
func ucxTime(out []byte, per int64, iters int) (time.Duration, error) {
	r := csv.NewReader(bytes.NewReader(out))
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil {
		return 0, fmt.Errorf("ucx_perftest: its output could not be read: %w", err)
	}
	at := -1
	for _, row := range rows {
		for i, f := range row {
			if f == "overall_bw" {
				at = i
			}
		}
		if at < 0 || at >= len(row) {
			continue
		}
		if rate, err := strconv.ParseFloat(strings.TrimSpace(row[at]), 64); err == nil && rate > 0 {
			return time.Duration(float64(per) * float64(iters) / (rate * (1 << 20)) * 1e9), nil
		}
	}
	return 0, fmt.Errorf("ucx_perftest: no rate in %q", lastLine(string(out)))
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

//go:embed peers/rma.c
var rmaSource []byte

// buildRMA compiles the program that measures MPI.
func (c *Config) buildRMA(ctx context.Context) (bin string, err error) {
	for _, tool := range []string{"mpicc.openmpi", "mpirun.openmpi"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", errors.New(tool + " is not installed; on Debian: apt-get install openmpi-bin libopenmpi-dev gcc")
		}
	}
	src, bin := filepath.Join(c.Dir, "rma.c"), filepath.Join(c.Dir, "rma")
	if err := os.WriteFile(src, rmaSource, 0o644); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "mpicc.openmpi", "-O3", src, "-o", bin).CombinedOutput(); err != nil {
		return "", fmt.Errorf("mpicc: %w: %s", err, lastLine(string(out)))
	}
	return bin, nil
}

// rma is MPI's one-sided operations: the same blocks by MPI_Get or MPI_Put, completed by a flush.
func (c *Config) rma(ctx context.Context, block int64, batch int, total int64) other {
	o := other{name: "MPI one-sided"}
	bin, err := c.buildRMA(ctx)
	if err != nil {
		o.Why = err.Error()
		return o
	}
	op := "get"
	if c.Op == xfer.Write {
		op = "put"
	}
	o.run = func(iters int) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		args := []string{"--oversubscribe", "--bind-to", "none", "-np", "2"}
		if os.Getuid() == 0 {
			args = append([]string{"--allow-run-as-root"}, args...)
		}
		if c.Path == "tcp" {
			args = append(args, "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo", "--mca", "osc", "^sm,ucx")
		}
		args = append(args, bin, op, fmt.Sprint(block), fmt.Sprint(batch), fmt.Sprint(total), fmt.Sprint(iters))
		cmd := exec.CommandContext(ctx, "mpirun.openmpi", args...)
		cmd.WaitDelay = time.Second
		var problem bytes.Buffer
		cmd.Stderr = &problem
		dieWithParent(cmd)
		out, err := cmd.Output()
		if err != nil {
			return 0, fmt.Errorf("MPI: %w: %s", err, lastLine(problem.String()))
		}
		s, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		if err != nil || s <= 0 {
			return 0, fmt.Errorf("MPI: it printed %q instead of seconds", lastLine(string(out)))
		}
		return time.Duration(s * 1e9), nil
	}
	return o
}

// gpuCopy is what the GPU's driver does alone: a copy from or to pinned memory, or inside the GPU. It goes through as much memory as a
// region has: a few bytes would stay in the cache.
func (c *Config) gpuCopy(per, total int64) (o other, end func()) {
	o, end = other{name: "pinned copy", inside: true}, func() {}
	inside := c.Local == xfer.GPU && c.Remote == xfer.GPU
	if inside {
		o.name = "device copy"
	}
	d, done, err := openGPU(c.Device)
	if err != nil {
		o.Why = err.Error()
		return o, end
	}
	var host []byte
	var at [2]gpu.Ptr
	var q gpu.Queue
	end = func() {
		if q != nil {
			_ = q.Close()
		}
		if host != nil {
			_ = d.Unregister(host)
		}
		for _, p := range at {
			if p != 0 {
				_ = d.Free(p)
			}
		}
		done()
	}
	if q, err = d.Queue(); err == nil {
		at[0], err = d.Alloc(int(total))
	}
	if err == nil && inside {
		at[1], err = d.Alloc(int(total))
	}
	if err == nil && !inside {
		b := make([]byte, total)
		for i := range b {
			b[i] = byte(i)
		}
		if err = d.Register(b); err == nil {
			host = b
		}
	}
	if err != nil {
		o.Why = err.Error()
		return o, end
	}
	in := (c.Local == xfer.GPU) == (c.Op == xfer.Read) // into the GPU
	o.run = func(iters int) (time.Duration, error) {
		began := time.Now()
		for k := range iters {
			off := int64(k) % (total / per) * per
			var err error
			switch {
			case inside:
				err = q.Copy(at[1]+gpu.Ptr(off), at[0]+gpu.Ptr(off), int(per))
			case in:
				err = q.In(at[0]+gpu.Ptr(off), host[off:][:per])
			default:
				err = q.Out(host[off:][:per], at[0]+gpu.Ptr(off))
			}
			if err != nil {
				return 0, err
			}
			mark, err := q.Mark()
			for there := false; err == nil && !there; {
				there, err = q.Reached(mark)
			}
			if err != nil {
				return 0, err
			}
		}
		return time.Since(began), nil
	}
	return o, end
}
