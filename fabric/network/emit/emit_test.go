package emit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/cluster"
)

// ethernet is a small RoCE cluster with an inventory; extra lies behind it.
func ethernet(t testing.TB, hosts int, extra string) *network.Plan {
	t.Helper()
	var inventory strings.Builder
	inventory.WriteString("host,part,mac\n")
	n := 0
	for h := range hosts {
		for _, part := range []string{"svc0", "nic0", "nic1", "nic2", "nic3", "nic4", "nic5", "nic6", "nic7", "stor0", "stor1", "bmc"} {
			n++
			fmt.Fprintf(&inventory, "n%d,%s,02:00:00:00:%02x:%02x\n", h, part, n>>8, n&255)
		}
	}
	text := fmt.Sprintf("name: roce\nhosts: {\"n[0-%d]\": {kind: dgx-h100, rack: 4}}\nfabric: {family: rail, switch: SN5600, link: 400gbe, pod: 4}\ninventory: macs.csv\n%s",
		hosts-1, extra)
	c, err := cluster.Parse("roce.yaml", []byte(text), func(string) ([]byte, error) { return []byte(inventory.String()), nil })
	if err != nil {
		t.Fatal(err)
	}
	return makePlan(t, "roce.yaml", c)
}

func makePlan(t testing.TB, file string, c *cluster.Cluster) *network.Plan {
	t.Helper()
	p, err := network.Make(file, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// example is the plan of an example file.
func example(t testing.TB, name string) *network.Plan {
	t.Helper()
	file := filepath.Join("..", "..", "..", "examples", name+".yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Parse(file, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	return makePlan(t, file, c)
}

// write puts files below a folder.
func write(t testing.TB, files []File, dir string) {
	t.Helper()
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, os.FileMode(f.Mode)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryDialectOfEveryExample: all files are written, twice alike, none empty,
// each with its origin where its form has comments.
func TestEveryDialectOfEveryExample(t *testing.T) {
	for _, name := range []string{"rail-1k", "superpod-h100", "hpn", "two-fabrics", "nvl72", "storage"} {
		p := example(t, name)
		for _, d := range Dialects() {
			a, b := d.Emit(p), d.Emit(p)
			if len(a) != len(b) {
				t.Errorf("%s %s: %d files, then %d", name, d.Name, len(a), len(b))
				continue
			}
			for i := range a {
				if a[i].Path != b[i].Path || !bytes.Equal(a[i].Data, b[i].Data) {
					t.Errorf("%s %s: %s differs the second time", name, d.Name, a[i].Path)
				}
				if len(a[i].Data) == 0 {
					t.Errorf("%s %s: %s is empty", name, d.Name, a[i].Path)
				}
				switch filepath.Ext(a[i].Path) {
				case ".json", ".csv":
				default:
					if !bytes.Contains(a[i].Data[:min(len(a[i].Data), 1<<16)], []byte("Change the cluster file")) {
						t.Errorf("%s %s: %s does not say what it was made from", name, d.Name, a[i].Path)
					}
				}
			}
		}
		if _, err := Make(p, Wanted(p)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Make(example(t, "rail-1k"), []string{"junos"}); err == nil || !strings.Contains(err.Error(), "known: cables") {
		t.Errorf("an unknown dialect: %v", err)
	}
	if dir := os.Getenv("WEFT_EMIT_TO"); dir != "" { // to look at
		for _, d := range Dialects() {
			write(t, d.Emit(ethernet(t, 8, "")), dir)
		}
		write(t, OpenSM(example(t, "two-fabrics")), dir)
	}
}

// TestCablesAreOnce: every port of every cable is in the plan once.
func TestCablesAreOnce(t *testing.T) {
	for _, name := range []string{"rail-1k", "hpn", "two-fabrics", "nvl72", "dragonfly", "torus", "storage"} {
		p := example(t, name)
		rows := bytes.Split(bytes.TrimSpace(Cables(p)[0].Data), []byte("\n"))[1:]
		links := 0
		for i := range p.Graph.Links {
			if l := &p.Graph.Links[i]; p.Graph.Classes[l.Class].Kind.Network() {
				links++
			}
		}
		if len(rows) != links {
			t.Errorf("%s: %d cables for %d links", name, len(rows), links)
		}
		seen := map[string]bool{}
		for _, r := range rows {
			f := strings.Split(string(r), ",")
			for _, end := range []string{f[1] + ":" + f[2], f[4] + ":" + f[5]} {
				if seen[end] {
					t.Errorf("%s: %s has two cables", name, end)
				}
				seen[end] = true
			}
		}
	}
}

// infiniband is a small cluster with two tenants.
func infiniband(t testing.TB) *network.Plan {
	t.Helper()
	c, err := cluster.Parse("ib.yaml", []byte(`name: ib
hosts: {"n[0-7]": dgx-a100}
fabric: {family: rail, switch: QM8790, pod: 4, nics: "nic[0-1]"}
network:
  partitions:
    a: {pkey: 0x10, hosts: "n[0-1]"}
    b: {pkey: 0x11, hosts: "n[2-3]", limited: n3}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	return makePlan(t, "ib.yaml", c)
}
