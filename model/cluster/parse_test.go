package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/model/topo"
)

// lab is a kind of host to break things with.
const lab = `
kinds:
  box:
    devices:
      cpu0: {kind: cpu}
      root0: {kind: root-port, parent: cpu0}
      gpu0: {kind: gpu, parent: root0, link: pcie4}
      nic[0-1]: {kind: nic, parent: root0, link: pcie4}
hosts:
  h[0-3]: box
`

// a100 is two hosts and two HDR switches, not yet wired.
const a100 = "hosts: {\"n[0-1]\": dgx-a100}\nswitches: {\"s[0-1]\": QM8790}\n"

// TestRefused: each wrong file is answered with its line, field, value, and what would be right.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"wrong kind": {"hosts:\n  n0: dgx-h10\n",
			[]string{"c.yaml:2: hosts.n0", `unknown host kind "dgx-h10"`, `did you mean "dgx-h100"?`, "mi300x"}},
		"unknown field": {"name: x\nhosst: {}\n", []string{"c.yaml:2: hosst: unknown field", `did you mean "hosts"?`}},
		"unknown field of a fabric": {"hosts: {n0: dgx-h100}\nfabric:\n  family: rail\n  swich: QM9700\n",
			[]string{"c.yaml:4: fabric.swich: unknown field", `"switch"`}},
		"unknown family": {"hosts: {n0: dgx-h100}\nfabric:\n  family: fat_tree\n",
			[]string{"c.yaml:3: fabric.family", `"fat_tree"`, `did you mean "fat-tree"?`}},
		"no family": {"hosts: {n0: dgx-h100}\nfabric:\n  switch: QM9700\n", []string{"fabric.family: missing", "dragonfly"}},
		"unknown switch": {"hosts: {n0: dgx-h100}\nfabric:\n  family: rail\n  switch: QM97\n",
			[]string{"c.yaml:4: fabric.switch", `unknown switch "QM97"`, "QM9700"}},
		"no switch": {"hosts: {n0: dgx-h100}\nfabric:\n  family: rail\n", []string{"fabric.switch: missing", "QM9700"}},
		"unknown link": {"hosts: {n0: dgx-h100}\nfabric:\n  family: rail\n  switch: QM9700\n  link: nrd\n",
			[]string{"c.yaml:5: fabric.link", `unknown link "nrd"`, "ndr"}},
		"odd ports": {"catalog:\n  switches:\n    odd: {ports: 33, link: ndr}\nhosts: {\"n[0-3]\": dgx-h100}\nfabric:\n  family: fat-tree\n  tiers: 2\n  switch: odd\n",
			[]string{"c.yaml:5: fabric \"compute\": the 33 ports of leaf odd do not divide 1:1", "write down: 16, up: 16, which leaves 1 unused"}},
		"oversubscription by 3": {"hosts: {\"n[0-99]\": dgx-h100}\nfabric:\n  family: rail\n  switch: QM9700\n  oversubscription: 2:1\n",
			[]string{"do not divide 2:1", "down: 42, up: 21"}},
		"oversubscription of zero": {"hosts: {n0: dgx-h100}\nfabric:\n  family: rail\n  switch: QM9700\n  oversubscription: 0:1\n",
			[]string{"c.yaml:5: fabric.oversubscription", "such as 2:1"}},
		"does not fit": {"hosts: {\"n[0-299]\": dgx-h100}\nfabric:\n  family: rail\n  tiers: 2\n  switch: QM9700\n",
			[]string{"300 hosts do not fit two tiers", "at most 256 hosts fit"}},
		"negative tiers": {"hosts: {n0: dgx-h100}\nfabric:\n  family: rail\n  switch: QM9700\n  tiers: -2\n",
			[]string{"c.yaml:5: fabric.tiers: -2; it must be between 1 and 3"}},
		"tiers as text": {"hosts: {n0: dgx-h100}\nfabric:\n  family: rail\n  switch: QM9700\n  tiers: two\n",
			[]string{"c.yaml:5: fabric.tiers", `"two"`, "whole number"}},
		"negative watts": {"catalog:\n  gpus:\n    H100-SXM: {watts: -5}\nhosts: {n0: dgx-h100}\n",
			[]string{"c.yaml:3: catalog.gpus.H100-SXM.watts", `"-5"`, "at least 0"}},
		"two hosts of a name": {"hosts:\n  n[0-3]: dgx-h100\n  n[3-5]: dgx-a100\n",
			[]string{"c.yaml:3: hosts.n[3-5]", `host "n3" is already on line 2`}},
		"a name twice in a list": {"hosts:\n  n[0-3,2]: dgx-h100\n", []string{`"n2" comes twice`}},
		"a key twice":            {"hosts:\n  n0: dgx-h100\n  n0: dgx-a100\n", []string{"c.yaml:3", "n0", "already defined"}},
		"too many hosts": {"hosts:\n  n[0-99999999]: dgx-h100\n",
			[]string{"c.yaml:2: hosts.n[0-99999999]", "more than 1048576 names"}},
		"too many hosts to hold": {"hosts:\n  n[0-999999]: dgx-h100\n", []string{"more than 131072 hosts"}},
		"too many devices": {"kinds:\n  b:\n    devices:\n      cpu[0-99999]: {kind: cpu}\nhosts: {n0: b}\n",
			[]string{"c.yaml:4", "more than 4096 devices"}},
		"too many parts": {"kinds:\n  b:\n    devices:\n      cpu0: {kind: cpu}\n      g[0-999]: {kind: gpu, parent: cpu0, link: pcie4}\nhosts:\n  n[0-99999]: b\n",
			[]string{"c.yaml:7", "more than 8388608 parts"}},
		"too many links": {"catalog: {switches: {x: {like: QM9700, ports: 4096}}}\nhosts: {\"n[0-9999]\": dgx-h100}\nfabric: {family: rail, leaf: {switch: x, down: 1, up: 1000}, pod: 1}\n",
			[]string{"links between switches"}},
		"backwards":         {"hosts:\n  n[3-0]: dgx-h100\n", []string{"runs backwards", "0-3"}},
		"no hosts":          {"name: x\n", []string{"hosts: missing", "preset"}},
		"empty":             {"# nothing\n", []string{"empty"}},
		"a list":            {"- a\n- b\n", []string{"c.yaml:1", "must be a mapping"}},
		"a sentence":        {"hello\n", []string{"must be a mapping"}},
		"two documents":     {"name: a\n---\nname: b\n", []string{"second document"}},
		"not YAML":          {"name: [\n", []string{"c.yaml:1", "not YAML"}},
		"tab":               {"hosts:\n\tn0: dgx-h100\n", []string{"not YAML"}},
		"anchor":            {"a: &a [x]\nb: *a\n", []string{"anchors and aliases are not read"}},
		"tag":               {"name: !!binary aGk=\n", []string{"tag"}},
		"unknown preset":    {"preset: superpod\n", []string{"c.yaml:1: preset", `unknown preset "superpod"`, "superpod-h100"}},
		"preset and hosts":  {"preset: rail\nhosts: {n0: dgx-h100}\n", []string{"c.yaml:2: hosts", "brings its own"}},
		"unknown parameter": {"preset: rail\nparams: {su: 1}\n", []string{`no parameter "su"`, "hosts"}},
		"fabric and fabrics": {"hosts: {n0: dgx-h100}\nfabric: {family: rail, switch: QM9700}\nfabrics: {a: {family: rail, switch: QM9700}}\n",
			[]string{"c.yaml:3: fabrics", "both given"}},
		"fabric and links": {"hosts: {n0: dgx-h100}\nfabric: {family: rail, switch: QM9700}\nlinks: []\n", []string{"whole network"}},
		"line of the fabric": {"hosts: {\"n[0-299]\": dgx-h100}\nfabrics:\n  a: {family: rail, switch: QM9700, nics: nic0}\n  b:\n    {family: rail, switch: QM9700, nics: nic1, tiers: 1}\n",
			[]string{"c.yaml:4: fabric \"b\": 300 hosts do not fit one tier"}},
		"two fabrics of a name": {"hosts: {n0: dgx-h100}\nfabrics:\n  a: {family: rail, switch: QM9700, nics: nic0}\n  b: {name: a, family: rail, switch: QM9700, nics: nic1}\n",
			[]string{"c.yaml:4: fabrics.b.name", "already on line 3"}},
		"core upwards": {"hosts: {n0: dgx-h100}\nfabric: {family: rail, switch: QM9700, core: {up: 3}}\n",
			[]string{"fabric.core.up: unknown field"}},
		"spine upwards": {"hosts: {n0: dgx-h100}\nfabric: {family: rail, tiers: 2, switch: QM9700, spine: {oversubscription: 3:1}}\n",
			[]string{"two tiers have no uplinks"}},
		"one NIC for two fabrics": {"hosts: {n0: dgx-h100}\nfabrics:\n  a: {family: rail, switch: QM9700}\n  b: {family: rail, switch: QM9700}\n",
			[]string{"nic0", `claimed by fabrics "a" and "b"`}},
		"no such NIC": {"hosts: {n0: dgx-h100}\nfabric: {family: rail, switch: QM9700, nics: \"nic[0-9]\"}\n",
			[]string{`no NIC "nic9"`, "nic7"}},
		"needs":           {"needs: {step: fast}\nhosts: {n0: dgx-h100}\n", []string{"c.yaml:1: needs.step", `"fast"`, "500ms"}},
		"needs, negative": {"needs: {params: -1}\nhosts: {n0: dgx-h100}\n", []string{"needs.params", "at least 1"}},
		"needs, unknown part": {"needs: {failure-rates: {fan: 0.1}}\nhosts: {n0: dgx-h100}\n",
			[]string{"needs.failure-rates.fan: unknown field", "gpu"}},
		"needs, item": {"needs: {provided: {monitoring: yes}}\nhosts: {n0: dgx-h100}\n",
			[]string{"needs.provided.monitoring", "monitoring.health"}},
		"rate in bytes": {"catalog: {links: {x: {kind: ethernet, rate: 400}}}\nhosts: {n0: dgx-h100}\n",
			[]string{"catalog.links.x.rate", "known units"}},
		"link kind": {"catalog: {links: {x: {kind: carrier-pigeon, rate: 1Gb/s}}}\nhosts: {n0: dgx-h100}\n",
			[]string{"catalog.links.x.kind", `"carrier-pigeon"`, "infiniband"}},
		"switch without ports": {"catalog: {switches: {x: {link: ndr}}}\nhosts: {n0: dgx-h100}\n",
			[]string{"catalog.switches.x.ports: missing", "like"}},
		"include": {"catalog: parts.yaml\nhosts: {n0: dgx-h100}\n", []string{"c.yaml:1: catalog.include", `"parts.yaml"`}},
		"price date": {"catalog: {switches: {QM9700: {price: {usd: 1, date: March}}}}\nhosts: {n0: dgx-h100}\n",
			[]string{"price.date", "2024-03"}},
		"device kind": {"kinds:\n  b:\n    devices:\n      d0: {kind: fpga}\nhosts: {n0: b}\n",
			[]string{"c.yaml:4: kinds.b.devices.d0.kind", `"fpga"`, "pcie-switch"}},
		"cycle": {"kinds:\n  b:\n    devices:\n      a0: {kind: pcie-switch, parent: b0, link: pcie4}\n      b0: {kind: pcie-switch, parent: a0, link: pcie4}\nhosts: {n0: b}\n",
			[]string{"c.yaml:4: kinds.b", "cycle", "a0", "b0"}},
		"no such parent": {"kinds:\n  b:\n    devices:\n      cpu0: {kind: cpu}\n      g0: {kind: gpu, parent: cpu1, link: pcie4}\nhosts: {n0: b}\n",
			[]string{"c.yaml:5", `"cpu1"`, "cpu0"}},
		"device twice": {"kinds:\n  b:\n    devices:\n      cpu[0-1]: {kind: cpu}\n      cpu1: {kind: cpu}\nhosts: {n0: b}\n",
			[]string{"c.yaml:5", `"cpu1"`}},
		"device model": {"kinds:\n  b:\n    devices:\n      g0: {kind: gpu, model: H100}\nhosts: {n0: b}\n",
			[]string{`unknown GPU "H100"`, "H100-SXM"}},
		"parents do not divide": {"kinds:\n  b:\n    devices:\n      cpu[0-1]: {kind: cpu}\n      g[0-2]: {kind: gpu, parent: \"cpu[0-1]\", link: pcie4}\nhosts: {n0: b}\n",
			[]string{"3 devices do not divide among 2 parents"}},
		"join to nowhere": {"kinds:\n  b:\n    devices:\n      cpu[0-1]: {kind: cpu}\n    joins:\n      - {from: cpu0, to: cpu2, link: upi2}\nhosts: {n0: b}\n",
			[]string{"c.yaml:6", `"cpu2"`, "cpu0 cpu1"}},
		"defaults": {"defaults: {dgx: {rack: 4}}\nhosts: {n0: dgx-h100}\n",
			[]string{"defaults.dgx: unknown host kind", "dgx-h100"}},
		"link to nowhere": {lab + "switches: {s0: SN4600C}\nlinks:\n  - [\"h0:nic0\", \"s1:p1\"]\n",
			[]string{"c.yaml:13: links[0]", `"s1:p1" leads to nowhere`, `did you mean "s0"?`}},
		"link to no part": {lab + "switches: {s0: SN4600C}\nlinks:\n  - [\"h0:nic7\", s0]\n",
			[]string{`host "h0" has no part "nic7"`, "nic0 nic1"}},
		"link to a host": {lab + "switches: {s0: SN4600C}\nlinks:\n  - [h0, s0]\n", []string{`"h0" is a host`, "h0:nic0"}},
		"link to itself": {lab + "switches: {s0: SN4600C}\nlinks:\n  - [s0, s0]\n", []string{"are the same"}},
		"port twice": {lab + "switches: {s0: SN4600C}\nlinks:\n  - [\"h0:nic0\", \"s0:p1\"]\n  - [\"h1:nic0\", \"s0:p1\"]\n",
			[]string{"c.yaml:14: links[1]", `port 1 of "s0" is already used on line 13`}},
		"port out of range": {lab + "switches: {s0: SN4600C}\nlinks:\n  - [\"h0:nic0\", \"s0:p65\"]\n",
			[]string{`has no port "p65"`, "p1 to p64"}},
		"ports run out": {lab + "switches: {s0: {model: SN4600C, ports: 2}}\nlinks:\n  - [\"h[0-2]:nic0\", s0]\n",
			[]string{"no port left", "all 2"}},
		"uneven lists": {lab + "switches: {s0: SN4600C}\nlinks:\n  - [\"h[0-2]:nic0\", \"s0:p[1-2]\"]\n",
			[]string{"3 names on one side and 2 on the other"}},
		"switch and host of one name": {lab + "switches: {h1: SN4600C}\n", []string{`"h1" is already a host`}},
		"switch twice":                {lab + "switches:\n  s[0-1]: SN4600C\n  s1: SN4600C\n", []string{`switch "s1" is already there`}},
		"some tiers":                  {lab + "switches:\n  s0: {model: SN4600C, tier: 1}\n  s1: SN4600C\n", []string{"for all, or for none"}},
		"InfiniBand to Ethernet":      {lab + "switches: {s0: SN4600C, s1: QM9700}\nlinks:\n  - [s0, s1]\n", []string{"cannot be joined"}},
		"GPUs joined by nothing":      {lab + "links:\n  - [\"h0:gpu0\", \"h1:gpu0\"]\n", []string{"write link"}},
		"link too fast for a switch": {a100 + "links:\n  - {from: \"n0:nic0\", to: s0, link: xdr}\n",
			[]string{"c.yaml:4: links[0]", `link "xdr" runs at 800 Gb/s`, `"n0:nic0" (ConnectX-6) at most at 200 Gb/s: hdr`}},
		"switches linked too fast": {a100 + "links:\n  - {from: s0, to: s1, link: ndr}\n",
			[]string{`link "ndr" runs at 400 Gb/s`, `a port of switch "s0" (QM8790) at most at 200 Gb/s: hdr`}},
		"link of another kind": {a100 + "links:\n  - {from: \"n0:nic0\", to: s0, link: 200gbe}\n",
			[]string{`link "200gbe" is ethernet, but switch "s0" (QM8790) is infiniband`}},
		"NVLink to a switch": {a100 + "links:\n  - {from: \"n0:gpu0\", to: s0, link: nvlink3}\n",
			[]string{`"n0:gpu0" is a gpu; a network link ends at a NIC or a switch`}},
		"two links on one port": {a100 + "links:\n  - [\"n0:nic0\", s0]\n  - [\"n0:nic0\", s1]\n",
			[]string{"c.yaml:5: links[1]", `"n0:nic0" has 1 port and is wired 2 times`}},
		"two links on an unknown NIC": {lab + "switches: {s0: SN4600C}\nlinks:\n  - [\"h0:nic0\", s0]\n  - [\"h0:nic0\", s0]\n",
			[]string{"c.yaml:14: links[1]", "has 1 port"}},
		"more than a switch carries": {"hosts: {\"n[0-47]\": dgx-a100}\nswitches: {s0: {model: QM8790, ports: 200}}\nlinks:\n  - [\"n[0-47]:nic0\", s0]\n",
			[]string{`switch "s0" (QM8790) has 8.0 Tb/s`, "need 8.2"}},
		"fabric too fast for its NIC": {"hosts: {\"n[0-3]\": dgx-a100}\nfabric: {family: rail, switch: QM9700, link: ndr}\n",
			[]string{`link "ndr" runs at 400 Gb/s, but NIC "ConnectX-6" at most at 200 Gb/s`}},
		"torus without dims": {"hosts: {n0: dgx-h100}\nfabric: {family: torus, switch: QM9700}\n", []string{"fabric.dims: missing"}},
		"torus of zero": {"hosts: {n0: dgx-h100}\nfabric: {family: torus, switch: QM9700, dims: [0, 4]}\n",
			[]string{"fabric.dims: 0"}},
		"torus of chips, hosts": {"hosts: {\"t[0-9]\": tpu-v4}\nfabric: {family: chip-torus, dims: 4x4x4}\n",
			[]string{"64 chips and so 16 hosts of 4, but 10 hosts"}},
		"dragonfly without routers": {"hosts: {n0: dgx-h100}\nfabric: {family: dragonfly, switch: QM9700, ports: 2, global: 2}\n",
			[]string{"fabric.routers: missing"}},
		"nvl72 of 20": {"hosts: {\"t[0-19]\": gb200}\nnvlink: nvl72\n", []string{"20 hosts do not fill whole racks"}},
	} {
		t.Run(name, func(t *testing.T) {
			c1, err := Parse("c.yaml", []byte(c.file), nil)
			if err == nil {
				t.Fatalf("accepted: %d hosts", len(c1.Graph.Hosts))
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got  %v\nwant %q", err, want)
				}
			}
			var e *Error
			if !errors.As(err, &e) || e.File != "c.yaml" {
				t.Errorf("%T names no file", err)
			}
			if strings.Contains(err.Error(), "%!") {
				t.Errorf("badly formatted: %v", err)
			}
		})
	}
}

