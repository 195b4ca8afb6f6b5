package studio_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

const measuredPage = "../../../docs/reference/tables/studio.md"

// tables are the lines that the tests of 'make studio-show' log, as rows of a table.
var tables = []struct {
	title, text, head string
	line              *regexp.Regexp
}{
	{"Tasks", "A test does them as a person would, one after another on one page.",
		"task | clicks and fields | seconds", regexp.MustCompile(`task: (.+?) +(\d+) actions, ([\d.]+) s`)},
	{"Frames", "Time between frames at 1280 × 720, over 180 frames.", "what moves | p50 | p95 | over 20 ms",
		regexp.MustCompile(`frames: (.+?) +p50 ([\d.]+ ms), p95 ([\d.]+ ms), (\d+%) over 20 ms`)},
	{"Files", "Each is opened from disk without a network, and computes what it shows.", "file | MB | first picture, s | everything, s",
		regexp.MustCompile(`file: (\S+\.html) +([\d.]+) MB, seen after ([\d.]+) s, all of it after ([\d.]+) s`)},
}

var memoryLine = regexp.MustCompile(`memory: a run followed for 3600 s more: ([\d.]+ MB), then ([\d.]+ MB); (\d+) elements, then (\d+)`)

// Writes the page of measurements from the log of the other tests, which WEFT_TEST_STUDIO_LOG names: 'make studio-show'.
func TestMeasuredInDocs(t *testing.T) {
	name := os.Getenv("WEFT_TEST_STUDIO_LOG")
	if name == "" {
		t.Skip("WEFT_TEST_STUDIO_LOG names no log")
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text := page(t, string(b))
	if err := os.WriteFile(measuredPage, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func page(t *testing.T, log string) string {
	t.Helper()
	browser, _ := bounded.Command(t, "chromium", "--version").Output()
	version, _, _ := strings.Cut(strings.TrimPrefix(string(browser), "Chromium "), ".")
	load := regexp.MustCompile(`load average ([\d.]+) before`).FindStringSubmatch(log)
	cores := regexp.MustCompile(`(\d+) processors`).FindStringSubmatch(log)
	if cores == nil || load == nil {
		t.Fatal("the log does not say how many processors there are, and how busy")
	}
	var out strings.Builder
	fmt.Fprintf(&out,
		"# Studio measured\n\nMade by:\n\n    make studio-show\n\n%s, Chromium %s without a GPU, %s processors, load average %s before frames were measured.\n[How to use it](../../how-to/studio.md), [gallery](gallery.md).\n",
		time.Now().Format(time.DateOnly), version, cores[1], load[1])
	for _, m := range tables {
		rows := m.line.FindAllStringSubmatch(log, -1)
		if len(rows) == 0 {
			t.Fatalf("the log has no line for %s", m.title)
		}
		fmt.Fprintf(&out, "\n## %s\n\n%s\n\n| %s |\n|%s\n", m.title, m.text, m.head, strings.Repeat("---|", 1+strings.Count(m.head, "|")))
		for _, r := range rows {
			fmt.Fprintf(&out, "| %s |\n", strings.Join(r[1:], " | "))
		}
	}
	m := memoryLine.FindStringSubmatch(log)
	if m == nil {
		t.Fatal("the log has no line for memory")
	}
	fmt.Fprintf(&out,
		"\n## Memory\n\nA page that follows a run held %s at first and %s an hour of the run later, with %s elements and then %s.\n",
		m[1], m[2], m[3], m[4])
	return out.String()
}
