package emit

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
)

// quotedNames are by network the names of a host's interfaces that have addresses, as filters write them.
func quotedNames(h *network.Host) map[network.Role][]string {
	names := map[network.Role][]string{}
	for j := range h.Interfaces {
		if x := &h.Interfaces[j]; x.Addr.IsValid() {
			names[x.Role] = append(names[x.Role], fmt.Sprintf("%q", x.Name))
		}
	}
	return names
}

// NFT writes filters of hosts that keep their networks apart, as weft net reach
// says it: rails hear the backend alone, storage its own network alone, the
// front end nobody with an address of the others, and a host passes nothing on
// between them. IPv6 and pods in namespaces of their own are left alone. Each rule counts what it drops.
func NFT(p *network.Plan) []File {
	var out []File
	for i := range p.Hosts {
		h := &p.Hosts[i]
		names := quotedNames(h)
		set := func(role network.Role) string { return "{ " + strings.Join(names[role], ", ") + " }" }
		var t text
		t.head(p, "#")
		t.line("# Include this from /etc/nftables.conf; loaded again, it takes the place of what it was.")
		t.line("table inet weft_networks\ndelete table inet weft_networks\ntable inet weft_networks {")
		var closed []string // networks behind which nobody else is
		var prefixes []netip.Prefix
		for _, role := range []network.Role{network.Backend, network.Storage} {
			if len(names[role]) > 0 {
				closed = append(closed, names[role]...)
				prefixes = append(prefixes, p.Net(role).Prefix)
			}
		}
		chain := func(name, hook string, lines func()) {
			t.line("\tchain %s {\n\t\ttype filter hook %s priority filter; policy accept;", name, hook)
			lines()
			t.line("\t}")
		}
		chain("arrive", "input", func() {
			for _, role := range []network.Role{network.Backend, network.Storage} {
				if len(names[role]) > 0 {
					t.line("\t\tiifname %s ip saddr != %s counter drop comment \"%s hears itself alone\"", set(role), p.Net(role).Prefix, role)
				}
			}
			for _, x := range prefixes {
				t.line("\t\tiifname %s ip saddr %s counter drop comment \"not from the front end\"", set(network.Frontend), x)
			}
		})
		chain("leave", "output", func() {
			for _, role := range []network.Role{network.Backend, network.Storage} {
				if len(names[role]) > 0 {
					t.line("\t\toifname %s ip daddr != %s counter drop comment \"%s speaks to itself alone\"", set(role), p.Net(role).Prefix, role)
				}
			}
		})
		if len(closed) > 0 {
			chain("pass", "forward", func() {
				all := "{ " + strings.Join(closed, ", ") + " }"
				t.line("\t\tiifname %s counter drop comment \"a host is no router\"\n\t\toifname %s counter drop comment \"a host is no router\"",
					all, all)
			})
		}
		t.line("}")
		out = append(out, t.file(hostPath(h, "etc/nftables.d/60-weft.nft"), 0o644))
	}
	return out
}
