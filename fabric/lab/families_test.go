//go:build linux

package lab

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/check"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

const smallHost = `kinds:
  small:
    devices:
      cpu0: {kind: cpu}
      gpu[0-1]: {kind: gpu, model: H100-SXM, parent: cpu0, link: pcie5}
      nic[0-1]: {kind: nic, model: ConnectX-7-Ethernet, parent: cpu0, link: pcie5}
`

// TestFamiliesComeUp: a lab of every family of fabric comes up, and an untouched one has no finding: also where rails
// share no switch, and where switches have more cables than shortest paths.
func TestFamiliesComeUp(t *testing.T) {
	if testing.Short() {
		t.Skip("brings routers up")
	}
	for k, x := range bounded.First(2, [][2]string{
		{"rail-only",
			`hosts: {"n[0-3]": small}` +
				"\nfabric: {family: rail, rail-only: true, pod: 2, leaf: {switch: SN5600-400, down: 2, up: 2, link: 400gbe}, spine: {switch: SN5600-400, count: 2}, link: 400gbe}\n"},
		{"ring", `hosts: {"n[0-3]": small}` + "\nfabric: {family: torus, switch: SN5600-400, dims: [4], ports: 2, link: 400gbe}\n"},
		{"one leaf per rail", `hosts: {"n[0-1]": small}` +
			"\nfabric: {family: rail, rail-only: true, tiers: 1, switch: SN5600-400, link: 400gbe}\n"},
		{"dragonfly",
			`hosts: {"n[0-5]": small}` +
				"\nfabric: {family: dragonfly, switch: SN5600-400, routers: 2, ports: 2, global: 1, groups: 3, link: 400gbe}\n"},
		{"fat-tree",
			`hosts: {"n[0-3]": small}` +
				"\nfabric: {family: fat-tree, pod: 2, leaf: {switch: SN5600-400, down: 4, up: 2, link: 400gbe}, spine: {switch: SN5600-400, count: 2}, link: 400gbe}\n"},
	}...) {
		t.Run(x[0], func(t *testing.T) {
			c, err := cluster.Parse("f.yaml", []byte("name: f\n"+smallHost+x[1]), nil)
			if err != nil {
				t.Fatal(err)
			}
			p, err := network.Make("f.yaml", c, nil)
			if err != nil {
				t.Fatal(err)
			}
			spec, err := NewSpec(p, fmt.Sprintf("family-%d-%d", k, os.Getpid()), Options{Routing: "frr", Setup: "networkd"})
			if err != nil {
				t.Fatal(err)
			}
			i := bring(t, spec)
			if err := until(60*time.Second, i.whole); err != nil { // drills wait for it
				t.Error(err)
			}
			settled(t, i, p, 60*time.Second, func(found []check.Finding) error { // without lldpd
				return nothing(slices.DeleteFunc(found, func(f check.Finding) bool { return strings.Contains(f.String(), "lldp.json") }))
			})
			if err := Down(spec.Name); err != nil {
				t.Fatal(err)
			}
		})
	}
}
