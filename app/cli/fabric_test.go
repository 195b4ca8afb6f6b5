package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network/check"
	"github.com/weft-fabric/weft/internal/ibsim"
)

// wiring is a fabric of four hosts, two leaves and a spine; change alters a line of its cables.
func wiring(changes ...string) string {
	text := `name: ib
kinds:
  box:
    devices:
      cpu0: {kind: cpu}
      gpu0: {kind: gpu, model: A100-SXM-80GB, parent: cpu0, link: pcie4}
      nic[0-1]: {kind: nic, model: ConnectX-6, parent: cpu0, link: pcie4}
hosts: {"n[0-3]": box}
switches:
  "leaf[0-1]": QM8700
  spine0: QM8700
links:
`
	links := []string{}
	for h := range 4 {
		for r := range 2 {
			links = append(links, fmt.Sprintf("  - {from: n%d:nic%d, to: leaf%d:p%d, link: hdr}", h, r, r, h+1))
		}
	}
	for r := range 2 {
		for k := range 2 {
			links = append(links, fmt.Sprintf("  - {from: leaf%d:p%d, to: spine0:p%d, link: hdr}", r, 10+k, 1+2*r+k))
		}
	}
	text += strings.Join(links, "\n") + "\n"
	for i := 0; i+1 < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			panic(changes[i])
		}
		text = strings.ReplaceAll(text, changes[i], changes[i+1])
	}
	return text
}

// TestFabricDrift: cables of a simulated InfiniBand fabric against the plan, by ibnetdiscover and by iblinkinfo: nothing on the fabric as
// planned, and for every fault the one right finding.
func TestFabricDrift(t *testing.T) {
	dir := t.TempDir()
	plan := filepath.Join(dir, "plan.yaml")
	if err := os.WriteFile(plan, []byte(wiring()), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		changes []string
		kind    check.Kind
		state   check.State
		what    string // in the finding
	}{
		{"as planned", nil, "", "", ""},
		{"crossed", []string{"from: n0:nic0, to: leaf0:p1,", "from: n0:nic0, to: leaf0:X,", "from: n1:nic0, to: leaf0:p2,",
			"from: n1:nic0, to: leaf0:p1,", "leaf0:X", "leaf0:p2"}, check.Crossed, check.Differ, "swap the cables of leaf0 port 1 and leaf0 port 2"},
		{"missing", []string{"  - {from: leaf1:p11, to: spine0:p4, link: hdr}\n", ""}, check.Neighbour, check.Missing, "leaf1 port 11"},
		{"elsewhere", []string{"to: leaf1:p3,", "to: leaf1:p20,"}, check.Neighbour, check.Differ, "move the cable of n2 nic1 to leaf1 port 3"},
		{"degraded", []string{"to: spine0:p2, link: hdr", "to: spine0:p2, link: edr"}, check.Degraded, check.Differ, "leaf0 port 11"},
		{"extra", []string{"  - {from: leaf1:p10,", "  - {from: leaf0:p30, to: leaf1:p30, link: hdr}\n  - {from: leaf1:p10,"}, check.Neighbour,
			check.Extra, "port 30"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "actual.yaml")
			if err := os.WriteFile(file, []byte(wiring(c.changes...)), 0o644); err != nil {
				t.Fatal(err)
			}
			code, net, errs := command("", "topo", "export", file, "--to", "ibsim")
			if code != 0 {
				t.Fatal(errs)
			}
			s := ibsim.Start(t, []byte(net))
			for _, tool := range [][]string{{"ibnetdiscover"}, {"ibnetdiscover", "-p"}, {"iblinkinfo"}} {
				dump := filepath.Join(t.TempDir(), "dump.txt")
				if err := os.WriteFile(dump, s.Run(t, tool[0], tool[1:]...), 0o644); err != nil {
					t.Fatal(err)
				}
				for _, verb := range [][]string{{"net", "check", plan, "--fabric", dump, "--json"}, {"design", plan, "--actual", dump, "--json"}} {
					code, out, errs := command("", verb...)
					var found []check.Finding
					if err := json.Unmarshal([]byte(out), &found); err != nil {
						t.Fatalf("%v: %v\n%s%s", tool, err, out, errs)
					}
					text := ""
					for _, f := range found {
						text += fmt.Sprintf("%s %s, %s\n", f.Kind, f, f.Fix)
					}
					if c.kind == "" {
						if code != 0 || len(found) > 0 {
							t.Errorf("%v: exit %d, findings\n%s", tool, code, text)
						}
						continue
					}
					if code != 1 || len(found) != 1 || found[0].Kind != c.kind || found[0].State != c.state || !strings.Contains(text, c.what) {
						t.Errorf("%v %v: exit %d; want one finding, %s %s with %q, not\n%s",
							tool, slices.Compact(verb[:2]), code, c.kind, c.state, c.what, text)
					}
				}
			}
		})
	}
	dump := filepath.Join(dir, "nothing.txt")
	if err := os.WriteFile(dump, []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := command("", "net", "check", plan, "--fabric", dump); code != 2 || !strings.Contains(errs, "holds no cable") {
		t.Errorf("a file without cables: exit %d, %s", code, errs)
	}
}
