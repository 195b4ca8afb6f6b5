package emit

import (
	"encoding/json"
	"fmt"

	"github.com/weft-fabric/weft/fabric/network"
)

// GNMI writes what a collector (gnmic) subscribes to on switches that stream their state: counters of the ports in use,
// pauses and drops of the lossless priority among them, and which ports are up.
func GNMI(p *network.Plan) []File {
	sonic, nvue := switchesIn(p, "sonic"), switchesIn(p, "nvue")
	if len(sonic)+len(nvue) == 0 {
		return nil
	}
	var t text
	t.head(p, "#")
	t.line("# For gnmic. User, password and certificates come from the collector's environment (GNMIC_USERNAME, GNMIC_PASSWORD, GNMIC_TLS_CA).")
	t.line("encoding: json_ietf\ntargets:")
	target := func(s *network.Switch, port int, subscriptions string) {
		t.line("  %s:\n    address: %s:%d\n    tags: {cluster: %q, tier: \"%d\"}\n    subscriptions: [%s]",
			s.Name, s.Mgmt.Addr(), port, p.Name, s.Tier, subscriptions)
	}
	for _, s := range sonic {
		target(s, 8080, "ports, sonic-counters")
	}
	for _, s := range nvue {
		target(s, 9339, "ports")
	}
	t.line("subscriptions:\n  ports:\n    mode: stream\n    stream-mode: sample\n    sample-interval: 10s\n    paths:")
	for _, path := range []string{"state/oper-status", "state/counters", "ethernet/state/port-speed"} {
		t.line("      - /interfaces/interface[name=*]/%s", path)
	}
	if len(sonic) > 0 {
		t.line("  sonic-counters:\n    target: COUNTERS_DB\n    mode: stream\n    stream-mode: sample\n    sample-interval: 10s\n    paths:\n      - COUNTERS/Ethernet*\n      - COUNTERS/Ethernet*/Queues")
		if p.Intent.RoCE.Mode == "lossless" {
			t.line("      - COUNTERS/Ethernet*/Pfcwd")
			for _, way := range []string{"RX", "TX"} {
				t.line("      - COUNTERS/Ethernet*/SAI_PORT_STAT_PFC_%d_%s_PKTS", p.Intent.RoCE.Priority, way)
			}
		}
	}
	return []File{t.file("monitoring/gnmic.yaml", 0o644)}
}

// ZTP writes what a switch that boots without a configuration asks for: SONiC a list of steps (DHCP option 67 names it), Cumulus
// Linux a script (option 239). Both fetch the emitted files by the host name that DHCP gives the switch. Files with a
// password go over TLS only.
func ZTP(p *network.Plan) []File {
	base := "https://ztp." + p.Intent.Domain + "/"
	var out []File
	if len(switchesIn(p, "sonic")) > 0 {
		fetch := func(file string) map[string]any {
			return map[string]any{"source": map[string]any{"prefix": base + "switches/", "identifier": "hostname", "suffix": "/" + file}}
		}
		config := fetch("etc/sonic/config_db.json")
		config["destination"] = "/etc/sonic/config_db.json"
		steps := map[string]any{"ztp": map[string]any{
			"01-routing":       map[string]any{"plugin": map[string]any{"url": base + "ztp/sonic-routing"}},
			"02-configdb-json": map[string]any{"dynamic-url": config, "clear-config": "true", "save-config": "true"},
		}}
		data, err := json.MarshalIndent(steps, "", "  ")
		if err == nil { // maps of strings always marshal
			out = append(out, File{"ztp/sonic.json", 0o644, append(data, '\n')})
		}
		var t text
		t.line("#!/bin/sh")
		t.head(p, "#")
		t.line("set -e\nmkdir -p /etc/sonic/frr\numask 027\ncurl -fsS -o /etc/sonic/frr/frr.conf '%sswitches/'\"$(hostname)\"/etc/sonic/frr/frr.conf",
			base)
		out = append(out, t.file("ztp/sonic-routing", 0o755))
	}
	if len(switchesIn(p, "nvue")) > 0 {
		var t text
		t.line("#!/bin/bash\n# CUMULUS-AUTOPROVISIONING")
		t.head(p, "#")
		t.line("set -e\ncurl -fsS -o /etc/nvue.d/startup.yaml '%sswitches/'\"$(hostname)\"/etc/nvue.d/startup.yaml\nnv config replace /etc/nvue.d/startup.yaml\nnv config apply -y\nexit 0",
			base)
		out = append(out, t.file("ztp/cumulus", 0o755))
	}
	return out
}

// ztpOptions tell switches that boot where their first file is, where DHCP serves their management network.
func ztpOptions(p *network.Plan) (lines []string) {
	base := "https://ztp." + p.Intent.Domain + "/ztp/"
	if len(switchesIn(p, "sonic")) > 0 {
		lines = append(lines, fmt.Sprintf("dhcp-option=tag:management,67,%ssonic.json", base))
	}
	if len(switchesIn(p, "nvue")) > 0 {
		lines = append(lines, fmt.Sprintf("dhcp-option=tag:management,239,%scumulus", base))
	}
	return lines
}
