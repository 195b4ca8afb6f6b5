package simulation

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var (
	update = flag.Bool("update", false, "rewrite docs/reference/tables/membership.md")
	only   = flag.String("only", "",
		"with -update: the worlds of 10,000 hosts to run again, by a part of their names; the others keep their rows")
)

const pageFile = "../../../../docs/reference/tables/membership.md"

// The page says what the machines do. Rows of 10,000 hosts take half a minute
// each and are only made with -update.
func TestPage(t *testing.T) {
	old, err := os.ReadFile(pageFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	var rows []string
	for _, c := range Cases() {
		if c.Settings.Ranks >= 10_000 && !(*update && strings.Contains(c.Name, *only)) {
			for _, l := range strings.SplitAfter(string(old), "\n") {
				if strings.HasPrefix(l, "| "+c.Name+" |") {
					rows = append(rows, l)
				}
			}
			continue
		}
		row, err := Row(c)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	page := Page(rows)
	if *update {
		if err := os.WriteFile(pageFile, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if page != string(old) {
		t.Errorf("docs/reference/tables/membership.md is not what the machines do; go test ./run/internal/member/simulation -run Page -update rewrites it, read the difference. Now:\n%s",
			page)
	}
}
