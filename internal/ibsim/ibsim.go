// Package ibsim runs the InfiniBand simulator of Debian's ibsim-utils for tests:
// a fabric without hardware on which opensm and the diagnostic tools work as on
// a real one.
package ibsim

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// Subnet is a running simulator.
type Subnet struct {
	Dir  string // for the files of tools
	File string // the fabric, as it was given
	Host string // the description of the NIC from which tools look
	env  []string
}

// Start runs the simulator on a fabric in its own format and waits until it is
// ready. The test is skipped where the tools are missing; it ends the simulator.
func Start(t testing.TB, fabric []byte) *Subnet {
	t.Helper()
	for _, tool := range []string{"ibsim", "opensm", "ibnetdiscover"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%v; Debian has it in ibsim-utils, opensm and infiniband-diags", err)
		}
	}
	shims, _ := filepath.Glob("/usr/lib/*/umad2sim/libumad2sim.so")
	if len(shims) == 0 {
		t.Skip("no libumad2sim.so under /usr/lib; Debian has it in libumad2sim0")
	}
	s := &Subnet{Dir: t.TempDir()}
	s.File = filepath.Join(s.Dir, "fabric.net")
	if err := os.WriteFile(s.File, fabric, 0o644); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(fabric), "\nCa\t")
	_, rest, _ = strings.Cut(rest, `# "`)
	s.Host, _, _ = strings.Cut(rest, `"`)
	socket := fmt.Sprintf("weft-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(s.Dir)))
	s.env = append(os.Environ(), "IBSIM_SOCKNAME="+socket, "SIM_HOST="+s.Host, "OSM_TMP_DIR="+s.Dir, "OSM_CACHE_DIR="+s.Dir)
	sim := bounded.Command(t, "ibsim", "-s", "-N", "20000", "-S", "4096", "-P", "400000", "-L", "49151", s.File)
	sim.Env = s.env
	stdin, err := sim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := sim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "Network simulator ready") {
				ready <- true
			}
		}
		close(ready)
	}()
	t.Cleanup(func() {
		fmt.Fprintln(stdin, "quit")
		stdin.Close()
		stop := time.AfterFunc(5*time.Second, func() { sim.Process.Kill() })
		for range ready {
		}
		sim.Wait()
		stop.Stop()
	})
	select {
	case up := <-ready:
		if !up {
			t.Fatal("ibsim ended before it was ready")
		}
	case <-time.After(60 * time.Second):
		t.Fatal("ibsim is not ready after 60 s")
	}
	s.env = append(s.env, "LD_PRELOAD="+shims[0])
	return s
}

// Run runs a tool on the subnet and gives what it prints.
func (s *Subnet) Run(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = s.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, errs.String())
	}
	return out
}
