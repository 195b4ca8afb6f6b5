package draw

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestPictures writes every picture into the folder named by WEFT_DRAW, to be looked at.
func TestPictures(t *testing.T) {
	all := pictures(t)
	maps.Copy(all, presets(t))
	for name, g := range all {
		var out bytes.Buffer
		if err := Cluster(&out, g, Options{}); err != nil {
			t.Fatal(err)
		}
		if dir := os.Getenv("WEFT_DRAW"); dir != "" {
			if err := os.WriteFile(filepath.Join(dir, name+".svg"), out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
