package cluster

import (
	"os"
	"strings"
	"testing"
)

// TestDocs parses every YAML block of the language's description.
func TestDocs(t *testing.T) {
	const file = "../../docs/reference/cluster-file.md"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(data), "```yaml\n")
	if len(blocks) < 12 {
		t.Fatalf("%d blocks", len(blocks))
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
