package emit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

const bgpSecret = "s3cret-of-bgp"

// guarded is a small RoCE cluster whose BGP sessions have a password and TTL security.
func guarded(t *testing.T, render string) (*network.Plan, error) {
	t.Helper()
	text := "name: c\nhosts: {\"n[0-3]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe, pod: 2}\n" +
		"network: {routing: {ttl-security: true, password-file: bgp.secret}, render: {leaf: " + render + ", spine: " + render + "}}\n"
	c, err := cluster.Parse("c.yaml", []byte(text), func(string) ([]byte, error) { return []byte(bgpSecret + "\n"), nil })
	if err != nil {
		return nil, err
	}
	return network.Make("c.yaml", c, nil)
}

// TestSecretsAreHidden: the password of BGP sessions is in files that only their owner and group may read, and
// neither in the plan's texts nor in its lock. FRR takes what is written.
func TestSecretsAreHidden(t *testing.T) {
	for _, render := range []string{"frr", "sonic"} {
		p, err := guarded(t, render)
		if err != nil {
			t.Fatal(err)
		}
		files, err := Make(p, Wanted(p))
		if err != nil {
			t.Fatal(err)
		}
		holds := 0
		for _, f := range files {
			if strings.Contains(string(f.Data), bgpSecret) {
				if holds++; f.Mode&0o007 != 0 {
					t.Errorf("%s: everyone may read %s (%o)", render, f.Path, f.Mode)
				}
			}
		}
		if holds != len(p.Switches) {
			t.Errorf("%s: %d files hold the password of %d switches", render, holds, len(p.Switches))
		}
		asJSON, err := json.Marshal(p.Intent)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{fmt.Sprintf("%v %+v %#v", *p.Intent, p.Intent.Routing, p.Intent.Routing), string(asJSON), string(p.Lock()),
			p.Digest} {
			if strings.Contains(text, bgpSecret) {
				t.Errorf("%s: the password is in %.200s", render, text)
			}
		}
	}
	p, err := guarded(t, "frr")
	if err != nil {
		t.Fatal(err)
	}
	tool(t, "vtysh", "frr")
	dir := t.TempDir()
	write(t, FRR(p), dir)
	file := filepath.Join(dir, "switches", p.Switches[0].Name, "etc/frr/frr.conf")
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "ttl-security hops 1") {
		t.Errorf("%v %s", err, data)
	}
	if out, err := bounded.Command(t, "/usr/lib/frr/bgpd", "-C", "-f", file).CombinedOutput(); err != nil ||
		strings.Contains(string(out), "nknown") {
		t.Errorf("bgpd says %v %s", err, out)
	}
}

// TestSecretsAreRefused: dialects that do not write them, and files that hold none.
func TestSecretsAreRefused(t *testing.T) {
	if _, err := guarded(t, "nvue"); err == nil || !strings.Contains(err.Error(), "not for nvue") {
		t.Errorf("%v", err)
	}
	text := "name: c\nhosts: {n0: hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe}\nnetwork: {routing: {password-file: bgp.secret}}\n"
	for _, bad := range []string{"", "short", "with a space in it"} {
		_, err := cluster.Parse("c.yaml", []byte(text), func(string) ([]byte, error) { return []byte(bad), nil })
		if err == nil || !strings.Contains(err.Error(), "c.yaml:4: network.routing.password-file") || bad != "" &&
			strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
