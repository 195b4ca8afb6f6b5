package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/model/topo/build"
)

// words splits a command line at blanks, as a shell does where nothing is expanded. ok is false where a quote is open.
func words(line string) (list []string, ok bool) {
	word, quote, begun := "", rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ' || r == '\t':
			if word != "" || begun {
				list = append(list, word)
			}
			word, begun = "", false
		default:
			word += string(r)
		}
	}
	if word != "" || begun {
		list = append(list, word)
	}
	return list, quote == 0
}

// calls are the commands of weft in a line of shell: behind pipes, variables and sudo; comments, explanations in a second column
// and redirections go.
func calls(line string) (list [][]string) {
	line = regexp.MustCompile(`\s+#\s.*|\s{2,}.*|\s*[^\x00-\x7f].*`).ReplaceAllString(line, "")
	for _, part := range regexp.MustCompile(`\s(?:\||&&|;)\s|; `).Split(line, -1) {
		args, ok := words(part)
		for ok && len(args) > 0 && (args[0] == "$" || args[0] == "sudo" || regexp.MustCompile(`^[A-Z_]+=`).MatchString(args[0])) {
			args = args[1:]
		}
		switch {
		case !ok || len(args) == 0:
			continue
		case args[0] == "weft" || args[0] == "./weft":
			args = args[1:]
		case len(args) > 2 && args[0] == "go" && args[1] == "run" && args[2] == ".":
			args = args[3:]
		default:
			continue
		}
		var own []string
		for i, a := range args {
			if a == "&" || strings.HasPrefix(a, ">") || strings.HasPrefix(a, "2>") || strings.HasPrefix(a, "<") {
				break
			}
			if i == len(args)-1 {
				a = strings.TrimSuffix(a, ";")
			}
			own = append(own, a)
		}
		list = append(list, own)
	}
	return list
}

