package check

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/model/cluster"
)

func plan(t testing.TB) *network.Plan {
	t.Helper()
	c, err := cluster.Parse("c.yaml", []byte("name: c\nhosts: {\"n[0-3]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe}\n"),
		nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("c.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSilenceIsUnknown: what was not read is never taken for right.
func TestSilenceIsUnknown(t *testing.T) {
	p := plan(t)
	found := Compare(p, Readings{})
	if len(found) != len(p.Hosts)+len(p.Switches) {
		t.Errorf("%d findings for %d devices", len(found), len(p.Hosts)+len(p.Switches))
	}
	for _, f := range found {
		if f.State != Unknown {
			t.Errorf("%s", f)
		}
	}
	found = Compare(p, Readings{"n0": {"ip-addr.json": []byte("not JSON"), "ip-rule.json": []byte("[]")}, "stranger": {}})
	text := ""
	for _, f := range found {
		text += f.String() + "\n"
	}
	for _, want := range []string{"stranger device: extra", "n0 ip-addr.json: unknown", "n0 lldp.json: unknown", "n0 rule 1010: missing"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func FuzzReadings(f *testing.F) {
	f.Add("ip-addr.json",
		[]byte(`[{"ifname":"nic0","flags":["UP","LOWER_UP"],"mtu":9000,"addr_info":[{"family":"inet","local":"10.160.0.1","prefixlen":31}]}]`))
	f.Add("ip-rule.json", []byte(`[{"priority":1010,"src":"10.160.0.1","dst":"10.160.0.0","dstlen":16,"table":"101"}]`))
	f.Add("ip-route.json",
		[]byte(`[{"dst":"default","gateway":"10.0.0.1","dev":"front0","table":254,"flags":[],"nexthops":[{"dev":"a","flags":["dead"]}]}]`))
	f.Add("lldp.json",
		[]byte(`{"lldp":[{"interface":[{"name":"swp1","chassis":[{"name":[{"value":"n0.c.local"}]}],"port":[{"id":[{"type":"ifname","value":"nic0"}]}]}]}]}`))
	f.Add("sysctl.txt", []byte("/proc/sys/net/ipv4/ip_forward:1\nnet.ipv4.conf.all.rp_filter = 2\n"))
	f.Add("bgp.json", []byte(`{"ipv4Unicast":{"as":4200010000,"peers":{"swp3s0":{"state":"Established","remoteAs":4200000001}}}}`))
	f.Add("bfd.json", []byte(`[{"interface":"swp3s0","status":"up"}]`))
	f.Add("rib.json", []byte(`{"10.255.0.2/32":[{"selected":true,"nexthops":[{"active":true,"fib":true}]}]}`))
	p := plan(f)
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		d := &device{}
		_ = d.parse(name, data)
		Compare(p, Readings{"n0": {name: data}, "leaf0": {name: data}})
	})
}
