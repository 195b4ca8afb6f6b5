package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/retry"
)

// perftest measures a way of UCX by UCX's own program, ucx_perftest: what the library itself reaches, without weft.
func perftest(ctx context.Context, w Way, message int) Row {
	r := Row{Name: "ucx_perftest " + strings.ReplaceAll(w.UCX, ",", "+"), Kind: "UCX alone", Copies: w.Copies, CopiesWhy: w.Why,
		Message: message, Origin: "measured"}
	short, err := perftestOnce(ctx, w.UCX, "tag_lat", 8, 20000)
	if err == nil {
		var long map[string]float64
		if long, err = perftestOnce(ctx, w.UCX, "tag_bw", message, max(100, min(2000, 1<<30/message))); err == nil {
			r.Bandwidth = long["overall_bw"] * (1 << 20) / 1e9
		}
	}
	if err != nil {
		r.Origin, r.Note = "absent", err.Error()
		return r
	}
	r.Latency = short["50.0_percentile_lat"]
	return r
}

// perftestOnce runs a test of ucx_perftest between two processes and gives its last line by the names of the columns.
func perftestOnce(ctx context.Context, transports, test string, bytes, times int) (map[string]float64, error) {
	exe, err := exec.LookPath("ucx_perftest")
	if err != nil {
		return nil, errors.New("ucx_perftest is not installed; Debian has it in ucx-utils")
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	start := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, exe, append([]string{"-p", strconv.Itoa(port)}, args...)...)
		cmd.Env = append(os.Environ(), "UCX_TLS="+transports+",self", "UCX_LOG_LEVEL=error")
		cmd.WaitDelay = time.Second
		return cmd
	}
	server := start()
	if err := server.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = server.Process.Kill() // it has ended, or is of no use any more
		_ = server.Wait()
	}()
	var out []byte
	pauses := retry.Pause(100*time.Millisecond, 100*time.Millisecond)
	for try := 0; ; try++ { // until the server listens
		out, err = start("127.0.0.1", "-t", test, "-s", strconv.Itoa(bytes), "-n", strconv.Itoa(times), "-w", "100", "-v", "-f").CombinedOutput()
		if err == nil || try >= 30 || pauses.Wait(ctx) != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ucx_perftest -t %s: %w: %s", test, err, lastLine(out))
	}
	return parsePerftest(string(out))
}

// parsePerftest reads the columns of ucx_perftest -v -f: a line of names and a line of numbers.
func parsePerftest(text string) (map[string]float64, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	at := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "iterations,") })
	if at < 0 || at+1 >= len(lines) {
		return nil, fmt.Errorf("ucx_perftest printed no table: %q", text)
	}
	names, numbers := strings.Split(lines[at], ","), strings.Split(lines[at+1], ",")
	if len(names) != len(numbers) {
		return nil, fmt.Errorf("ucx_perftest printed %d numbers under %d names", len(numbers), len(names))
	}
	got := map[string]float64{}
	for i, n := range names {
		v, err := strconv.ParseFloat(strings.TrimSpace(numbers[i]), 64)
		if err != nil {
			return nil, fmt.Errorf("ucx_perftest: %s is %q", n, numbers[i])
		}
		got[strings.TrimSpace(n)] = v
	}
	return got, nil
}

func lastLine(b []byte) string {
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return string(lines[len(lines)-1])
}

// freePort is one where nobody listens.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
