package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/cli"
)

// What the README says the main command prints is what it prints.
func TestReadmeShowsRealOutput(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(string(text), "```\n", 3)
	if len(parts) != 3 || !strings.Contains(parts[0], "go run . design examples/rail-1k.yaml") {
		t.Fatal("the README does not show the main command and its output")
	}
	shown := strings.TrimSuffix(parts[1], "...\n")
	var out, errs bytes.Buffer
	if code := cli.Main([]string{"design", "examples/rail-1k.yaml"}, nil, &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	if !strings.HasPrefix(out.String(), shown) {
		t.Errorf("README shows\n%s\nbut the command prints\n%s", shown, out.String()[:min(len(shown), out.Len())])
	}
}
