package prove_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network/prove"
)

// sonicFabric is one rail over some leaves of two hosts each and two spines, in SONiC.
func sonicFabric(leaves, up int) string {
	return fmt.Sprintf(`name: c
kinds: {one: {devices: {cpu0: {kind: cpu}, gpu0: {kind: gpu, model: H100-SXM, parent: cpu0, link: pcie5}, nic0: {kind: nic, model: ConnectX-7-Ethernet, parent: cpu0, link: pcie5}}}}
hosts: {"n[0-%d]": one}
fabric: {family: rail, pod: 2, leaf: {switch: SN5600-400, down: 2, up: %d}, spine: {switch: SN5600-400, count: 2}, link: 400gbe}
network: {render: {leaf: sonic, spine: sonic}}
`, 2*leaves-1, up)
}

// silence ends the sessions between a leaf and a spine, at the leaf's end.
func silence(files map[string]string, leaf, spine string) {
	path := "switches/" + leaf + "/etc/sonic/frr/frr.conf"
	port := ""
	var out []string
	for line := range strings.Lines(files[path]) {
		w := strings.Fields(line)
		if len(w) == 2 && w[0] == "interface" {
			port = w[1]
		}
		if len(w) == 2 && w[0] == "description" && strings.HasPrefix(w[1], spine+":") {
			out = append(out, "!"+port)
		}
		if len(w) > 2 && w[0] == "neighbor" && w[2] == "interface" && strings.Contains(strings.Join(out, " "), "!"+w[1]+" ") {
			continue
		}
		out = append(out, line)
	}
	var text strings.Builder
	for _, line := range out {
		if strings.HasPrefix(line, "!E") {
			continue
		}
		text.WriteString(line)
	}
	files[path] = text.String()
}

func put(t *testing.T, files map[string]string, path, old, new string) {
	t.Helper()
	if !strings.Contains(files[path], old) {
		t.Fatalf("%q is not in %s", old, path)
	}
	files[path] = strings.Replace(files[path], old, new, 1)
}

// TestBuffersThatWait: spines with numbers of their own, of which each misses another leaf, send packets down and up
// again. Over four leaves that makes a circle of buffers; over three it does not, and where the spines share
// a number it cannot be, since packets do not get there at all.
func TestBuffersThatWait(t *testing.T) {
	const circle, reach = "no buffers wait in a circle", "hosts reach one another"
	for _, x := range []struct {
		leaves         int
		apart, lossy   bool
		circle, arrive bool
	}{
		{4, true, false, true, true},
		{4, true, true, false, true},
		{3, true, false, false, true},
		{4, false, false, false, false},
	} {
		p := planOf(t, "c.yaml", sonicFabric(x.leaves, 2))
		files := texts(t, p, "roce")
		if r := load(t, files).Prove(areasOf(p), prove.Options{Failures: true}); r.Verdict(circle) == nil || !r.Verdict(circle).Holds ||
			r.Verdict(circle).Cases == 0 {
			t.Errorf("%d leaves, untouched: %+v", x.leaves, r.Verdict(circle))
		}
		silence(files, "leaf0", "spine0")
		silence(files, "leaf1", "spine1")
		if x.apart {
			put(t, files, "switches/spine1/etc/sonic/frr/frr.conf", "router bgp 42000", "router bgp 42009")
		}
		if x.lossy {
			for _, s := range []string{"spine0", "spine1"} {
				path := "switches/" + s + "/etc/sonic/config_db.json"
				files[path] = strings.ReplaceAll(files[path], `"pfc_enable": "3"`, `"pfc_enable": ""`)
			}
		}
		r := load(t, files).Prove(areasOf(p), prove.Options{})
		if v := r.Verdict(reach); v.Holds != x.arrive {
			t.Errorf("%+v: %v", x, v)
		}
		v := r.Verdict(circle)
		if got := v != nil && !v.Holds; got != x.circle {
			t.Errorf("%+v: %+v", x, v)
		}
		if x.circle && (len(v.Counter) == 0 || len(v.Counter[0].Path) != 5 || v.Counter[0].Path[0] != v.Counter[0].Path[4]) {
			t.Errorf("%+v: %v", x, v.Counter)
		}
	}
}

