package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/run/launch"
)

// The rails of each host are the back-end addresses of the network plan, in the order of the rails; other hosts and plans without
// addresses are wrong use.
func TestRailsOfTheClusterFile(t *testing.T) {
	f := railFlags{file: "../../examples/lab.yaml"}
	spec := launch.Spec{N: 4, Hosts: []string{"n0", "n5"}}
	if err := f.place(&cobra.Command{}, &spec); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, h := range spec.Hosts {
		env := spec.HostEnv[h]
		if len(env) != 1 || !strings.HasPrefix(env[0], "WEFT_INTERFACES=") {
			t.Fatalf("host %s has %q", h, env)
		}
		rails := strings.Split(strings.TrimPrefix(env[0], "WEFT_INTERFACES="), ",")
		if len(rails) != 2 || !strings.HasSuffix(rails[0], "/32") {
			t.Errorf("host %s has rails %q, want two addresses", h, rails)
		}
		seen = append(seen, rails...)
	}
	if slices.Sort(seen); len(slices.Compact(seen)) != 4 {
		t.Errorf("two hosts share addresses: %q", seen)
	}
	err := f.place(&cobra.Command{}, &launch.Spec{N: 1, Hosts: []string{"n9"}})
	if err == nil || !strings.Contains(err.Error(), "it has no host n9") {
		t.Errorf("a host that is not in the file: %v", err)
	}
	dir := t.TempDir()
	f.file = filepath.Join(dir, "none.yaml")
	if err := os.WriteFile(f.file, []byte("name: x\nhosts:\n  n0: dgx-h100\nbroken: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.place(&cobra.Command{}, &launch.Spec{N: 1, Hosts: []string{"n0"}}); err == nil {
		t.Error("a file that is wrong was accepted")
	}
}
