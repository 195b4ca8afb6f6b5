package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/model/cluster"
)

func sonicPlan(t *testing.T) *network.Plan {
	t.Helper()
	return planOf(t,
		"name: c\nhosts: {\"n[0-3]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe}\nnetwork: {render: {leaf: sonic, spine: sonic}}\n")
}

func planOf(t *testing.T, text string) *network.Plan {
	t.Helper()
	c, err := cluster.Parse("c.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("c.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// of are the findings that are not about what was left out.
func of(found []Finding, device string) (out []Finding) {
	for _, f := range found {
		if f.Device == device && f.State != Unknown {
			out = append(out, f)
		}
	}
	return out
}

// TestDatabaseOfSONiC: a row of config_db that is missing, changed or added is told; the emitted one is as planned.
func TestDatabaseOfSONiC(t *testing.T) {
	p := sonicPlan(t)
	files, err := emit.Make(p, []string{"sonic"})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name  string
		spoil func(db map[string]map[string]map[string]any)
		state State
		part  string
	}{
		{"nothing", func(map[string]map[string]map[string]any) {}, "", ""},
		{"MTU", func(db map[string]map[string]map[string]any) { db["PORT"]["Ethernet0"]["mtu"] = "9100" }, Differ, "PORT Ethernet0 mtu"},
		{"no watchdog", func(db map[string]map[string]map[string]any) { delete(db["PFC_WD"], "Ethernet0") }, Missing, "PFC_WD Ethernet0"},
		{"static route", func(db map[string]map[string]map[string]any) {
			db["STATIC_ROUTE"] = map[string]map[string]any{"default|10.9.0.0/16": {"nexthop": "10.0.0.1"}}
		}, Extra, "STATIC_ROUTE default|10.9.0.0/16"},
	} {
		for _, f := range files {
			if f.Path != "switches/leaf0/etc/sonic/config_db.json" {
				continue
			}
			var db map[string]map[string]map[string]any
			if err := json.Unmarshal(f.Data, &db); err != nil {
				t.Fatal(err)
			}
			x.spoil(db)
			data, err := json.Marshal(db)
			if err != nil {
				t.Fatal(err)
			}
			found := of(Compare(p, Readings{"leaf0": {"config_db.json": data}}), "leaf0")
			if x.part == "" && len(found) == 0 || len(found) == 1 && found[0].State == x.state && found[0].Part == x.part {
				continue
			}
			t.Errorf("%s: %v", x.name, found)
		}
	}
}

// TestFilesOfServices: files of Slurm and OpenSM are compared by what they say, and a file that nobody reads is not checked.
func TestFilesOfServices(t *testing.T) {
	p := sonicPlan(t)
	ib := planOf(t,
		"name: c\nhosts: {\"n[0-3]\": hgx-h100}\nfabric: {family: rail, switch: QM9700}\nnetwork: {partitions: {red: {pkey: 0x10, hosts: \"n[0-1]\"}}}\n")
	for _, x := range []struct {
		p                   *network.Plan
		service, file, hold string
		another, wrong      [2]string // in the form of another tool; another meaning
	}{
		{p, "slurm", "topology.conf", "n[0-3]", [2]string{"n[0-3]", "n0,n1,n[2-3]"}, [2]string{"n[0-3]", "n[0-2]"}},
		{ib, "opensm", "partitions.conf", "red=0x0010", [2]string{"ipoib, mtu=5", "ipoib,  mtu=5"}, [2]string{"red=0x0010", "red=0x0011"}},
		{ib, "opensm", "opensm.conf", "routing_engine", [2]string{"routing_engine", "# by hand\nrouting_engine"},
			[2]string{"routing_engine", "#routing_engine"}},
	} {
		files, err := emit.Make(x.p, []string{x.service})
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, f := range files {
			if strings.HasSuffix(f.Path, "/"+x.file) {
				text = string(f.Data)
			}
		}
		if !strings.Contains(text, x.hold) {
			t.Fatalf("no %s in %s:\n%s", x.hold, x.file, text)
		}
		for _, y := range []struct {
			name, text string
			want       State
		}{
			{"as it is", text, ""},
			{"another form", "# by hand\n" + strings.ReplaceAll(text, x.another[0], x.another[1]), ""},
			{"another meaning", strings.ReplaceAll(text, x.wrong[0], x.wrong[1]), Differ},
		} {
			found := of(Compare(x.p, Readings{x.service: {x.file: []byte(y.text)}}), x.service)
			if y.want == "" && len(found) == 0 || len(found) == 1 && found[0].State == y.want {
				continue
			}
			t.Errorf("%s, %s: %v", x.file, y.name, found)
		}
	}
	// topology.yaml says the same in another language.
	for text, want := range map[string]int{
		"- topology: main\n  cluster_default: true\n  tree:\n    switches:\n      - switch: leaf0\n        nodes: n0,n[1-3]\n      - switch: spine0\n        children: leaf0\n": 0,
		"- topology: main\n  cluster_default: true\n  tree:\n    switches:\n      - switch: leaf0\n        nodes: n[0-2]\n      - switch: spine0\n        children: leaf0\n":    1,
	} {
		if found := of(Compare(p, Readings{"slurm": {"topology.yaml": []byte(text)}}), "slurm"); len(found) != want {
			t.Errorf("%s: %v", text, found)
		}
	}
	if found := Compare(p, Readings{"slurm": {"topology.yaml": []byte("- topology: main\n  treee: {}\n")}}); !slices.ContainsFunc(found,
		func(f Finding) bool { return f.Part == "topology.yaml" && f.State == Unknown }) {
		t.Errorf("a topology.yaml that nobody can read: %v", found)
	}
	unread := 0
	for _, f := range Compare(p, Readings{"slurm": {"burst_buffer.conf": []byte("x")}, "n0": {"mystery.txt": []byte("x")}}) {
		if f.State == Unknown && strings.HasPrefix(f.What, "not checked") && (f.Part == "burst_buffer.conf" || f.Part == "mystery.txt") {
			unread++
		}
	}
	if unread != 2 {
		t.Errorf("%d of 2 files that nobody reads are told as not checked", unread)
	}
}

// TestLLDPForms: both forms of lldpcli are read, and two neighbours on one port are both seen.
func TestLLDPForms(t *testing.T) {
	one := `{"lldp": {"interface": {"swp1": {"chassis": {"spine0": {"id": {"type": "mac", "value": "02:00:00:00:00:01"}}}, "port": {"id": {"type": "ifname", "value": "swp2"}}}}}}`
	many := `{"lldp": {"interface": [{"swp1": {"chassis": {"spine0.dc": {"id": {"type": "mac", "value": "02:00:00:00:00:01"}}}, "port": {"id": {"type": "ifname", "value": "swp2"}}}}, {"swp1": {"chassis": {"other": {"id": {"type": "mac", "value": "02:00:00:00:00:02"}}}, "port": {"id": {"type": "ifname", "value": "e1"}}}}]}}`
	zero := `{"lldp": [{"interface": [{"name": "swp1", "chassis": [{"id": [{"type": "mac", "value": "02:00:00:00:00:01"}], "name": [{"value": "spine0"}]}], "port": [{"id": [{"type": "ifname", "value": "swp2"}]}]}]}]}`
	for text, want := range map[string]string{one: "[{spine0 swp2}]", many: "[{spine0 swp2} {other e1}]", zero: "[{spine0 swp2}]"} {
		var d device
		if err := d.parseLLDP([]byte(text)); err != nil || fmt.Sprint(d.lldp["swp1"]) != want {
			t.Errorf("%s: %v %v, want %s", text, d.lldp, err, want)
		}
	}
	c := &comparer{said: map[string]*device{"leaf0": {lldp: map[string][]neighbour{"swp1": {{"other", "e1"}, {"spine0", "swp2"}}}}},
		p: sonicPlan(t)}
	var chosen neighbour
	c.crowd("leaf0", "swp1", neighbour{"spine0", "swp2"}, func(n neighbour) { chosen = n })
	if len(c.found) != 1 || c.found[0].State != Extra || c.found[0].Got != "other:e1" || chosen.device != "spine0" {
		t.Errorf("%v, %v", c.found, chosen)
	}
}

// TestLateCommandsAreNotChecked: a command that ran into its limit is told as not checked, by its name.
func TestLateCommandsAreNotChecked(t *testing.T) {
	r := Split([]byte("\n==weft== bgp.json\n\n==weft== 124\n\n==weft== ip-addr.json\n[]\n==weft== 0\n"))
	late := 0
	for _, f := range Compare(sonicPlan(t), Readings{"leaf0": r}) {
		if f.Part == "bgp.json" && f.State == Unknown && strings.Contains(f.What, "no answer within 10s") {
			late++
		}
	}
	if late != 1 {
		t.Errorf("%d findings of bgp.json; readings %v", late, r)
	}
}

// TestForwardingOffIsOneFinding: FRR shows the kernel's switched off forwarding in its configuration; that is the kernel setting's
// finding, and FRR's own where the setting was not read.
func TestForwardingOffIsOneFinding(t *testing.T) {
	p := planOf(t, "name: c\nhosts: {\"n[0-3]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe}\n"+
		"network: {render: {leaf: frr, spine: frr}}\n")
	files, err := emit.Make(p, []string{"frr"})
	if err != nil {
		t.Fatal(err)
	}
	conf := "frr version 8.4.4\nno ip forwarding\n"
	for _, f := range files {
		if f.Path == "switches/leaf0/etc/frr/frr.conf" {
			conf += string(f.Data)
		}
	}
	sysctl := "/proc/sys/net/ipv4/ip_forward:0\n/proc/sys/net/ipv4/fib_multipath_hash_policy:1\n" +
		"/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown:1\n"
	for _, c := range []struct {
		read Readings
		part string
	}{
		{Readings{"leaf0": {"running.txt": []byte(conf), "sysctl.txt": []byte(sysctl)}}, "net.ipv4.ip_forward"},
		{Readings{"leaf0": {"running.txt": []byte(conf)}}, "running configuration"},
	} {
		if found := of(Compare(p, c.read), "leaf0"); len(found) != 1 || found[0].Part != c.part {
			t.Errorf("want one finding of %s: %v", c.part, found)
		}
	}
}
