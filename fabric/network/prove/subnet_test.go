package prove_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/ibsim"
	"github.com/weft-fabric/weft/model/topo/format"
)

const (
	leavesAndSpines = `
name: tree
hosts: {"n[0-11]": {kind: dgx-h100}}
fabric:
  {family: rail, switch: QM9700, link: ndr, pod: 4, leaf: {switch: QM9700, down: 4, up: 4, link: ndr}, spine: {switch: QM9700, count: 2}}
`
	smallDragonfly = `
name: dragonfly
hosts: {"n[0-9]": {kind: dgx-h100}}
fabric: {family: dragonfly, switch: QM9700, routers: 4, ports: 4, global: 2, groups: 5}
`
)

// subnetFiles are the files that the model reads of an InfiniBand fabric.
func subnetFiles(t *testing.T, p *network.Plan) map[string][]byte {
	t.Helper()
	list, err := emit.Make(p, []string{"cables", "netplan", "opensm"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range list {
		files[f.Path] = f.Data
	}
	return files
}

func loadSubnet(t *testing.T, files map[string][]byte) (*prove.Net, *prove.Subnet) {
	t.Helper()
	n, err := prove.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Subnets()) != 1 {
		t.Fatalf("%d subnets", len(n.Subnets()))
	}
	return n, n.Subnets()[0]
}

// ports are the cables of a fabric in ibsim's format: of each switch by name, what is behind a port.
type ports map[string]map[int]string

var (
	ibSwitchLine = regexp.MustCompile(`^Switch\s+\d+ "([^"]*)"\s+# "([^"]*)"`)
	ibPortLine   = regexp.MustCompile(`^\[(\d+)\]\s+"([^"]*)"\[\d+\].*# "([^"]*)"`)
	lftHead      = regexp.MustCompile(`^Unicast lids .*\('([^']*)'\)`)
	lftLine      = regexp.MustCompile(`^0x[0-9a-fA-F]+ (\d+) # Channel Adapter .*: '([^']*)'`)
)

// without takes the cables between some pairs of switches out of a fabric in ibsim's format, and gives the others.
func without(fabric []byte, cut map[[2]string]bool) (out []byte, left ports) {
	left = ports{}
	at := ""
	var b bytes.Buffer
	for line := range strings.Lines(string(fabric)) {
		if m := ibSwitchLine.FindStringSubmatch(line); m != nil {
			at = m[2]
			left[at] = map[int]string{}
		} else if strings.HasPrefix(line, "Ca\t") {
			at = ""
		}
		if m := ibPortLine.FindStringSubmatch(line); m != nil && at != "" {
			if cut[[2]string{at, m[3]}] || cut[[2]string{m[3], at}] {
				continue
			}
			port, _ := strconv.Atoi(m[1])
			left[at][port] = m[3]
		}
		b.WriteString(line)
	}
	return b.Bytes(), left
}

// forwarding lets opensm route a fabric with the emitted files, and gives its tables: of each switch, the port to each adapter.
func forwarding(t *testing.T, fabric []byte, files map[string][]byte) map[string]map[string]int {
	t.Helper()
	s := ibsim.Start(t, fabric)
	dir := filepath.Join(s.Dir, "etc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, data := range files {
		if strings.HasPrefix(path, "opensm/") {
			data = bytes.ReplaceAll(data, []byte("/etc/opensm"), []byte(dir))
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	out := s.Run(t, "opensm", "-F", filepath.Join(dir, "opensm.conf"), "-f", filepath.Join(s.Dir, "log"), "-D", "0x43", "-s", "0", "-o")
	if bytes.Contains(out, []byte("Unrecognized token")) {
		t.Errorf("opensm does not know an option: %s", out)
	}
	dump, err := os.ReadFile(filepath.Join(s.Dir, "opensm-lfts.dump"))
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]map[string]int{}
	at := ""
	for line := range strings.Lines(string(dump)) {
		if m := lftHead.FindStringSubmatch(line); m != nil {
			at = m[1]
			tables[at] = map[string]int{}
		} else if m := lftLine.FindStringSubmatch(line); m != nil {
			tables[at][m[2]], _ = strconv.Atoi(m[1])
		}
	}
	return tables
}

// along follows the tables from a switch to an adapter: the switches on the way; nil if the packet gets lost.
func along(tables map[string]map[string]int, left ports, at, target string) (hops []string) {
	for range 64 {
		hops = append(hops, at)
		port, ok := tables[at][target]
		if !ok {
			return nil
		}
		switch next := left[at][port]; {
		case next == target:
			return hops
		case left[next] == nil:
			return nil
		default:
			at = next
		}
	}
	return nil
}

// TestSubnetIsOpenSMs compares the model with opensm on simulated fabrics of which random cables are missing: whether
// packets arrive, and over how many switches.
func TestSubnetIsOpenSMs(t *testing.T) {
	compared, lost := 0, 0
	for seed := range bounded.Times(4, 60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, uint64(seed)))
			p := planOf(t, "test.yaml", []string{leavesAndSpines, smallDragonfly}[seed%2])
			d, err := format.Find("ibsim")
			if err != nil {
				t.Fatal(err)
			}
			var whole bytes.Buffer
			if err := d.Encode(&whole, p.Graph); err != nil {
				t.Fatal(err)
			}
			_, all := without(whole.Bytes(), nil)
			cut := map[[2]string]bool{}
			for _, a := range slices.Sorted(maps.Keys(all)) {
				for _, port := range slices.Sorted(maps.Keys(all[a])) {
					if b := all[a][port]; all[b] != nil && a < b && random.IntN(10) < []int{0, 4, 2, 5, 3}[seed/2%5] {
						cut[[2]string{a, b}] = true
					}
				}
			}
			fabric, left := without(whole.Bytes(), cut)
			if !slices.ContainsFunc([]string{"spine0", "spine1", "router0", "router1", "router2", "router3"}, func(root string) bool {
				return left[root] != nil && joinedTo(left, "n0 nic0", root)
			}) {
				return // no root is left where opensm runs: it tries again for ever
			}
			files := subnetFiles(t, p)
			files["cables/cables.csv"] = unplugged(files["cables/cables.csv"], cut)
			c, l := compare(t, fabric, left, files)
			compared, lost = compared+c, lost+l
		})
	}
	t.Logf("%d pairs compared, %d of them lost", compared, lost)
	if lost == 0 || lost == compared {
		t.Error("all pairs are lost or none: the cuts show nothing")
	}
}

