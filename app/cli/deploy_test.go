package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/manifest"
)

// understands asks weft's own parser about a command line.
func understands(t *testing.T, file string, words []string) {
	t.Helper()
	for i, w := range words {
		if w == "--" { // what follows is the user's program
			words = words[:i]
			break
		}
	}
	if code, _, errs := command("", append(words, "--help")...); code != 0 {
		t.Errorf("%s: weft %s: %s", file, strings.Join(words, " "), errs)
	}
}

// TestDeployFiles: manifests by the fields of their kinds, units by systemd, scripts by their shells, and every command line of weft in
// them by weft.
func TestDeployFiles(t *testing.T) {
	seen := 0
	files, _ := filepath.Glob("../../deploy/*")
	more, _ := filepath.Glob("../../deploy/slurm/*")
	for _, file := range append(files, more...) {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // a folder
		}
		switch filepath.Ext(file) {
		case ".yaml":
			if n, err := manifest.Check(data); err != nil || n == 0 {
				t.Errorf("%s: %d documents, %v", file, n, err)
			}
			for _, doc := range strings.Split(string(data), "\n---\n") {
				var v any
				if err := yaml.Unmarshal([]byte(doc), &v); err != nil {
					t.Fatal(err)
				}
				for _, words := range commands(v) {
					seen++
					understands(t, file, words)
				}
			}
		case ".service":
			_, line, _ := strings.Cut(string(data), "ExecStart=/usr/local/bin/weft ")
			line, _, _ = strings.Cut(line, "\n")
			seen++
			understands(t, file, strings.Fields(line))
			tool, err := exec.LookPath("systemd-analyze")
			if err != nil {
				continue
			}
			if out, err := bounded.Command(t, tool, "verify", "--man=no", file).CombinedOutput(); err != nil &&
				!strings.Contains(string(out), "is not executable") && !strings.Contains(string(out), "No such file") {
				t.Errorf("systemd-analyze: %v\n%s", err, out)
			} else if strings.Contains(string(out), "Unknown key") || strings.Contains(string(out), "ignoring") {
				t.Errorf("systemd-analyze: %s", out)
			}
		case ".sh":
			if out, err := bounded.Command(t, "bash", "-n", file).CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s", file, err, out)
			}
			for _, m := range regexp.MustCompile(`(?m)^\s+weft (.*)$`).FindAllStringSubmatch(string(data), -1) {
				seen++
				understands(t, file, strings.Fields(strings.ReplaceAll(m[1], `"`, "")))
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d command lines of weft were found; there are more", seen)
	}
}

// commands finds the command lines of containers.
func commands(v any) (out [][]string) {
	switch x := v.(type) {
	case map[string]any:
		for _, key := range []string{"command", "args"} {
			var words []string
			list, _ := x[key].([]any)
			for _, w := range list {
				words = append(words, fmt.Sprint(w))
			}
			if len(words) > 0 && words[0] == "weft" {
				words = words[1:]
			}
			if len(words) > 0 {
				out = append(out, words)
			}
		}
		for _, y := range x {
			out = append(out, commands(y)...)
		}
	case []any:
		for _, y := range x {
			out = append(out, commands(y)...)
		}
	}
	return out
}

// TestPrologDrains: a node with a fault takes no job; one without, or without an agent, does.
func TestPrologDrains(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	for state, want := range map[string]int{`{"states":[{"check":"port","state":"good"}]}`: 0,
		`{"states":[{"check":"port","subject":"mlx5_0","state":"bad"}]}`: 1, "": 0} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if state == "" {
				http.Error(w, "gone", http.StatusServiceUnavailable)
				return
			}
			fmt.Fprint(w, state)
		}))
		cmd := bounded.Command(t, "sh", "../../deploy/slurm/prolog.sh")
		cmd.Env = append(os.Environ(), "WEFT_AGENT="+s.URL)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want || want == 1 && !strings.Contains(string(out), "mlx5_0") {
			t.Errorf("%q: exit %d, want %d: %s", state, got, want, out)
		}
		s.Close()
	}
}