// parses says what is wrong with a command line: an unknown verb, an unknown flag, one that would change nothing, a value that is none, a
// wrong number of arguments.
func parses(args []string) error {
	root := newRoot()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if cmd.DisableFlagParsing {
		return nil
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if help, _ := cmd.Flags().GetBool("help"); help {
		return nil
	}
	if !cmd.Runnable() {
		return fmt.Errorf("%s is not a command of its own", cmd.CommandPath())
	}
	for _, x := range ignoredFlags {
		if x.verb != strings.TrimPrefix(cmd.CommandPath(), "weft ") {
			continue
		}
		if err := x.check(cmd.Flags()); err != nil {
			return err
		}
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// ownClusters are clusters of whoever types a command, in pages and help texts.
var ownClusters = regexp.MustCompile(`^[A-Z]|^-$|^(my|my-cluster|other|cluster|fabric)\.(yaml|txt)$`)

// finds says what a command names that a checkout does not have: a cluster that is neither preset nor file, or an example.
func finds(args []string) error {
	for i, a := range args {
		name, is := strings.CutPrefix(a, "--cluster=")
		if a == "--cluster" && i+1 < len(args) {
			name, is = args[i+1], true
		}
		if is && !ownClusters.MatchString(name) {
			if err := inCheckout(name); err != nil {
				return err
			}
		} else if strings.HasPrefix(a, "examples/") && !strings.ContainsAny(a, "*[") {
			if _, err := os.Stat(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// inCheckout loads a cluster as a verb does in the root of a checkout, each once.
func inCheckout(name string) error {
	err, known := loaded[name]
	if !known {
		_, err = loadCluster(newRoot(), name, presetFlags{})
		loaded[name] = err
	}
	return err
}

var loaded = map[string]error{}

// A preset is found in a checkout too, where an example file of the same name may lie.
func TestPresetsAreFoundBesideExamples(t *testing.T) {
	t.Chdir("../..")
	for _, p := range build.Presets() {
		if _, err := loadPreset(newRoot(), p.Name, nil); err != nil {
			t.Errorf("preset %s: %v", p.Name, err)
		}
	}
	if _, err := loadPreset(newRoot(), "meta-24", nil); err == nil || !strings.Contains(err.Error(), "meta-24k") {
		t.Errorf("meta-24: %v, want the nearest name", err)
	}
}

// A file that is not there is answered with the one that may be meant.
func TestFilesAreSpelled(t *testing.T) {
	t.Chdir("../..")
	for name, want := range map[string]string{
		"examples/rail-1k.yml": "did you mean examples/rail-1k.yaml?",
		"exmples/rail-1k.yaml": "there is no folder exmples/",
		"go.mood":              "did you mean go.mod?",
		"zzzzzzzz.yaml":        `no file "zzzzzzzz.yaml"`,
	} {
		if _, err := loadPreset(newRoot(), name, nil); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// Every example in a help text is a command that weft takes.
func TestHelpExamplesParse(t *testing.T) {
	t.Chdir("../..")
	seen := 0
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			for _, args := range calls(strings.TrimSpace(line)) {
				seen++
				if err := errors.Join(parses(args), finds(args)); err != nil {
					t.Errorf("help of %s: weft %s: %v", c.CommandPath(), strings.Join(args, " "), err)
				}
			}
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(newRoot())
	if seen < 150 {
		t.Errorf("%d examples; where are the others?", seen)
	}
}

// Every command in a code block of the pages is one that weft takes. Lines with an ellipsis or with options in
// brackets are forms, and "weft 1" begins a program. The generated reference has its own tests.
func TestPagesShowCommandsThatParse(t *testing.T) {
	t.Chdir("../..")
	pages, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob("docs/reference/tables/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	pages = slices.DeleteFunc(pages, func(page string) bool { return page == filepath.Join("docs", "reference", "commands.md") })
	for _, page := range append(append(pages, tables...), "README.md", "README.zh-CN.md", "CONTRIBUTING.md", "ARCHITECTURE.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		fenced, joined, n := false, "", 0
		for line := range strings.Lines(string(text)) {
			n++
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
				continue
			}
			if !fenced && !strings.HasPrefix(line, "    ") {
				continue
			}
			if joined += strings.TrimSuffix(strings.TrimSpace(line), `\`); strings.HasSuffix(line, `\`) {
				joined += " "
				continue
			}
			whole := joined
			joined = ""
			if strings.Contains(whole, "...") || strings.Contains(whole, "…") || strings.Contains(whole, " [--") || whole == "weft 1" {
				continue
			}
			for _, args := range calls(whole) {
				seen++
				if err := errors.Join(parses(args), finds(args)); err != nil {
					t.Errorf("%s:%d: weft %s: %v", page, n, strings.Join(args, " "), err)
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d commands in the pages; where are the others?", seen)
	}
}

// Flags that take one of a few words offer them, and every choice is of a flag that is there.
func TestFlagsOfferTheirChoices(t *testing.T) {
	for line, want := range map[string]string{
		"sim collective --op":             "reduce-scatter",
		"sim collective --routing":        "ecmp",
		"sim serve llama3-8b --kv":        "fp8",
		"sim train --framework":           "fsdp",
		"bench --transport":               "mixed",
		"bench --datatype":                "bfloat16",
		"xfer bench --path":               "unix",
		"xfer bench --scheme":             "manytoone",
		"xfer explain --path":             "shm",
		"explain --cluster":               "superpod-h100",
		"watch --cluster":                 "rail",
		"algo synth --to":                 "nccl-tuner",
		"run --rdzv-backend":              "c10d",
		"kv serve --policy":               "lru",
		"plan llama3-8b --framework":      "deepspeed",
		"xfer serve --io":                 "ring",
		"up --serve --path":               "pull",
		"sim collective --as nccl --nvls": "off",
	} {
		var out, errs bytes.Buffer
		if code := Main(append(append([]string{"__complete"}, strings.Fields(line)...), ""), strings.NewReader(""), &out, &errs); code != 0 ||
			!strings.Contains("\n"+out.String(), "\n"+want) {
			t.Errorf("weft %s TAB offers %q, exit %d; want %s among it", line, out.String(), code, want)
		}
	}
	root := newRoot()
	for _, c := range choices() {
		if c.verb == "" {
			continue
		}
		cmd, _, err := root.Find(strings.Fields(c.verb))
		if err != nil || cmd.Flags().Lookup(c.flag) == nil {
			t.Errorf("weft %s has no flag --%s: %v", c.verb, c.flag, err)
		}
	}
}
