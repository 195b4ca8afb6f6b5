package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/app/cli"
)

// command runs a command line in this process.
func command(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = cli.Main(args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// fields splits a command line at blanks outside single quotes.
func fields(line string) []string {
	var list []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			list = append(list, part)
		} else {
			list = append(list, strings.Fields(part)...)
		}
	}
	return list
}

// TestHelpExamplesWork runs every example that the help of topo and design shows,
// in a folder that holds the files they name.
func TestHelpExamplesWork(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.Symlink(examples, "examples"); err != nil {
		t.Fatal(err)
	}
	made := func(args ...string) string {
		code, out, errs := command("", args...)
		if code != 0 {
			t.Fatal(errs)
		}
		return out
	}
	piped := map[string]string{ // what other tools print
		"nvidia-smi topo -m": made("topo", "export", "dgx-1v", "--to", "nvidia-smi"),
		"ibnetdiscover":      made("topo", "export", "examples/fat-tree-2tier.yaml", "--to", "ibnetdiscover"),
	}
	if err := os.WriteFile("topology.conf", []byte("SwitchName=s0 Nodes=n[0-3]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	made("topo", "export", "dgx-a100", "--to", "nccl-xml", "-o", "topo.xml")
	other := filepath.Join(t.TempDir(), "other-host")
	if err := os.MkdirAll(filepath.Join(other, "sys/devices/system/node/node0"), 0o755); err != nil {
		t.Fatal(err)
	}
	verbs := [][]string{{"topo"}, {"design"}}
	for _, v := range []string{"build", "show", "import", "export", "paths", "rings", "discover"} {
		verbs = append(verbs, []string{"topo", v})
	}
	ran := 0
	for _, verb := range verbs {
		_, help, _ := command("", append(verb, "--help")...)
		_, shown, ok := strings.Cut(help, "Examples:\n")
		if !ok {
			continue
		}
		shown, _, _ = strings.Cut(shown, "\n\n")
		for line := range strings.SplitSeq(shown, "\n") {
			line = strings.ReplaceAll(strings.TrimSpace(line), "/mnt/other-host", other)
			stdin := ""
			if tool, rest, ok := strings.Cut(line, " | "); ok {
				if stdin, ok = piped[tool]; !ok {
					t.Errorf("%q: the test has no output of %q", line, tool)
				}
				line = rest
			}
			args, ok := strings.CutPrefix(line, "weft ")
			if !ok {
				t.Errorf("%q in the help of %v is no command of weft", line, verb)
				continue
			}
			ran++
			if code, out, errs := command(stdin, fields(args)...); code != 0 {
				t.Errorf("%s: exit %d: %s", line, code, errs)
			} else if out == "" && !strings.Contains(errs, "wrote ") {
				t.Errorf("%s: prints nothing", line)
			}
		}
	}
	if ran < 20 {
		t.Errorf("only %d examples were run", ran)
	}
}
