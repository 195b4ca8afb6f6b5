package emit

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

// TestProvisioning: every file that a booting switch is sent to is one that is emitted for it, scripts are the shell's, and each
// switch that streams is a target at its management address.
func TestProvisioning(t *testing.T) {
	data, err := os.ReadFile("../../../examples/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Parse("lab.yaml", append(data, "network: {render: {leaf: sonic, spine: nvue}}\n"...), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := makePlan(t, "lab.yaml", c)
	files, err := Make(p, []string{"sonic", "nvue", "gnmi", "ztp", "dhcp"})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range files {
		all[f.Path] = string(f.Data)
	}
	var steps struct {
		ZTP map[string]struct {
			Plugin struct{ URL string }
			URL    struct {
				Source      struct{ Prefix, Identifier, Suffix string }
				Destination string
			} `json:"dynamic-url"`
		}
	}
	if err := json.Unmarshal([]byte(all["ztp/sonic.json"]), &steps); err != nil {
		t.Fatal(err)
	}
	const base = "https://ztp.cluster.local/"
	config := steps.ZTP["02-configdb-json"].URL
	if config.Source.Identifier != "hostname" || all[strings.TrimPrefix(config.Source.Prefix, base)+"leaf0"+config.Source.Suffix] == "" ||
		all[strings.TrimPrefix(steps.ZTP["01-routing"].Plugin.URL, base)] == "" {
		t.Errorf("%+v", steps)
	}
	for _, name := range []string{"ztp/sonic-routing", "ztp/cumulus"} {
		cmd := bounded.Command(t, "sh", "-n")
		cmd.Stdin = strings.NewReader(all[name])
		if out, err := cmd.CombinedOutput(); err != nil || all[name] == "" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	for _, want := range []string{"67,https://ztp.cluster.local/ztp/sonic.json", "239,https://ztp.cluster.local/ztp/cumulus"} {
		if !strings.Contains(all["dhcp/dnsmasq.conf"], want) {
			t.Errorf("DHCP does not say %s:\n%s", want, all["dhcp/dnsmasq.conf"])
		}
	}
	var collector struct {
		Targets map[string]struct {
			Address       string
			Subscriptions []string
		}
		Subscriptions map[string]struct{ Paths []string }
	}
	if err := yaml.Unmarshal([]byte(all["monitoring/gnmic.yaml"]), &collector); err != nil {
		t.Fatal(err)
	}
	for i := range p.Switches {
		s := &p.Switches[i]
		x := collector.Targets[s.Name]
		if !strings.HasPrefix(x.Address, s.Mgmt.Addr().String()+":") || len(x.Subscriptions) == 0 {
			t.Errorf("%s: %+v", s.Name, x)
		}
		for _, name := range x.Subscriptions {
			if len(collector.Subscriptions[name].Paths) == 0 {
				t.Errorf("%s subscribes to %s, which has no paths", s.Name, name)
			}
		}
	}
}
