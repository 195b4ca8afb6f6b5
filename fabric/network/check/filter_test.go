package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

// TestFilters: the kernel's own list of the emitted filters has no finding; a rule that is gone and one that dropped a
// packet, sent for real, have one each.
func TestFilters(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		t.Skipf("nft needs root: %v", err)
	}
	data, err := os.ReadFile("../../../examples/storage.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Parse("storage.yaml", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("storage.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "n0.nft")
	for _, f := range emit.NFT(p) {
		if strings.HasPrefix(f.Path, "hosts/n0/") {
			if err := os.WriteFile(file, f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	listed := func(then string) []Finding {
		t.Helper()
		script := "set -e; ip link add nic0 type veth peer name other; ip addr add 10.160.0.1/31 dev nic0; ip link set nic0 up; ip link set other up; ip route add default dev nic0; nft -f " +
			file + "; " + then + "; nft list table inet weft_networks"
		out, err := bounded.Command(t, "unshare", "--net", "bash", "-c", script).CombinedOutput()
		if err != nil {
			if strings.Contains(string(out), "not permitted") || strings.Contains(string(out), "not supported") {
				t.Skipf("%v: %s", err, out)
			}
			t.Fatalf("%v: %s", err, out)
		}
		var found []Finding
		for _, f := range Compare(p, Readings{"n0": {filterFile: out}}) {
			if f.Kind == Filter {
				found = append(found, f)
			}
		}
		return found
	}
	if found := listed("true"); len(found) > 0 {
		t.Errorf("untouched: %v", found)
	}
	if found := listed("nft flush chain inet weft_networks leave"); len(found) != 1 ||
		!strings.Contains(found[0].Want, "speaks to itself alone") {
		t.Errorf("without a chain: %v", found)
	}
	if found := listed("(echo x >/dev/udp/10.9.9.9/9) 2>/dev/null || true"); len(found) != 1 || found[0].Got != "1 packets" ||
		!strings.Contains(found[0].What, "backend speaks to itself alone") {
		t.Errorf("with a packet to elsewhere: %v", found)
	}
}
