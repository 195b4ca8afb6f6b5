package prove_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/fabric/network/prove"
)

// TestOldFilesAreRefuted: networks as weft once wrote them, each file of which its own consumer accepts, do not hold as a whole.
func TestOldFilesAreRefuted(t *testing.T) {
	data, err := os.ReadFile("../../../examples/storage.yaml")
	if err != nil {
		t.Fatal(err)
	}
	render := func(leaf, spine, more string) map[string]string {
		p := planOf(t, "storage.yaml", fmt.Sprintf("%snetwork: {render: {leaf: %s, spine: %s}%s}\n", data, leaf, spine, more))
		names := []string{"cables", "netplan", leaf}
		if spine != leaf {
			names = append(names, spine)
		}
		list, err := emit.Make(p, names)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, f := range list {
			out[f.Path] = string(f.Data)
		}
		return out
	}
	edit := func(files map[string]string, path, old, new string) {
		for name := range files {
			if strings.HasSuffix(name, path) {
				files[name] = regexp.MustCompile(old).ReplaceAllString(files[name], new)
			}
		}
	}
	for _, x := range []struct {
		name, property, why string
		files               func() map[string]string
	}{
		// Access ports of a VLAN below routed uplinks: no tunnel joins the bridges of two leaves.
		{"storage VLANs that end at their leaves", "hosts reach one another", "10.1.1.", func() map[string]string {
			files := render("frr", "frr", ", storage: {bond: lacp}")
			edit(files, "weft-bridges", `(?m)^.*\bvx\d+\b.*\n`, "")
			edit(files, "frr.conf", `(?m)^ address-family l2vpn evpn\n(?:  .*\n)* exit-address-family\n`, "")
			return files
		}},
		{"a bond over two leaves that are not one switch", "bridges and VRFs are joined", "is in no Ethernet segment", func() map[string]string {
			files := render("frr", "frr", ", storage: {bond: lacp}")
			edit(files, "frr.conf", `(?m)^ evpn mh es-.*\n`, "")
			return files
		}},
		{"both dialects on every switch", "files are modelled", "which has files of two dialects", func() map[string]string {
			files := render("frr", "frr", "")
			maps.Copy(files, render("sonic", "sonic", ""))
			maps.Copy(files, render("sonic", "frr", ""))
			return files
		}},
		{"a static route that takes a host's packets", "files are modelled", "ip route 10.160.0.8/31", func() map[string]string {
			files := render("frr", "frr", "")
			edit(files, "compute-leaf0/etc/frr/frr.conf", `(?m)^router bgp`, "ip route 10.160.0.8/31 blackhole\nrouter bgp")
			return files
		}},
		{"FRR switches without MTUs", "full packets pass", "carries 1500 bytes, as Linux does where no file sets an MTU",
			func() map[string]string {
				files := render("frr", "frr", "")
				edit(files, "60-weft-mtu.rules", `(?s).*`, "")
				return files
			}},
	} {
		r := load(t, x.files()).Prove(stored, prove.Options{})
		v := r.Verdict(x.property)
		if v.Holds || !strings.Contains(fmt.Sprint(v.Counter), x.why) {
			t.Errorf("%s: %+v\n%q", x.name, v, broken(r))
		}
	}
}
