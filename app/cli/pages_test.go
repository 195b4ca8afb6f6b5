package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// shown is a command of a page that is followed by what it prints.
type shown struct {
	where string
	args  []string
	lines []string
}

// transcripts are the commands of a page that begin with "$ weft", each with the lines below it up to the end of its block.
func transcripts(t *testing.T, page string) (list []shown) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var now *shown
	fenced := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		own, indented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, "```"):
			fenced, now = !fenced, nil
		case fenced:
			own = line
		case !indented:
			now = nil
		}
		if command, ok := strings.CutPrefix(own, "$ "); ok {
			now = nil
			if all := calls(command); len(all) == 1 {
				list = append(list, shown{where: filepath.Base(page) + ": " + command, args: all[0]})
				now = &list[len(list)-1]
			}
		} else if now != nil && strings.TrimSpace(own) != "" {
			now.lines = append(now.lines, own)
		}
	}
	return list
}

// follows says whether the lines that a page shows stand in the output in this order. "..." stands for whatever a page leaves out,
// within a line and between lines, and blanks do not count.
func follows(lines []string, output string) (missing string) {
	rest := strings.Split(output, "\n")
	for _, line := range lines {
		parts := strings.Split(strings.Join(strings.Fields(line), " "), "...")
		for i, p := range parts {
			parts[i] = regexp.QuoteMeta(strings.TrimSpace(p))
		}
		form := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		at := 0
		for at < len(rest) && !form.MatchString(strings.Join(strings.Fields(rest[at]), " ")) {
			at++
		}
		if at == len(rest) {
			return line
		}
		if strings.TrimSpace(line) != "..." {
			rest = rest[at+1:]
		}
	}
	return ""
}

// What a page says that a command prints is what it prints. Commands that measure this machine, start ranks or need a lab print
// something else each time; other tests run those.
func TestPagesShowRealOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates and searches")
	}
	t.Chdir("../..") // pages name files of the checkout
	pages, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	varies := map[string]bool{"up": true, "bench": true, "lab": true, "xfer": true}
	ran := 0
	for _, page := range pages {
		if page == filepath.Join("docs", "reference", "commands.md") {
			continue
		}
		for _, s := range transcripts(t, page) {
			if varies[s.args[0]] || strings.Contains(s.where, "lab:") || len(s.lines) == 0 {
				continue
			}
			ran++
			var out, errs bytes.Buffer
			if code := Main(s.args, strings.NewReader(""), &out, &errs); code == 2 {
				t.Errorf("%s: %s", s.where, errs.String())
			} else if line := follows(s.lines, out.String()+errs.String()); line != "" {
				t.Errorf("%s\nthe page shows\n%s\nand the command prints\n%s", s.where, line, out.String())
			}
		}
	}
	if ran < 10 {
		t.Errorf("%d commands ran; where are the others?", ran)
	}
}

// A page that shows a figure, an order or a line that is not in the output is found out.
func TestTranscriptsAreCompared(t *testing.T) {
	output := "step   1.5 s, all of it\nmemory  3 GB\n\nfits\n"
	for _, c := range []struct{ shown, missing string }{
		{"step 1.5 s, ...\n...\nfits", ""},
		{"step 1.6 s, ...", "step 1.6 s, ..."},
		{"memory 3 GB\nstep 1.5 s, all of it", "step 1.5 s, all of it"},
		{"...\nmemory 3 GB and more", "memory 3 GB and more"},
	} {
		if got := follows(strings.Split(c.shown, "\n"), output); got != c.missing {
			t.Errorf("%q: missing %q, want %q", c.shown, got, c.missing)
		}
	}
}
