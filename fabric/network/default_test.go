package network

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

// TestDefaultsCollideWithNobody: the default prefixes are apart from what software on hosts takes unless told
// otherwise, also where the backend has grown to its widest.
func TestDefaultsCollideWithNobody(t *testing.T) {
	others := map[string]string{"Calico": "192.168.0.0/16", "Flannel": "10.244.0.0/16", "kubeadm's services": "10.96.0.0/12",
		"Docker": "172.17.0.0/16", "libvirt": "192.168.122.0/24",
		"k3s' pods": "10.42.0.0/16", "k3s' services": "10.43.0.0/16", "OpenShift's pods": "10.128.0.0/14",
		"OpenShift's services": "172.30.0.0/16", "podman": "10.88.0.0/16", "minikube": "192.168.49.0/24", "LXD": "10.0.3.0/24"}
	in := cluster.DefaultNetwork()
	for name, text := range others {
		for _, p := range []netip.Prefix{in.Backend.Prefix, cluster.WidestBackend, in.Storage.Prefix, in.Management.Prefix, in.Loopbacks} {
			if p.Overlaps(netip.MustParsePrefix(text)) {
				t.Errorf("%s is also %s of %s", p, text, name)
			}
		}
	}
}

// TestDefaultBackendGrows: 16,384 hosts with eight rails are planned without a word about prefixes; small clusters
// keep the usual one, and a prefix that somebody chose does not grow.
func TestDefaultBackendGrows(t *testing.T) {
	for text, want := range map[string]string{
		"hosts: {\"n[0-7]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe}\n":                                                                    "10.160.0.0/16",
		"hosts: {\"n[0-4199]\": hgx-h100}\nfabric: {family: rail, tiers: 3, pod: 64, switch: SN5600, link: 400gbe}\n":                                              "10.160.0.0/15",
		"hosts: {\"n[0-16383]\": hgx-h100}\nfabric: {family: rail, tiers: 3, pod: 64, switch: SN5600, link: 400gbe}\n":                                             "10.160.0.0/14",
		"hosts: {\"n[0-4199]\": hgx-h100}\nfabric: {family: rail, tiers: 3, pod: 64, switch: SN5600, link: 400gbe}\nnetwork: {backend: {prefix: 10.160.0.0/16}}\n": "a /15 would do",
		"hosts: {\"n[0-4199]\": hgx-h100}\nfabric: {family: rail, tiers: 3, pod: 64, switch: SN5600, link: 400gbe}\nnetwork: {reserved: [10.161.0.0/16]}\n":        "a /15 would do",
	} {
		if strings.Contains(text, "16383") && !bounded.Long() {
			continue
		}
		c, err := cluster.Parse("c.yaml", []byte("name: c\n"+text), nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Make("c.yaml", c, nil)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %s", text, err, want)
			}
			continue
		}
		if p.Intent.Backend.Prefix.String() != want || p.Rails[7].Prefix != cut(p.Intent.Backend.Prefix, 7, 8) {
			t.Errorf("%q: %s with rail 7 at %s, want %s", text, p.Intent.Backend.Prefix, p.Rails[7].Prefix, want)
		}
		for i := range p.Hosts {
			for _, x := range p.Hosts[i].Interfaces {
				if x.Role == Backend && !p.Rails[x.Rail].Prefix.Contains(x.Addr.Addr()) {
					t.Fatalf("%s %s has %s, outside %s", p.Hosts[i].Name, x.Name, x.Addr, p.Rails[x.Rail].Prefix)
				}
			}
		}
	}
}

// TestLeavesInOneRack: whoever puts all leaves of a fabric into one rack hears of it.
func TestLeavesInOneRack(t *testing.T) {
	data, err := os.ReadFile("../../examples/hall.yaml")
	if err != nil {
		t.Fatal(err)
	}
	warned := func(text string) bool {
		c, err := cluster.Parse("hall.yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Make("hall.yaml", c, nil)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(strings.Join(p.Warnings, "\n"), "stand in rack")
	}
	if !warned(string(data)) {
		t.Error("hall.yaml has all its leaves in one rack, and nobody says so")
	}
	if warned(strings.Replace(string(data), `place: {"spine[0-3]": B06}`,
		`place: {"spine[0-3]": B06, "leaf[0-7]": A03, "leaf[8-15]": B03}`, 1)) {
		t.Error("leaves in two racks are told as in one")
	}
}
