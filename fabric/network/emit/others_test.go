package emit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// TestGraphvizUnderstandsPTM: the ends of every cable, as graphviz reads them, are those of the plan.
func TestGraphvizUnderstandsPTM(t *testing.T) {
	tool(t, "gvpr", "graphviz")
	p := ethernet(t, 8, "")
	dir := t.TempDir()
	files := PTM(p)
	write(t, files, dir)
	var got, want []string
	for line := range strings.Lines(command(t, nil, "gvpr", `E{print($.tail.name,":",$.tailport," ",$.head.name,":",$.headport)}`,
		filepath.Join(dir, files[0].Path))) {
		ends := strings.Fields(line)
		slices.Sort(ends)
		got = append(got, strings.Join(ends, " "))
	}
	for i := range p.Switches {
		s := &p.Switches[i]
		for j := range s.Ports {
			q := &s.Ports[j]
			ends := []string{s.Name + ":" + PortName(p, s, q.Number)}
			if far, port := p.Far(q); far != nil {
				ends = append(ends, far.Name+":"+PortName(p, far, port.Number))
			} else {
				h := &p.Hosts[q.Host]
				ends = append(ends, h.Name+":"+h.Interfaces[q.Iface].Name)
			}
			slices.Sort(ends)
			want = append(want, strings.Join(ends, " "))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("graphviz reads %d cables, the plan has %d:\n%v\n%v", len(got), len(want), got, want)
	}
}

// TestSystemdUnderstandsRoCE: systemd knows every key of the unit, and the shell every line of what it starts. Nobody here
// has the NICs that the lines are for.
func TestSystemdUnderstandsRoCE(t *testing.T) {
	tool(t, "systemd-analyze", "systemd")
	p := ethernet(t, 4, "")
	dir := t.TempDir()
	write(t, RoCE(p), dir)
	verify := func(path string) (said []string) {
		out, _ := bounded.Command(t, "systemd-analyze", "verify",
			path).CombinedOutput() // the exit code also says that the program is not installed
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "weft-roce") && !strings.Contains(line, "is not executable") {
				said = append(said, line)
			}
		}
		return said
	}
	unit := filepath.Join(dir, "hosts/n0/etc/systemd/system/weft-roce.service")
	if said := verify(unit); len(said) > 0 {
		t.Errorf("systemd says %q", said)
	}
	command(t, nil, "sed", "-i", "s/^Type=/Typ=/", unit)
	if said := verify(unit); len(said) != 1 || !strings.Contains(said[0], "Typ") {
		t.Errorf("a wrong key is not found: %q", said)
	}
	script := filepath.Join(dir, "hosts/n0/usr/local/sbin/weft-roce")
	if out := command(t, nil, "sh", "-n", script); out != "" {
		t.Error(out)
	}
	text := command(t, nil, "cat", script)
	r := &p.Intent.RoCE
	pfc := []string{"0", "0", "0", "0", "0", "0", "0", "0"}
	pfc[r.Priority] = "1"
	for _, x := range p.Hosts[0].Interfaces {
		if x.Rail < 0 {
			continue
		}
		for _, want := range []string{
			fmt.Sprintf("mlnx_qos -i %s --dscp2prio set,%d,%d\n", x.Name, r.DSCP, r.Priority),
			fmt.Sprintf("mlnx_qos -i %s --dscp2prio set,%d,%d\n", x.Name, r.CNPDSCP, r.CNPPriority),
			fmt.Sprintf("mlnx_qos -i %s --pfc %s --cable_len ", x.Name, strings.Join(pfc, ",")),
			fmt.Sprintf("echo %d > /sys/class/net/%s/ecn/roce_np/cnp_dscp\n", r.CNPDSCP, x.Name),
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q", x.Name, want)
			}
		}
	}
}

// TestNFTUnderstands loads a host's filters, twice, into a namespace and compares what the kernel has then.
func TestNFTUnderstands(t *testing.T) {
	tool(t, "nft", "nftables")
	tool(t, "unshare", "util-linux")
	if os.Geteuid() != 0 {
		t.Skip("filters are loaded as root")
	}
	p := ethernet(t, 4, "")
	dir := t.TempDir()
	write(t, NFT(p), dir)
	file := filepath.Join(dir, "hosts/n1/etc/nftables.d/60-weft.nft")
	out, err := bounded.Command(t, "unshare", "-n", "sh", "-ec", `nft -f "$0"; nft -f "$0"; nft -j list ruleset`, file).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not permitted") || strings.Contains(string(out), "not supported") {
			t.Skipf("no filters here: %s", out)
		}
		t.Fatalf("%v %s", err, out)
	}
	var top struct {
		Nftables []struct {
			Chain *struct{ Name, Hook, Policy string }
			Rule  *struct {
				Chain string
				Expr  []struct {
					Match *struct {
						Op          string
						Left, Right any
					}
				}
			}
		}
	}
	if err := json.Unmarshal(out, &top); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	got := map[string]bool{}
	hooks := map[string]string{}
	for _, x := range top.Nftables {
		if x.Chain != nil {
			hooks[x.Chain.Name] = x.Chain.Hook + " " + x.Chain.Policy
		}
		if x.Rule == nil {
			continue
		}
		line := x.Rule.Chain
		for _, e := range x.Rule.Expr {
			if e.Match != nil {
				line += fmt.Sprint(" ", e.Match.Left, e.Match.Op, e.Match.Right)
			}
		}
		got[line] = true
	}
	if hooks["arrive"] != "input accept" || hooks["leave"] != "output accept" || hooks["pass"] != "forward accept" {
		t.Errorf("chains %v", hooks)
	}
	rails, stor := "nic0 nic1 nic2 nic3 nic4 nic5 nic6 nic7", "stor0 stor1"
	for _, want := range []string{
		"arrive map[meta:map[key:iifname]]==map[set:[" + rails +
			"]] map[payload:map[field:saddr protocol:ip]]!=map[prefix:map[addr:10.160.0.0 len:16]]",
		"leave map[meta:map[key:oifname]]==map[set:[" + rails +
			"]] map[payload:map[field:daddr protocol:ip]]!=map[prefix:map[addr:10.160.0.0 len:16]]",
		"arrive map[meta:map[key:iifname]]==map[set:[" + stor +
			"]] map[payload:map[field:saddr protocol:ip]]!=map[prefix:map[addr:10.1.0.0 len:16]]",
		"pass map[meta:map[key:iifname]]==map[set:[" + rails + " " + stor + "]]",
		"pass map[meta:map[key:oifname]]==map[set:[" + rails + " " + stor + "]]",
	} {
		if !got[want] {
			t.Errorf("the kernel does not have %s; it has %v", want, got)
		}
	}
	if len(got) != 8 {
		t.Errorf("%d rules, want 8: %v", len(got), got)
	}
}
