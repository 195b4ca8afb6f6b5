package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Namespaces of a bench that was killed are found, and no others.
func TestOrphans(t *testing.T) {
	dir := t.TempDir()
	const gone = 1 << 30 // no process has such a number
	want := []string{fmt.Sprintf("weft%df", gone), fmt.Sprintf("weft%dh0", gone)}
	for _, name := range append(want, fmt.Sprintf("weft%dh0", os.Getpid()), "weft1f", "weftlab", "h0", fmt.Sprintf("weft%dhost", gone)) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := orphans(dir); !slices.Equal(got, want) {
		t.Errorf("orphans %q, want %q", got, want)
	}
	if got := orphans(filepath.Join(dir, "nowhere")); got != nil {
		t.Errorf("orphans %q in a folder that is not there", got)
	}
}