// TestNoise: whatever it is, the answer comes soon and takes little memory.
func TestNoise(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	random := make([]byte, 10<<20)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	printable := make([]byte, 1<<20)
	words := []byte("abc: -[]{}#'\"|>\n\n  ,&*!%0123")
	for i := range printable {
		printable[i] = words[r.IntN(len(words))]
	}
	lines := func(s string, n int) []byte { return []byte(strings.Repeat(s, n)) }
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'z'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	indent := ""
	for i := range 1400 {
		indent += strings.Repeat(" ", i) + "a:\n"
	}
	keys, flow := "", "{"
	for i := range 9900 {
		keys += fmt.Sprintf("k%d: 1\n", i)
		flow += fmt.Sprintf("k%d: 1,", i)
		if i%100 == 0 {
			flow += "\n"
		}
	}
	for name, data := range map[string][]byte{
		"10 MB of random bytes": random,
		"10 MB of x":            lines("x", 10<<20),
		"1 MB of random bytes":  random[:1<<20],
		"1 MB of YAML letters":  printable,
		"short lines":           lines("a\n", 1<<19),
		"brackets":              lines("[", 1<<12),
		"brackets on lines":     lines("[\n", 1<<19),
		"braces":                lines("{a: ", 1000),
		"dashes":                lines("- ", 2000),
		"dashes on lines":       lines("- -\n", 1<<18),
		"questions":             lines("? ", 2000),
		"anchors":               []byte(bomb),
		"indents":               []byte(indent),
		"many keys":             []byte(keys),
		"more keys":             []byte(keys + strings.ReplaceAll(keys, "k", "l")),
		"many keys in braces":   []byte(flow + "}"),
		"many items":            lines("- a\n", 19000),
		"many numbers":          lines("1,", 2000),
		"quotes":                lines("\"a\" ", 1000),
		"long scalar":           lines("a: |\n  "+strings.Repeat("x", 4000)+"\n", 200),
		"zero bytes":            make([]byte, 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := Parse("noise", data, nil)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("accepted")
			} else if len(err.Error()) > 4000 {
				t.Errorf("an answer of %d bytes", len(err.Error()))
			}
			if took > time.Minute { // these take well under a second; a minute means that something is quadratic
				t.Errorf("took %v", took)
			}
			if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 1024 {
				t.Errorf("allocated %d MiB", used)
			}
			t.Logf("%v, %d MiB allocated: %.100v", took.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, err)
		})
	}
}

