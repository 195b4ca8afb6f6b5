package evidence

import (
	"bufio"
	"context"
	"fmt"
	"github.com/weft-fabric/weft/observe/doctor/read"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
)

// rasServer answers as a RAS server of a version would, or as something else does.
func rasServer(t *testing.T, answer func(line string, conn net.Conn) (reply string, end bool)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s := bufio.NewScanner(c)
				for s.Scan() {
					reply, end := answer(s.Text(), c)
					if reply != "" {
						fmt.Fprint(c, reply)
					}
					if end {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

const report = `{"nccl_version":"2.29.2","communicators":[{"hash":"0xae","size":2,"ranks":[{"rank":0,"host":"10.0.0.1","pid":1,"status":{},"collective_counts":{"AllReduce":7}}],"missing_ranks":[{"rank":1,"host":"10.0.0.2","pid":2,"status":{"unresponsive":true}}]}]}`

func modern(line string, _ net.Conn) (string, bool) {
	switch {
	case strings.HasPrefix(line, "CLIENT PROTOCOL"):
		return "SERVER PROTOCOL 2\n", false
	case strings.HasPrefix(line, "MONITOR"), strings.HasPrefix(line, "TIMEOUT"), line == "SET FORMAT json":
		return "OK\n", false
	case line == "VERBOSE STATUS":
		return report, true
	}
	return "ERROR: Unknown command\n", false
}

func TestRASOfANewJob(t *testing.T) {
	addr := rasServer(t, modern)
	c, err := Gather(t.Context(), []string{"ras://" + addr}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := doctor.Diagnose(c, doctor.Options{})
	if r.Hang == nil || len(r.Hang.Culprits) != 1 || r.Hang.Culprits[0] != 1 {
		t.Errorf("%+v", r.Hang)
	}
}

// An old RAS is not asked for a report: that could kill the job.
func TestRASOfAnOldJobIsNotAsked(t *testing.T) {
	asked := false
	addr := rasServer(t, func(line string, c net.Conn) (string, bool) {
		if strings.Contains(line, "STATUS") {
			asked = true
			return "Job summary\n\nCommunicators... (0.00s)\n", true
		}
		if strings.HasPrefix(line, "MONITOR") || strings.HasPrefix(line, "SET FORMAT") {
			return "ERROR: Unknown command\n", false
		}
		return modern(line, c)
	})
	if _, err := AskRAS(t.Context(), addr, false); err == nil || !strings.Contains(err.Error(), "2.29.2") || asked {
		t.Errorf("asked %v, %v", asked, err)
	}
	if b, err := AskRAS(t.Context(), addr, true); err != nil || !asked || !strings.Contains(string(b), "Communicators") {
		t.Errorf("by force: asked %v, %v, %q", asked, err, b)
	}
}

// Servers that stall, lie or talk for ever end in a message, soon.
func TestRASThatIsNone(t *testing.T) {
	quiet := rasServer(t, func(string, net.Conn) (string, bool) { return "", false })
	web := rasServer(t, func(string, net.Conn) (string, bool) { return "HTTP/1.1 400 Bad Request\r\n", true })
	endless := rasServer(t, func(_ string, c net.Conn) (string, bool) { return strings.Repeat("x", 1<<16), false })
	for addr, want := range map[string]string{quiet: "does not answer", web: "no RAS server", endless: "no RAS server",
		"127.0.0.1:1": "no RAS server"} {
		began := time.Now()
		_, err := AskRAS(context.Background(), addr, false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s took %s", want, took)
		}
	}
}

// A RAS server that lies: numbers that cannot be, ranks twice, a report that ends in the middle or
// does not end. What it says is read as far as it makes sense, in bounded time and memory.
func TestRASThatLies(t *testing.T) {
	for name, report := range map[string]string{
		"numbers":     `{"nccl_version":"2.29.2","communicators_count":-7,"communicators":[{"hash":"0xae","size":99999999999999,"ranks":[{"rank":-4,"host":"x","pid":1e99,"status":{"init_state":"no"},"collective_counts":{"AllReduce":-1}}],"missing_ranks":[{"rank":4294967296,"status":{"considered_dead":true}},{"rank":3,"status":{"considered_dead":true}},{"rank":3,"status":{"considered_dead":true}}]}]}`,
		"cut":         `{"nccl_version":"2.29.2","communicators_count":1,"communicators":[{"hash":"0xae","size":2,"ranks":[{"rank":0,"ho`,
		"no JSON":     "certainly\n",
		"deep":        strings.Repeat(`{"communicators":[`, 20000),
		"text report": "Communicators... (0.00s)\n====\n\nGroup     Comms\n    #  in group\n    0    -9999999\n\nErrors\n======\n\n#0-0 (cafe) INCOMPLETE\n  Missing communicator data from 99999999999999999999 jobs\n",
	} {
		c := &doctor.Case{}
		if err := read.File(c, "ras://n0:28028", "", strings.NewReader(report)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		read.Finish(c)
		r := doctor.Diagnose(c, doctor.Options{})
		if r.Verdict == "" || len(r.Files) != 1 {
			t.Errorf("%s: %+v", name, r)
		}
		if name == "numbers" && r.Hang != nil && len(r.Hang.Culprits) > 2 {
			t.Errorf("%s: culprits %v", name, r.Hang.Culprits)
		}
	}
}

// What cannot be read is noted, and the rest is judged.
func TestGatherIsolatesWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("n3/dmesg.txt", "[1.0] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
	write("evil.pkl", "\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.")
	write("noise.bin", strings.Repeat("\x00\xff\x13", 5000))
	if err := os.Symlink(dir, filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	c, err := Gather(t.Context(), []string{dir}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := doctor.Diagnose(c, doctor.Options{})
	if len(r.Files) != 3 || len(r.Findings) != 1 || r.Findings[0].ID != "gpu-failed" || r.Findings[0].Subject.Hosts[0] != "n3" {
		t.Errorf("%+v, %+v", r.Files, r.Findings)
	}
	if _, err := Gather(t.Context(), []string{filepath.Join(dir, "none")}, Options{}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Error(err)
	}
}

// This host can be read, whatever it has.
func TestLive(t *testing.T) {
	c, err := Live(t.Context())
	if err != nil {
		t.Skip(err)
	}
	if r := doctor.Diagnose(c, doctor.Options{}); r.Verdict == "" || len(c.Host) != 1 || c.Host[0].PortHigh == 0 {
		t.Errorf("%+v %+v", r, c.Host)
	}
}

// A large file tells how far it is, and that it is read. Its holes take no disk.
func TestLargeFileTellsProgress(t *testing.T) {
	name := filepath.Join(t.TempDir(), "job.log")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	const size = 320 << 20
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	var told []int64
	_, err = Gather(t.Context(), []string{name}, Options{Bytes: func(n, all int64) {
		if all != size {
			t.Errorf("%d of %d", n, all)
		}
		told = append(told, n)
	}})
	if err != nil || len(told) < 5 || !slices.IsSorted(told) || told[len(told)-1] != size {
		t.Errorf("%v %v", told, err)
	}
}
