package emit

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/manifest"
)

var wholeExamples = flag.Bool("emit.all", false, "ask consumers about every host and switch of the examples, not about one of each")

// TestExamplesAreUnderstood: five designs are emitted, and every consumer that runs here says of the files what the plan says: netplan of
// hosts, vtysh and bgpd of switches, the name server of all names, Kea and dnsmasq of leases; Kubernetes' files by the fields of their
// kinds. Slurm's controller, OpenSM and systemd-networkd are asked in tests of their own.
func TestExamplesAreUnderstood(t *testing.T) {
	for _, name := range []string{"rail-1k", "superpod-h100", "hpn", "two-fabrics", "nvl72", "storage"} {
		t.Run(name, func(t *testing.T) {
			p := example(t, name)
			dir := t.TempDir()
			files, err := Make(p, []string{"netplan", "frr", "dns", "dhcp", "kubernetes", "slurm", "nccl"})
			if err != nil {
				t.Fatal(err)
			}
			write(t, files, dir)
			some := func(n int) []int {
				if *wholeExamples {
					var all []int
					for i := range n {
						all = append(all, i)
					}
					return all
				}
				return []int{n - 1}
			}
			t.Run("netplan", func(t *testing.T) {
				tool(t, "netplan", "netplan.io")
				last := len(p.Hosts) - 1
				for _, i := range some(len(p.Hosts)) {
					understoodByNetplan(t, p, &p.Hosts[i], dir, i < last)
				}
			})
			t.Run("frr", func(t *testing.T) {
				tool(t, "vtysh", "frr")
				for _, i := range some(len(p.Switches)) {
					if s := &p.Switches[i]; !s.IB {
						file := filepath.Join(dir, "switches", s.Name, "etc/frr/frr.conf")
						if out := command(t, nil, "vtysh", "-C", "-f", file); strings.TrimSpace(out) != "" {
							t.Errorf("%s: vtysh says %s", s.Name, out)
						}
					}
				}
			})
			t.Run("dns", func(t *testing.T) {
				tool(t, "named-checkzone", "bind9-utils")
				zone := strings.Join(strings.Fields(command(t, nil, "named-checkzone", "-D", p.Intent.Domain,
					filepath.Join(dir, "dns", p.Intent.Domain+".zone"))), " ")
				for _, r := range records(p) {
					if !strings.Contains(zone, fmt.Sprintf("%s.%s. 3600 IN A %s", r.name, p.Intent.Domain, r.addr)) {
						t.Errorf("the zone has no %s %s", r.name, r.addr)
					}
				}
			})
			t.Run("kea", func(t *testing.T) {
				tool(t, "kea-dhcp4", "kea-dhcp4-server")
				if out := command(t, nil, "kea-dhcp4", "-t", filepath.Join(dir, "dhcp/kea-dhcp4.conf")); !strings.Contains(out,
					"added to configuration: "+p.Intent.Frontend.Prefix.String()) {
					t.Error(out)
				}
			})
			t.Run("kubernetes", func(t *testing.T) { understoodByKubernetes(t, p, dir) })
		})
	}
}

// generator is the program that netplan's command starts; it takes a tenth of the command's time.
const generator = "/usr/libexec/netplan/generate"

// understoodByNetplan asks netplan what it makes of a host's file. Of many hosts
// all but one are given to its generator where that runs alone.
func understoodByNetplan(t *testing.T, p *network.Plan, h *network.Host, dir string, many bool) {
	t.Helper()
	root := filepath.Join(dir, "hosts", h.Name)
	done := false
	if many {
		out, err := bounded.Command(t, generator, "--root-dir", root).CombinedOutput()
		done = err == nil && len(out) == 0
	}
	if !done {
		if out := command(t, nil, "netplan", "generate", "--root-dir", root); strings.TrimSpace(out) != "" {
			t.Errorf("%s: netplan says %s", h.Name, out)
		}
	}
	for i := range h.Interfaces {
		x := &h.Interfaces[i]
		data, err := os.ReadFile(filepath.Join(root, "run/systemd/network/10-netplan-"+x.Name+".network"))
		if err != nil {
			t.Fatal(err)
		}
		if x.Bond != "" {
			if got := sections(string(data)); !slices.ContainsFunc(got, func(s section) bool { return s.entries["Bond"] == x.Bond }) {
				t.Errorf("%s is in no bond: %s", x.Name, data)
			}
			continue
		}
		if got, want := networkd(string(data)).String(), wanted(p, x).String(); got != want {
			t.Errorf("%s %s: netplan understood\n%s\nthe plan says\n%s", h.Name, x.Name, got, want)
		}
	}
}

// understoodByKubernetes checks the manifests by their kinds' fields, and reads labels and addresses back.
func understoodByKubernetes(t *testing.T, p *network.Plan, dir string) {
	t.Helper()
	for _, name := range []string{"nodes", "kueue", "jobset", "rails", "device-plugin", "compute-domain"} {
		data, err := os.ReadFile(filepath.Join(dir, "kubernetes", name+".yaml"))
		if os.IsNotExist(err) && name != "nodes" && name != "kueue" && name != "jobset" {
			continue // InfiniBand, or no NVLink between hosts
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := manifest.Check(data)
		if err != nil || n == 0 {
			t.Errorf("%s.yaml: %d documents, %v", name, n, err)
		}
		if name == "nodes" && n != len(p.Hosts) {
			t.Errorf("%d nodes have labels, want %d", n, len(p.Hosts))
		}
		if name != "rails" {
			continue
		}
		at := map[string]string{} // host and prefix by rail, as the pools have them
		for _, doc := range strings.Split(string(data), "\n---\n") {
			var pool struct {
				Kind     string
				Metadata struct{ Name string }
				Spec     struct {
					Config            string
					StaticAllocations []struct {
						NodeName string `yaml:"nodeName"`
						Prefix   string
						Gateway  string
					} `yaml:"staticAllocations"`
				}
			}
			if err := yaml.Unmarshal([]byte(doc), &pool); err != nil {
				t.Fatal(err)
			}
			for _, a := range pool.Spec.StaticAllocations {
				at[pool.Metadata.Name+" "+a.NodeName] = a.Prefix + " " + a.Gateway
			}
			if pool.Spec.Config != "" && !json.Valid([]byte(pool.Spec.Config)) {
				t.Errorf("%s: %s is no JSON", pool.Metadata.Name, pool.Spec.Config)
			}
		}
		for i := range p.Hosts {
			for j := range p.Hosts[i].Interfaces {
				x := &p.Hosts[i].Interfaces[j]
				if x.Role != network.Backend || x.IB {
					continue
				}
				key := fmt.Sprintf("rail%d %s", x.Rail, strings.ToLower(p.Hosts[i].Name))
				if want := fmt.Sprintf("%s %s", x.Addr.Masked(), x.Gateway); at[key] != want {
					t.Errorf("%s: the pool has %q, the plan %q", key, at[key], want)
				}
			}
		}
	}
}
