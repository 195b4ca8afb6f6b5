package cli

import (
	"bytes"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/server"
)

// The verbs of operations end with 0 if nothing is wrong, with 1 if something is or nobody can tell, and with 2 if they were
// used wrongly, whatever else they print.
func TestExitCodesOfOperations(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	healthy := write("ok.log", "n0:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")
	info := write("info.log", "[ 93.118201] NVRM: Xid (PCI:0000:18:00): 45, pid=118990, name=python3, Ch 00000001\n")
	killed := write("bad.log", "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.\n")
	junk := write("junk.txt", "zzz\n")
	calm, alarmed := watched(t, false), watched(t, true)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{0, []string{"doctor", healthy}, "Nothing is wrong"},
		{0, []string{"doctor", info}, "one thing is worth knowing"},
		{1, []string{"doctor", info, "--fail-on", "info"}, "one thing is worth knowing"},
		{1, []string{"doctor", killed}, "killed a process for memory"},
		{1, []string{"doctor", killed, healthy, "--json"}, `"host-out-of-memory"`},
		{1, []string{"doctor", junk}, "Unknown"},
		{0, []string{"doctor", junk, healthy}, "one file told nothing"},
		{2, []string{"doctor", filepath.Join(dir, "nosuch")}, "no file or folder"},
		{2, []string{"doctor", healthy, "--fail-on", "nonsense"}, "unknown severity"},
		{2, []string{"doctor", healthy, "--nope"}, "unknown flag"},
		{2, []string{"doctor", "--list", healthy}, "leave"},
		{0, []string{"doctor", "--list"}, "gpu-failed"},
		{0, []string{"doctor", "explain", "gpu-failed"}, "a GPU failed"},
		{2, []string{"doctor", "explain", "nonsense"}, "no finding"},
		{0, []string{"watch", "show", calm}, ""},
		{1, []string{"watch", "show", alarmed}, "was killed"},
		{1, []string{"watch", "show", alarmed, "--json"}, `"rank-dead"`},
		{1, []string{"watch", "show", gone.Addr().String()}, "no server"},
		{2, []string{"watch", "show", calm, "more"}, "at most 1 arg"},
		{2, []string{"watch", "replay", filepath.Join(dir, "nosuch")}, "no such file"},
		{2, []string{"watch", "replay"}, "1 arg"},
		{2, []string{"watch", "tell", junk}, "no job has ended"},
		{2, []string{"watch", "nonsense"}, "unknown verb"},
		{2, []string{"watch", "--url", "nonsense"}, "no address of a page"},
		{2, []string{"watch", "drills", "--faults", "nonsense", "--healthy", "0s"}, "no fault"},
		{2, []string{"watch", "drills", "--ranks", "1", "--healthy", "0s"}, "--ranks 1"},
		{0, []string{"watch", "export", "-o", filepath.Join(dir, "monitoring")}, "weft.rules.yml"},
		{2, []string{"agent", "--interval", "1ms"}, "at least 1s"},
		{1, []string{"agent", "--listen", "192.0.2.1:9410"}, "--listen"},
	} {
		var said bytes.Buffer
		if code := Main(c.args, strings.NewReader(""), &said, &said); code != c.code || !strings.Contains(said.String(), c.want) {
			t.Errorf("weft %s: exit code %d, want %d and %q:\n%s", strings.Join(c.args, " "), code, c.code, c.want, said.String())
		}
	}
}

// watched is the address of a server that has heard of a job, in which one rank was killed if that is asked for.
func watched(t *testing.T, killed bool) string {
	t.Helper()
	at := time.Unix(1e9, 0)
	s, err := server.New(server.Config{Now: func() time.Time { return at }})
	if err != nil {
		t.Fatal(err)
	}
	now := float64(at.Unix())
	r := &watch.Report{Host: "n0", Boot: "b", At: now, Every: 1, HasRanks: true}
	for n := range 2 {
		r.Ranks = append(r.Ranks, watch.Rank{Job: "train", Rank: n, Size: 2, PID: 100 + n, State: "S"})
	}
	if killed {
		r.Launches = []watch.Launch{{Event: "ended", At: now, Job: "train", Rank: 1, PID: 101, Host: "n0", Size: 2, Signal: 9, Seen: true}}
	}
	if _, err := s.Take(r); err != nil {
		t.Fatal(err)
	}
	for range 5 { // what the others of its job have to say is waited for
		at = at.Add(time.Second)
		s.Tick()
	}
	if open := len(s.View().Incidents) > 0; open != killed {
		t.Fatalf("incidents %+v", s.View().Incidents)
	}
	page := httptest.NewServer(s.Pages())
	t.Cleanup(page.Close)
	return strings.TrimPrefix(page.URL, "http://")
}
