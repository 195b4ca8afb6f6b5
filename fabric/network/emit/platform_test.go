package emit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestPlatformsOfSONiC: each split of a port has its hwsku, names, aliases and lanes, as port_config.ini of the SKU has them;
// lossless ports have buffers and a cable length with a row in the SKU's table; other switches are refused.
func TestPlatformsOfSONiC(t *testing.T) {
	for _, x := range []struct {
		fabric, sku, platform string
		port, lanes, alias    string
	}{
		{"switch: SN5600, link: 400gbe", "Mellanox-SN5600-O128", "x86_64-nvidia_sn5600-r0", "Ethernet4", "4,5,6,7", "etp1b"},
		{"switch: SN5600, link: 200gbe", "Mellanox-SN5600-V256", "x86_64-nvidia_sn5600-r0", "Ethernet2", "2,3", "etp1b"},
		{"switch: TH5, link: 400gbe", "Arista-7060X6-64PE-O128", "x86_64-arista_7060x6_64pe", "Ethernet8", "1,2,3,4", "Ethernet2/1"},
	} {
		p := planOf(t,
			fmt.Sprintf("name: c\nhosts: {\"n[0-7]\": hgx-h100}\nfabric: {family: rail, %s}\nnetwork: {render: {leaf: sonic, spine: sonic}}\n",
				x.fabric))
		files, err := Make(p, []string{"sonic"})
		if err != nil {
			t.Errorf("%s: %v", x.fabric, err)
			continue
		}
		var db map[string]map[string]map[string]any
		for _, f := range files {
			if f.Path == "switches/leaf0/etc/sonic/config_db.json" {
				if err := json.Unmarshal(f.Data, &db); err != nil {
					t.Fatal(err)
				}
			}
		}
		meta, port := db["DEVICE_METADATA"]["localhost"], db["PORT"][x.port]
		if meta["hwsku"] != x.sku || meta["platform"] != x.platform || port["lanes"] != x.lanes || port["alias"] != x.alias {
			t.Errorf("%s: %v %v, %s %v", x.fabric, meta["hwsku"], meta["platform"], x.port, port)
		}
		for name, length := range db["CABLE_LENGTH"]["AZURE"] {
			if !strings.Contains(" 5m 40m 150m 300m ", fmt.Sprintf(" %v ", length)) {
				t.Errorf("%s: %s has a cable of %v, for which there is no row", x.fabric, name, length)
			}
		}
		if nvidia := strings.HasPrefix(x.sku, "Mellanox"); nvidia &&
			(db["BUFFER_PG"][x.port+"|3"]["profile"] != "NULL" || db["BUFFER_POOL"]["ingress_lossless_pool"] == nil ||
				meta["buffer_model"] != "dynamic") {
			t.Errorf("%s: %s has no lossless buffers: %v", x.fabric, x.port, db["BUFFER_PG"])
		}
	}
	p := planOf(t,
		"name: c\nhosts: {\"n[0-7]\": hgx-h100}\nfabric: {family: rail, switch: TH4, link: 400gbe}\nnetwork: {render: {leaf: sonic, spine: sonic}}\n")
	if _, err := Make(p, Wanted(p)); err == nil || !strings.Contains(err.Error(), "SONiC's platform is not known") {
		t.Errorf("an unknown platform: %v", err)
	}
}

// TestLanesOfArista: the order of lanes is that of Arista-7060X6-64PE-O128S2's port_config.ini: every cage once.
func TestLanesOfArista(t *testing.T) {
	seen := map[int]bool{}
	for cage, want := range map[int]int{1: 17, 2: 1, 3: 9, 4: 25, 5: 57, 6: 41, 7: 33, 8: 49, 32: 241, 33: 273, 34: 257, 36: 281, 37: 313,
		64: 497} {
		if got := 1 + 8*arista(cage); got != want {
			t.Errorf("cage %d begins at lane %d, want %d", cage, got, want)
		}
	}
	for cage := 1; cage <= 64; cage++ {
		seen[arista(cage)] = true
	}
	if len(seen) != 64 {
		t.Errorf("%d of 64 blocks of lanes are used", len(seen))
	}
}