func TestCatalogEntries(t *testing.T) {
	file := `
catalog:
  include: [parts.yaml]
  links:
    fast: {kind: ethernet, rate: 1.6Tb/s, lanes: 8, latency: 200 ns}
  gpus:
    H100-SXM: {memory: 96 GB}
  switches:
    big: {like: QM9700, ports: 128}
hosts:
  n[0-1]: dgx-h100
fabric: {family: rail, switch: big}
`
	c, err := Parse("c.yaml", []byte(file), func(path string) ([]byte, error) {
		if path != "parts.yaml" {
			t.Error(path)
		}
		return []byte("nics:\n  ConnectX-7: {watts: 30, source: the lab}\ncables:\n  short: {link: ndr, reach: 2, price: 100}\n"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k := c.Catalog
	if got := k.Links["fast"].Class(0).Rate.Bits(); got < 1.5999e12 || got > 1.6001e12 {
		t.Error(got)
	}
	if g := k.GPUs["H100-SXM"]; g.Memory != 96e9 || g.Links != 18 {
		t.Errorf("%+v", g)
	}
	if s := k.Switches["big"]; s.Ports != 128 || s.Link != "ndr" || s.Name != "big" {
		t.Errorf("%+v", s)
	}
	if n := k.NICs["ConnectX-7"]; n.Watts != 30 || n.Link != "ndr" || n.Source != "the lab" {
		t.Errorf("%+v", n)
	}
	if x := k.Cables["short"]; x.Price.USD != 100 {
		t.Errorf("%+v", x)
	}
	_, err = Parse("c.yaml", []byte(file), func(string) ([]byte, error) { return []byte("nics:\n  a: {link: ndr, pci: 1}\n"), nil })
	if err == nil || !strings.Contains(err.Error(), "parts.yaml:2: nics.a.pci: unknown field") {
		t.Error(err)
	}
}

func TestNeeds(t *testing.T) {
	c, err := Parse("c.yaml", []byte(`
hosts: {n0: dgx-h100}
needs:
  params: 70B
  bytes-per-param: 2
  step: 500ms
  failure-rates: {gpu: 0.05}
  power-price: 0.2
  cloud-price: 2.5
  years: 4
  oversubscription: 1.5
  provided:
    monitoring.health: node exporter
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	n := c.Needs
	if n.Params != 70e9 || n.BytesPer != 2 || n.StepSeconds != 0.5 || n.FailureRates["gpu"] != 0.05 || n.FailureRates["nic"] != 0.0029 ||
		n.PowerPrice != 0.2 || n.CloudPrice != 2.5 || n.Years != 4 || n.Oversub != 1.5 || n.Provided["monitoring.health"] != "node exporter" {
		t.Errorf("%+v", n)
	}
}

// TestHandMade: tiers are read off the links, ports given out, rails and fabrics kept.
func TestHandMade(t *testing.T) {
	c, err := Parse("c.yaml", []byte(lab+`
switches:
  leaf[0-1]: {model: SN4600C, rail: 0}
  top: SN4600C
  stor: {model: SN4600C, fabric: storage}
links:
  - ["h[0-3]:nic0", "leaf0:p[11-14]"]
  - ["h[0-1]:nic1", stor]
  - [leaf0, top]
  - {from: leaf1, to: top, count: 3}
  - {from: "h0:gpu0", to: "h1:gpu0", link: nvlink4}
  - ["h3:nic1", leaf1]
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	g := c.Graph
	for name, tier := range map[string]uint8{"leaf0": 1, "leaf1": 1, "top": 2, "stor": 1} {
		n, err := g.Lookup(name)
		if err != nil || g.Nodes[n].Tier != tier {
			t.Errorf("%s: tier %d, %v", name, g.Nodes[n].Tier, err)
		}
	}
	n, _ := g.Lookup("h1:nic1")
	if g.Fabrics[g.Nodes[n].Fabric].Name != "storage" {
		t.Error(g.Nodes[n])
	}
	if top, _ := g.Lookup("top"); len(g.Edges(top)) != 4 {
		t.Error(len(g.Edges(top)))
	}
	from, _ := g.Lookup("h2:nic0")
	to, _ := g.Lookup("h3:nic1")
	way, err := g.Route(topo.Flow{From: from, To: to}, nil)
	if err != nil || len(way) != 4 {
		t.Error(way, err)
	}
}

// TestNext: a file's fabric grows by a unit, with names that are free.
func TestNext(t *testing.T) {
	c, err := Parse("c.yaml", []byte("hosts: {\"n[0-63]\": dgx-h100}\nfabric: {family: rail, switch: QM9700, pod: 32}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Growth.UnitHosts != 32 || c.Growth.MaxHosts != 256 {
		t.Errorf("%+v", c.Growth)
	}
	g, err := c.Growth.Next()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := g.HostByName("n95"); !ok || len(g.Hosts) != 96 {
		t.Error(len(g.Hosts))
	}
}

// TestByteOrderMark: some editors put a mark before the text.
func TestByteOrderMark(t *testing.T) {
	c, err := Parse("c.yaml", []byte("\xef\xbb\xbfname: x\nhosts: {n0: dgx-h100}\n"), nil)
	if err != nil || c.Name != "x" {
		t.Errorf("%v, %v", c, err)
	}
}

// TestPreset: known presets come with defaults of needs, unknown ones with the known.
func TestPreset(t *testing.T) {
	c, err := Preset("superpod-b300", map[string]int{"su": 2})
	if err != nil {
		t.Fatal(err)
	}
	if c.LinksPerCable != 2 || c.Needs.Params != 0 || c.Growth.Next == nil || len(c.Notes) == 0 || c.Catalog == nil {
		t.Errorf("%+v", c)
	}
	if _, err := Preset("dgx-h10", nil); err == nil || !strings.Contains(err.Error(), "dgx-h100") ||
		!strings.Contains(err.Error(), "superpod-h100") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		lab + "switches: {s0: SN4600C}\nlinks:\n  - [\"h0:nic0\", \"s0:p1\"]\n",
		"hosts: {\"n[0-7]\": dgx-h100}\nfabric: {family: rail, switch: QM9700, pod: 4, planes: 2}\n",
		"hosts:\n  n[0-7]: {kind: dgx-a100, rack: 4}\nfabrics:\n  a: {family: fat-tree, leaf: {switch: QM8790, oversubscription: 3:1}}\n",
		"preset: dragonfly\nparams: {groups: 3}\nneeds: {step: 1s}\n",
		"hosts: {\"t[0-3]\": tpu-v4}\nfabric: {family: chip-torus, dims: 4x4}\n",
		"catalog:\n  links:\n    x: {kind: ethernet, rate: 1Gb/s}\n",
		"a: &a [x]\nb: *a\n", "? [a]: b\n", "- - -", "name: |\n  x\n", "\"a\": 'b'\n", "{[", "a: !!x y",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "000") { // sizes that are only slow to build
			return
		}
		start := time.Now()
		c, err := Parse("f", data, nil)
		if took := time.Since(start); took > time.Minute {
			t.Fatalf("took %v", took)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if c.Graph == nil {
			t.Fatal("neither graph nor error")
		}
		if err := c.Graph.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzInventory: the file of real parts is read, or refused with its line.
func FuzzInventory(f *testing.F) {
	for _, s := range []string{"host,part,mac\nn0,nic0,b8:3f:d2:00:00:01\n", "host,part,host\n", "host\n", "\ufeffpart,host\nnic0,n0\n# x\n",
		"host,part\nn0,nic0\nn0,nic0\n", "host,part,pci,guid,serial\nn0,nic0,0000:01:00.0,0x1,s\n"} {
		f.Add([]byte(s))
	}
	const head = "hosts: {\"n[0-1]\": dgx-a100}\nfabric: {family: fat-tree, switch: QM8790}\nnetwork: {}\ninventory: parts.csv\n"
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := Parse("f", []byte(head), func(string) ([]byte, error) { return data, nil })
		if err == nil {
			return
		}
		var e *Error
		if !errors.As(err, &e) || e.Line < 1 {
			t.Fatalf("%T without a line: %v", err, err)
		}
	})
}

// TestOneMistakeIsOneError: a mistake elsewhere in a file does not make its kinds unknown, and neither does one in a kind itself.
func TestOneMistakeIsOneError(t *testing.T) {
	const kinds = "kinds:\n  box:\n    devices:\n      gpu0: {kind: gpu, model: H100-SXM}\n      nic0: {kind: nic, model: ConnectX-7, parent: %s}\n"
	for name, file := range map[string]string{
		"elsewhere": fmt.Sprintf(kinds, "gpu0") + "hosts: {n0: box}\nnetwork: {storage: {links: bridged}}\n",
		"in a kind": fmt.Sprintf(kinds, "gpu7") + "hosts: {n0: box}\n",
	} {
		_, err := Parse("c.yaml", []byte(file), nil)
		if err == nil || strings.Contains(err.Error(), "unknown host kind") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
