package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/app/cli"
	"github.com/weft-fabric/weft/internal/bounded"
)

// asWeft makes the binary of these tests weft itself.
const asWeft = "WEFT_TEST_AS_WEFT"

func TestMain(m *testing.M) {
	if os.Getenv(asWeft) != "" {
		os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// What the README says 'up' prints is of the form that it prints: every line begins
// with the words of a real one.
func TestReadmeShowsTheFormOfUp(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	first := func(text string) map[string]bool {
		words := map[string]bool{}
		for line := range strings.Lines(text) {
			line = regexp.MustCompile(`^ *[0-9.]+ s  `).ReplaceAllString(line, "")
			if f := strings.Fields(line); len(f) > 0 {
				words[f[0]] = true
			}
		}
		return words
	}
	var missing []string
	var out []byte
	for _, time := range []string{"6s", "20s"} { // on a busy machine six seconds may be too short for a line or two
		cmd := bounded.Command(t, os.Args[0], "up", "--model", "tiny", "--drill", "kill:1", "--for", time, "--ckpt-every", "5")
		cmd.Env = append(os.Environ(), asWeft+"=1")
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		real := first(string(out))
		missing = nil
		for word := range first(strings.SplitN(string(text), "```\n", 3)[1]) {
			if !real[word] {
				missing = append(missing, word)
			}
		}
		if len(missing) == 0 {
			return
		}
	}
	t.Errorf("the README shows lines that begin with %q, which the command did not print:\n%s", missing, out)
}

// What the README says the report prints is what it prints.
func TestReadmeShowsRealOutput(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(string(text), "```\n", 5)
	if len(parts) != 5 || !strings.Contains(parts[0], "go run . up") || !strings.Contains(parts[2], "go run . design examples/rail-1k.yaml") {
		t.Fatal("the README does not show the main commands and their output")
	}
	shown := strings.TrimSuffix(parts[3], "...\n")
	var out, errs bytes.Buffer
	if code := cli.Main([]string{"design", "examples/rail-1k.yaml"}, nil, &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	if !strings.HasPrefix(out.String(), shown) {
		t.Errorf("README shows\n%s\nbut the command prints\n%s", shown, out.String()[:min(len(shown), out.Len())])
	}
}

// Every command in the README's table runs in a fresh checkout. Those that run until they are told to end are left out;
// other tests start them.
func TestReadmeCommandsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("starts ranks and transfers")
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("\\| `go run \\. ([^`]+)` \\|").FindAllStringSubmatch(string(text), -1)
	if len(shown) < 7 {
		t.Fatalf("the README's table shows %d commands", len(shown))
	}
	want := map[string]int{"doctor": 1} // it finds what is wrong in the logs
	for _, m := range shown {
		args := strings.Fields(m[1])
		if args[0] == "up" || args[0] == "watch" || args[0] == "studio" {
			continue
		}
		cmd := bounded.Within(t, 5*bounded.Limit, os.Args[0], args...) // it has what other tests leave of the processors
		cmd.Env = append(os.Environ(), asWeft+"=1")
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != want[args[0]] {
			t.Errorf("weft %s: exit code %d, %v\n%s", m[1], code, err, out)
		}
	}
}