// TestBuffersThatWaitAfterAFailure: one session less does no harm as long as every cable is there; the circle comes
// with a failure, and the counterexample names it.
func TestBuffersThatWaitAfterAFailure(t *testing.T) {
	const circle = "no buffers wait in a circle"
	p := planOf(t, "c.yaml", sonicFabric(4, 2))
	files := texts(t, p)
	silence(files, "leaf0", "spine0")
	put(t, files, "switches/spine1/etc/sonic/frr/frr.conf", "router bgp 42000", "router bgp 42009")
	n := load(t, files)
	if v := n.Prove(areasOf(p), prove.Options{}).Verdict(circle); !v.Holds {
		t.Errorf("without failures: %+v", v)
	}
	v := n.Prove(areasOf(p), prove.Options{Failures: true}).Verdict(circle)
	if v.Holds || !strings.Contains(v.Counter[0].Failure, "leaf1:") || !strings.Contains(v.Counter[0].Failure, "spine1:") {
		t.Errorf("%+v", v)
	}
}

// TestLosslessAtBothEnds: a port that pauses other packets than its peer is named.
func TestLosslessAtBothEnds(t *testing.T) {
	const alike = "both ends of a cable are lossless alike"
	p := planOf(t, "c.yaml", sonicFabric(3, 2))
	for _, x := range []struct{ path, old, new, want string }{
		{"", "", "", ""},
		{"switches/leaf0/etc/sonic/config_db.json", `"pfc_enable": "3"`, `"pfc_enable": "4"`, "pauses nothing"},
		{"switches/leaf0/etc/sonic/config_db.json", `"26": "3"`, `"26": "0"`, "pauses nothing"},
		{"switches/spine0/etc/sonic/config_db.json", `"26": "3"`, `"24": "3"`, "DSCP 24 as priority 3"},
		{"hosts/n2/usr/local/sbin/weft-roce", "--pfc 0,0,0,1,0,0,0,0", "--pfc 0,0,0,0,1,0,0,0", "n2:nic0 pauses nothing"},
	} {
		files := texts(t, p, "roce")
		if x.path != "" {
			put(t, files, x.path, x.old, x.new)
		}
		v := load(t, files).Prove(areasOf(p), prove.Options{}).Verdict(alike)
		if v == nil || v.Holds != (x.want == "") || !strings.Contains(fmt.Sprint(v.Counter), x.want) {
			t.Errorf("%q: %+v, want %q", x.new, v, x.want)
		}
	}
}

// TestHashesThatRepeat: spines that spread flows by the leaves' hash leave paths unused; as emitted, in two tiers
// and in three, no path is.
func TestHashesThatRepeat(t *testing.T) {
	const used = "no path is left out by hashing"
	for name, text := range map[string]string{
		"two tiers":   sonicFabric(4, 4),
		"three tiers": "name: c\nhosts: {\"n[0-15]\": hgx-h100}\nfabric: {family: rail, tiers: 3, pod: 4, leaf: {switch: SN5600-400, down: 4, up: 4}, spine: {switch: SN5600-400, down: 8, up: 8}, core: {switch: SN5600-400, count: 4}, link: 400gbe}\nnetwork: {render: {leaf: sonic, spine: sonic}}\n",
	} {
		p := planOf(t, "c.yaml", text)
		files := texts(t, p)
		v := load(t, files).Prove(areasOf(p), prove.Options{}).Verdict(used)
		if v == nil || !v.Holds || v.Cases == 0 {
			t.Errorf("%s: %+v", name, v)
		}
		for path := range files {
			if strings.HasPrefix(path, "switches/spine") && strings.HasSuffix(path, "config_db.json") {
				put(t, files, path, `"type": "LeafRouter"`, `"type": "SpineRouter"`) // another seed, the same offset
			}
		}
		v = load(t, files).Prove(areasOf(p), prove.Options{}).Verdict(used)
		if v == nil || v.Holds || !strings.Contains(fmt.Sprint(v.Counter), "chose by the same hash") {
			t.Errorf("%s, one hash: %+v", name, v)
		}
	}
}