// compare holds the model to the tables of opensm, for the adapters that opensm can reach: it runs on the first host.
func compare(t *testing.T, fabric []byte, left ports, files map[string][]byte) (compared, lost int) {
	tables := forwarding(t, fabric, files)
	_, s := loadSubnet(t, files)
	var ends []place
	for _, a := range adaptersOf(left) {
		if joinedTo(left, "n0 nic0", a.at) {
			ends = append(ends, a)
		}
	}
	wrong := 0
	for _, a := range ends {
		for _, b := range ends {
			if a == b || wrong > 5 {
				continue
			}
			hops := along(tables, left, a.at, b.name)
			mine, _, why := s.Follow(strings.Replace(a.name, " ", ":", 1), strings.Replace(b.name, " ", ":", 1))
			compared++
			if hops == nil {
				lost++
			}
			if len(hops) != max(0, len(mine)-2) {
				wrong++
				t.Errorf("%s to %s: opensm's tables lead over %v, the model over %v %s", a.name, b.name, hops, mine, why)
			}
		}
	}
	return compared, lost
}

type place struct{ name, at string }

func adaptersOf(left ports) (out []place) {
	for _, at := range slices.Sorted(maps.Keys(left)) {
		for _, port := range slices.Sorted(maps.Keys(left[at])) {
			if name := left[at][port]; left[name] == nil {
				out = append(out, place{name, at})
				break // one of each switch
			}
		}
	}
	return out
}

// joinedTo says whether cables join an adapter and a switch.
func joinedTo(left ports, home, at string) bool {
	seen, todo := map[string]bool{at: true}, []string{at}
	for len(todo) > 0 {
		for _, next := range left[todo[0]] {
			if next == home {
				return true
			}
			if left[next] != nil && !seen[next] {
				seen[next] = true
				todo = append(todo, next)
			}
		}
		todo = todo[1:]
	}
	return false
}

// unplugged takes cables between switches out of the cable plan.
func unplugged(plan []byte, cut map[[2]string]bool) []byte {
	var b bytes.Buffer
	for line := range strings.Lines(string(plan)) {
		w := strings.Split(line, ",")
		if len(w) > 4 && (cut[[2]string{w[1], w[4]}] || cut[[2]string{w[4], w[1]}]) {
			continue
		}
		b.WriteString(line)
	}
	return b.Bytes()
}

