package cluster

import (
	"os"
	"strings"
	"testing"
)

// TestDocs parses every YAML block of the language's description.
func TestDocs(t *testing.T) {
	for file, least := range map[string]int{"../../docs/reference/cluster-file.md": 12, "../../docs/reference/network.md": 2} {
		checkBlocks(t, file, least)
	}
}

func checkBlocks(t *testing.T, file string, least int) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(data), "```yaml\n")
	if len(blocks) < least {
		t.Fatalf("%s has %d blocks", file, len(blocks)-1)
	}
	for i, b := range blocks[1:] {
		text, _, ok := strings.Cut(b, "```")
		if !ok {
			t.Fatalf("block %d does not end", i)
		}
		if _, err := Parse(file, []byte(text), nil); err != nil {
			t.Errorf("block %d:\n%s\n%v", i, text, err)
		}
	}
}
