package emit

import (
	"bytes"
	"encoding/csv"
	"strings"
	"testing"
)

const tiers = "name: c\nhosts: {\"n[0-3]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe}\nnetwork: {render: {leaf: %LEAF%, spine: %SPINE%}}\n"

// marker is the file that tells a switch's dialect.
var marker = map[string]string{"etc/frr/frr.conf": "frr", "etc/sonic/config_db.json": "sonic", "etc/nvue.d/startup.yaml": "nvue"}

// TestEachTierHasItsDialect: render gives leaves one dialect and spines another, every switch
// exactly one, and everyone who names a port uses the name that its switch has for it.
func TestEachTierHasItsDialect(t *testing.T) {
	for _, want := range [][2]string{{"sonic", "frr"}, {"frr", "sonic"}, {"nvue", "nvue"}, {"frr", "nvue"}} {
		text := strings.NewReplacer("%LEAF%", want[0], "%SPINE%", want[1]).Replace(tiers)
		p := planOf(t, text)
		files, err := Make(p, Wanted(p))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		port := map[string]string{}
		var cables []byte
		for _, f := range files {
			part := strings.SplitN(f.Path, "/", 3)
			if d := marker[part[len(part)-1]]; d != "" && part[0] == "switches" {
				got[part[1]] = append(got[part[1]], d)
				port[part[1]] = string(f.Data)
			}
			if f.Path == "cables/cables.csv" {
				cables = f.Data
			}
		}
		for _, s := range p.Switches {
			tier := 0
			if s.Tier > 1 {
				tier = 1
			}
			if len(got[s.Name]) != 1 || got[s.Name][0] != want[tier] {
				t.Errorf("render %v: %s of tier %d has %v", want, s.Name, s.Tier, got[s.Name])
			}
		}
		rows, err := csv.NewReader(bytes.NewReader(cables)).ReadAll()
		if err != nil || len(rows) < 2 {
			t.Fatal(err)
		}
		for _, r := range rows[1:] { // from_device, from_port, ..., to_device, to_port
			for _, end := range [][2]string{{r[1], r[2]}, {r[4], r[5]}} {
				if conf := port[end[0]]; conf != "" && !strings.Contains(conf, end[1]) {
					t.Errorf("render %v: cables.csv has %s:%s, which its file does not", want, end[0], end[1])
				}
			}
		}
	}
	text := strings.NewReplacer("%LEAF%", "frr", "%SPINE%", "frr").Replace(tiers)
	if _, err := Make(planOf(t, text), []string{"frr", "sonic"}); err == nil || !strings.Contains(err.Error(), "no tier has sonic") {
		t.Errorf("two dialects for one switch: %v", err)
	}
}

// TestFRRSwitchesHaveTheirMTU: FRR has no command for MTUs, so its switches get them from udev, every port.
func TestFRRSwitchesHaveTheirMTU(t *testing.T) {
	text := strings.NewReplacer("%LEAF%", "frr", "%SPINE%", "frr").Replace(tiers)
	p := planOf(t, text)
	rules := map[string]string{}
	for _, f := range FRR(p) {
		if strings.HasSuffix(f.Path, ".rules") {
			rules[strings.Split(f.Path, "/")[1]] = string(f.Data)
		}
	}
	for i := range p.Switches {
		s := &p.Switches[i]
		for _, q := range s.Ports {
			if want := `KERNEL=="` + PortName(p, s, q.Number) + `", ATTR{mtu}="9216"`; !strings.Contains(rules[s.Name], want) {
				t.Fatalf("%s has no rule with %s:\n%s", s.Name, want, rules[s.Name])
			}
		}
	}
}
