//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/model/cluster"
)

// birdFiles are the files of a lab's hosts and cables, and of its switches bird.conf and what the kernel has: addresses and hardware.
func birdFiles(t *testing.T, p *network.Plan, s *Spec) map[string][]byte {
	t.Helper()
	files := filesOf(t, p.Rendered("frr"))
	for path := range files {
		if strings.HasSuffix(path, "frr.conf") {
			delete(files, path)
		}
	}
	for k := range s.Nodes {
		n := &s.Nodes[k]
		if !n.Router {
			continue
		}
		for _, f := range n.Files {
			if f.Path == "etc/bird.conf" {
				files["switches/"+n.Name+"/etc/bird.conf"] = f.Data
			}
		}
		var b strings.Builder
		for _, port := range n.Uplink {
			fmt.Fprintf(&b, "auto %s\niface %s inet manual\n  hwaddress ether %s\n", port, port, mac(n.Name, port))
		}
		for _, line := range n.Script {
			w := strings.Fields(line) // addr add A dev D
			fmt.Fprintf(&b, "auto %s\niface %s inet static\n  address %s\n", w[4], w[4], w[2])
		}
		files["switches/"+n.Name+"/etc/network/interfaces"] = []byte(b.String())
	}
	return files
}

func birdLab(t *testing.T, text string) (*network.Plan, *Spec) {
	t.Helper()
	c, err := cluster.Parse("c.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("c.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSpec(p, fmt.Sprintf("bird-%d", os.Getpid()), Options{Routing: "bird", Setup: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	return p, s
}

func railsOf(p *network.Plan) (out []prove.Area) {
	for _, r := range p.Rails {
		out = append(out, prove.Area{Name: fmt.Sprint("rail ", r.Number), Group: "backend", Prefix: r.Prefix})
	}
	return out
}

func proofOf(t *testing.T, files map[string][]byte, areas []prove.Area) *prove.Report {
	t.Helper()
	n, err := prove.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return n.Prove(areas, prove.Options{Failures: true})
}

const birdFabric = "name: c\n" + smallHost + `hosts: {"n[0-3]": small}
fabric: {family: fat-tree, pod: 2, leaf: {switch: SN5600-400, down: 4, up: 2, link: 400gbe},
  spine: {switch: SN5600-400, count: 2}, link: 400gbe}
`

// TestBirdIsProvenAsFRR: the lab's bird.conf files are proven as the emitted frr.conf files are, case by case.
func TestBirdIsProvenAsFRR(t *testing.T) {
	for _, text := range []string{birdFabric,
		"name: c\nhosts: {\"n[0-15]\": hgx-h100}\nfabric: {family: rail, switch: SN5600-400, link: 400gbe}\n"} {
		p, s := birdLab(t, text)
		a, b := proofOf(t, filesOf(t, p.Rendered("frr")), railsOf(p)), proofOf(t, birdFiles(t, p, s), railsOf(p))
		for _, v := range a.Verdicts {
			w := b.Verdict(v.Property)
			if v.Property == "addresses and numbers are unique" || v.Property == "full packets pass" {
				continue
			}
			if w == nil || w.Cases != v.Cases || w.Broken != v.Broken {
				t.Errorf("%s: of frr.conf %d broken of %d, of bird.conf %+v", v.Property, v.Broken, v.Cases, w)
			}
		}
		if len(a.Verdicts) == 0 || !b.Holds() {
			t.Errorf("%d verdicts; %+v", len(a.Verdicts), b.Verdicts)
		}
	}
}

// birdMistake is planted in a bird.conf, and makes a property fail with a reason.
type birdMistake struct {
	name, node string
	old, new   string // regular expression and what replaces its first match
	property   string
	why        string
}

var birdMistakes = []birdMistake{
	{"wrong AS", "leaf0", `(neighbor \S+ as )\d+`, "${1}65099", "cables between switches carry BGP", "wants AS number 65099"},
	{"missing neighbour", "leaf0", `protocol bgp [^\n]*\n`, "", "cables between switches carry BGP", "leaf0 has no neighbor"},
	{"wrong address", "leaf0", `neighbor fe80::\S+%`, "neighbor fe80::1%", "cables between switches carry BGP", "wants fe80::1"},
	{"filter that drops all hosts", "spine0", `if net ~ \[[^\]]*\]`, "if net ~ [ 10.255.0.0/16+ ]",
		"all shortest paths are used", "uses 1 of 2"},
	{"no extended next hop", "spine0", `extended next hop on;`, "", "cables between switches carry BGP", "extended next hop"},
	{"one path", "leaf0", `merge paths on limit 64;`, "", "all shortest paths are used", "uses 1 of 2"},
	{"nothing to the kernel", "leaf0", `protocol kernel [^\n]*\n`, "", "files are modelled", "no route gets to the kernel"},
	{"a protocol that no one reads", "leaf0", `protocol direct`, "protocol ospf { ipv4 { export all; }; }\nprotocol direct",
		"files are modelled", "protocol ospf"},
	{"no own networks", "leaf0", `protocol direct [^\n]*\n`, "", "hosts reach one another", "no route"},
	{"import of nothing", "leaf1", `import all`, "import where net = 10.9.9.0/24", "hosts reach one another", "no route"},
	{"unknown filter", "leaf1", `import all`, "import where bgp_path.len < 3", "files are modelled", "bgp_path.len"},
}

// TestBirdMistakesAreFound: each mistake in a bird.conf is refuted by what it breaks.
func TestBirdMistakesAreFound(t *testing.T) {
	p, s := birdLab(t, birdFabric)
	for _, m := range birdMistakes {
		files := birdFiles(t, p, s)
		m.plant(t, files)
		v := proofOf(t, files, railsOf(p)).Verdict(m.property)
		if v == nil || v.Broken == 0 || !strings.Contains(fmt.Sprint(v.Counter), m.why) {
			t.Errorf("%s: %+v", m.name, v)
		}
	}
}

// plant puts a mistake into files, and gives the new bird.conf.
func (m *birdMistake) plant(t *testing.T, files map[string][]byte) string {
	t.Helper()
	path := "switches/" + m.node + "/etc/bird.conf"
	at := regexp.MustCompile(m.old).FindIndex(files[path])
	if at == nil {
		t.Fatalf("%s: no %s in %s", m.name, m.old, files[path])
	}
	found := files[path][at[0]:at[1]]
	text := string(files[path][:at[0]]) + regexp.MustCompile(m.old).ReplaceAllString(string(found), m.new) + string(files[path][at[1]:])
	files[path] = []byte(text)
	return text
}

// TestModelAgreesWithBIRD: BIRD itself has as many next hops to every host as the model, and packets arrive where they do in it: in a
// whole lab, and with each mistake in a bird.conf that it starts with.
func TestModelAgreesWithBIRD(t *testing.T) {
	if testing.Short() {
		t.Skip("brings routers up")
	}
	p, s := birdLab(t, birdFabric)
	i := bring(t, s)
	for k := range p.Hosts {
		echo(t, i, p.Hosts[k].Name)
	}
	var sum modelSum
	whole := birdFiles(t, p, s)
	judge := func(name string, files map[string][]byte) {
		compareWithModel(t, name, i, p, files, prove.Failure{}, &sum)
		if err := until(time.Minute, func() error { return hopsAgree(i, p, files) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	judge("no mistake", whole)
	for _, m := range birdMistakes {
		if m.property == "files are modelled" {
			continue
		}
		files := birdFiles(t, p, s)
		configure(t, i, m.node, m.plant(t, files))
		judge(m.name, files)
		configure(t, i, m.node, string(whole["switches/"+m.node+"/etc/bird.conf"]))
		if err := until(3*time.Minute, func() error { return errors.Join(i.whole(), hopsAgree(i, p, whole)) }); err != nil {
			t.Fatalf("%s undone: %v", m.name, err)
		}
	}
	t.Logf("%d cases: %d packets compared, %d of them lost in both", sum.cases, sum.packets, sum.lost)
	if sum.lost == 0 {
		t.Error("no packet was lost: no mistake keeps any apart")
	}
}

// configure has BIRD read another file.
func configure(t *testing.T, i *Info, node, text string) {
	t.Helper()
	const command = `printf %s "$1" > "/run/weft/$0/etc/bird.conf" && birdc -s "/run/weft/$0/bird.ctl" configure`
	out, err := i.Run(node, "sh", "-c", command, node, text)
	if err != nil || !strings.Contains(string(out), "Reconfigur") {
		t.Fatalf("%s: %v: %s", node, err, out)
	}
}

// hopsAgree compares the next hops of every route to a host's network that BIRD gives the kernel with the model's.
func hopsAgree(i *Info, p *network.Plan, files map[string][]byte) error {
	model, err := prove.Load(files)
	if err != nil {
		return err
	}
	compared := 0
	for k := range p.Switches {
		name := p.Switches[k].Name
		out, err := i.Run(name, "ip", "-4", "route", "show", "proto", "bird")
		if err != nil {
			return err
		}
		have := kernelHops(string(out))
		for h := range p.Hosts {
			for _, x := range p.Hosts[h].Interfaces {
				if x.Role != network.Backend {
					continue
				}
				trip := model.Follow(name, netip.Addr{}, x.Addr.Addr())
				want := trip.Paths // in two tiers, as many as next hops
				if len(trip.Hops) == 2 || !trip.Reached && !strings.HasPrefix(trip.Why, name+" has no route") {
					continue // the switch's own host, or lost further on
				}
				if got := have[x.Addr.Masked()]; len(got) != want {
					return fmt.Errorf("%s to %s: the kernel %v, the model %v", name, x.Addr.Masked(), got, trip)
				}
				compared++
			}
		}
	}
	if compared == 0 {
		return errors.New("no route was compared")
	}
	return nil
}

// kernelHops reads which ports routes lead to.
func kernelHops(text string) map[netip.Prefix][]string {
	out := map[netip.Prefix][]string{}
	var at netip.Prefix
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		if p, err := netip.ParsePrefix(w[0]); err == nil {
			at = p
		} else if a, err := netip.ParseAddr(w[0]); err == nil {
			at = netip.PrefixFrom(a, 32)
		}
		if k := slices.Index(w, "dev"); k >= 0 {
			out[at] = append(out[at], w[k+1])
		}
	}
	return out
}