// TestSubnetMistakes plants mistakes into the files of a fabric without any.
func TestSubnetMistakes(t *testing.T) {
	const dir = "opensm/compute/etc/opensm/"
	p := planOf(t, "test.yaml", leavesAndSpines+
		"network: {partitions: {red: {pkey: 0x11, hosts: 'n[0-3]'}, blue: {pkey: 0x12, hosts: 'n[4-7]', limited: 'n7'}}}\n")
	tenants := []prove.Tenant{
		{Name: "red", Hosts: map[string]bool{"n0": true, "n1": true, "n2": true, "n3": true}},
		{Name: "blue", Hosts: map[string]bool{"n4": true, "n5": true, "n6": true, "n7": true}, Limited: map[string]bool{"n7": true}},
	}
	judge := func(files map[string][]byte) *prove.SubnetReport {
		n, s := loadSubnet(t, files)
		return n.ProveSubnet(s, tenants, prove.Options{Failures: true})
	}
	whole := subnetFiles(t, p)
	for _, v := range judge(whole).Verdicts {
		if !v.Holds {
			t.Errorf("untouched: %+v", v)
		}
	}
	change := func(file, from, to string) func(map[string][]byte) {
		return func(files map[string][]byte) {
			if !strings.Contains(string(files[file]), from) {
				t.Fatalf("%s has no %q:\n%s", file, from, files[file])
			}
			files[file] = []byte(strings.Replace(string(files[file]), from, to, 1))
		}
	}
	firstOf := func(file string) string {
		for line := range strings.Lines(string(whole[file])) {
			if strings.HasPrefix(line, "0x") {
				return strings.TrimSpace(line)
			}
		}
		return ""
	}
	root, cn := firstOf(dir+"root_guids.conf"), firstOf(dir+"cn_guids.conf")
	_, others, _ := strings.Cut(string(whole[dir+"root_guids.conf"]), root)
	const reach = "partitions join and part hosts as meant"
	for _, c := range []struct {
		name, property, want string
		do                   func(map[string][]byte)
	}{
		{"an engine that is not modelled", "files are modelled", "routing_engine lash", change(dir+"opensm.conf", "ftree,updn", "lash,updn")},
		{"an option that is not known", "files are modelled", "lmc 2", change(dir+"opensm.conf", "sm_priority 14", "sm_priority 14\nlmc 2")},
		{"a root that no switch is", "GUIDs are unique and have cables", "0x0000000000000123", change(dir+"root_guids.conf", root, "0x123")},
		{"a port twice", "GUIDs are unique and have cables", "has two GUIDs",
			change(dir+"cn_guids.conf", cn, cn+"\n0x77 #"+strings.SplitN(cn, "#", 2)[1])},
		{"one root of two, and it fails", "any one failure is survived", "spine0",
			change(dir+"root_guids.conf", strings.TrimSpace(others), "")},
		{"tenants joined", reach, "their tenants are apart", change(dir+"partitions.conf", "defmember=limited", "defmember=full")},
		{"a member left out", reach, "they share no partition", func(files map[string][]byte) {
			name := dir + "partitions.conf"
			i := bytes.Index(files[name], []byte("red=0x0011"))
			at := i + bytes.Index(files[name][i:], []byte(" : ")) + 3
			end := at + bytes.IndexByte(files[name][at:], ',') + 1
			files[name] = slices.Concat(files[name][:at], files[name][end:])
		}},
		{"small packets", "full packets pass", "2044 bytes",
			change(dir+"partitions.conf", "ipoib, mtu=5, defmember=limited", "ipoib, mtu=4, defmember=limited")},
	} {
		files := maps.Clone(whole)
		c.do(files)
		r := judge(files)
		i := slices.IndexFunc(r.Verdicts, func(v prove.Verdict) bool { return v.Property == c.property })
		if i < 0 || r.Verdicts[i].Holds || !strings.Contains(fmt.Sprint(r.Verdicts[i].Counter), c.want) {
			t.Errorf("%s: %+v", c.name, r.Verdicts)
		}
	}
}

// TestCreditLoop: with OpenSM's tables for a dragonfly, buffers may wait in a circle. The model says so, and so do the
// tables themselves, which name no roots there; on a tree neither does.
func TestCreditLoop(t *testing.T) {
	for _, c := range []struct {
		text string
		loop bool
	}{{leavesAndSpines, false}, {smallDragonfly, true}} {
		t.Run(c.text[7:11], func(t *testing.T) {
			p := planOf(t, "test.yaml", c.text)
			files := subnetFiles(t, p)
			const conf = "opensm/compute/etc/opensm/opensm.conf"
			files[conf] = bytes.Replace(files[conf], []byte("routing_engine updn"), []byte("routing_engine minhop"), 1)
			n, s := loadSubnet(t, files)
			r := n.ProveSubnet(s, nil, prove.Options{})
			i := slices.IndexFunc(r.Verdicts, func(v prove.Verdict) bool { return v.Property == "buffers do not wait in a circle" })
			if i < 0 || r.Verdicts[i].Holds == c.loop {
				t.Errorf("the model: %+v", r.Verdicts)
			}
			d, err := format.Find("ibsim")
			if err != nil {
				t.Fatal(err)
			}
			var fabric bytes.Buffer
			if err := d.Encode(&fabric, p.Graph); err != nil {
				t.Fatal(err)
			}
			_, left := without(fabric.Bytes(), nil)
			if got := circular(left, forwarding(t, fabric.Bytes(), files)); got != c.loop {
				t.Errorf("opensm's tables have a circle: %v", got)
			}
		})
	}
}

// circular says whether the cables on which packets wait for one another form a circle: one that is left when all are taken away
// that wait for nobody, again and again.
func circular(left ports, tables map[string]map[string]int) bool {
	waits := map[[2]string]map[[2]string]bool{}
	for _, a := range adaptersOf(left) {
		for _, b := range adaptersOf(left) {
			if a == b {
				continue
			}
			hops := along(tables, left, a.at, b.name)
			for i := 0; i+2 < len(hops); i++ {
				c := [2]string{hops[i], hops[i+1]}
				if waits[c] == nil {
					waits[c] = map[[2]string]bool{}
				}
				waits[c][[2]string{hops[i+1], hops[i+2]}] = true
			}
		}
	}
	for {
		before := len(waits)
		for c, on := range waits {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(on)), func(d [2]string) bool { return waits[d] != nil }) {
				delete(waits, c)
			}
		}
		if len(waits) == before {
			return before > 0
		}
	}
}
