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
	smallTorus = `
name: torus
hosts: {"n[0-15]": {kind: dgx-h100}}
fabric: {family: torus, switch: QM9700, dims: [4, 4], ports: 8}
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
	return readTables(dumped(t, fabric, files))
}

// dumped is opensm-lfts.dump, as opensm writes it.
func dumped(t *testing.T, fabric []byte, files map[string][]byte) []byte {
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
	return dump
}

// readTables reads a dump by the names in it.
func readTables(dump []byte) map[string]map[string]int {
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
			whole := ibsimOf(t, p)
			_, all := without(whole, nil)
			cut := randomCut(random, all, []int{0, 4, 2, 5, 3}[seed/2%5])
			fabric, left := without(whole, cut)
			if !slices.ContainsFunc([]string{"spine0", "spine1", "router0", "router1", "router2", "router3"}, func(root string) bool {
				return left[root] != nil && joinedTo(left, "n0 nic0", root)
			}) {
				return // no root is left where opensm runs: it tries again for ever
			}
			files := subnetFiles(t, p)
			if seed%2 == 1 {
				fromRoots(t, files)
			}
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

// fromRoots has a dragonfly's files route by updn from the routers of its first group, which are all joined.
func fromRoots(t *testing.T, files map[string][]byte) {
	t.Helper()
	const dir = "opensm/compute/etc/opensm/"
	var roots strings.Builder
	for line := range strings.Lines(string(files[dir+"ib-node-name-map"])) {
		if regexp.MustCompile(`"router[0-3]"`).MatchString(line) {
			roots.WriteString(strings.Fields(line)[0] + "\n")
		}
	}
	files[dir+"root_guids.conf"] = []byte(roots.String())
	conf := string(files[dir+"opensm.conf"])
	from := "routing_engine nue,no_fallback\nnue_max_num_vls 1\n"
	if !strings.Contains(conf, from) {
		t.Fatal(conf)
	}
	files[dir+"opensm.conf"] = []byte(strings.Replace(conf, from,
		"routing_engine updn,no_fallback\nroot_guid_file /etc/opensm/root_guids.conf\n", 1))
}

// TestCreditLoop: with OpenSM's tables by minhop for a dragonfly or a torus, buffers may wait in a circle, and with those by updn for
// a torus. The model says so, and so do the tables themselves. By the files as they are emitted no buffers do.
func TestCreditLoop(t *testing.T) {
	engine := func(e string) func(*testing.T, map[string][]byte) {
		return func(t *testing.T, files map[string][]byte) {
			const conf = "opensm/compute/etc/opensm/opensm.conf"
			before := files[conf]
			files[conf] = regexp.MustCompile(`routing_engine \S+`).ReplaceAll(before, []byte("routing_engine "+e))
			if bytes.Equal(before, files[conf]) {
				t.Fatalf("%s", before)
			}
		}
	}
	asEmitted := func(*testing.T, map[string][]byte) {}
	for _, c := range []struct {
		name, text string
		loop       bool
		change     func(*testing.T, map[string][]byte)
	}{
		{"tree", leavesAndSpines, false, asEmitted},
		{"dragonfly", smallDragonfly, false, asEmitted},
		{"torus", smallTorus, false, asEmitted},
		{"dragonfly by minhop", smallDragonfly, true, engine("minhop")},
		{"torus by minhop", smallTorus, true, engine("minhop")},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := planOf(t, "test.yaml", c.text)
			files := subnetFiles(t, p)
			c.change(t, files)
			judge := func(with string) {
				n, s := loadSubnet(t, files)
				r := n.ProveSubnet(s, nil, prove.Options{Failures: true})
				for _, v := range r.Verdicts {
					if circle := v.Property == "buffers do not wait in a circle"; !v.Advice && v.Holds == (circle && c.loop) {
						t.Errorf("%s: %+v", with, v)
					}
				}
			}
			judge("from the files")
			fabric := ibsimOf(t, p)
			_, left := without(fabric, nil)
			dump := dumped(t, fabric, files)
			if got := circular(left, readTables(dump)); got != c.loop {
				t.Errorf("opensm's tables have a circle: %v", got)
			}
			files["opensm/compute/var/log/opensm-lfts.dump"] = dump
			judge("from opensm's tables")
			_, all := loadSubnet(t, files)
			sameAsTables(t, readTables(dump), left, all)
		})
	}
}

// TestTableMistakes plants mistakes into opensm's tables of a dragonfly, and into what nue is told.
func TestTableMistakes(t *testing.T) {
	p := planOf(t, "test.yaml", smallDragonfly)
	whole := subnetFiles(t, p)
	dump := dumped(t, ibsimOf(t, p), whole)
	const conf, file = "opensm/compute/etc/opensm/opensm.conf", "opensm/compute/var/log/opensm-lfts.dump"
	row := regexp.MustCompile(`(0x[0-9a-fA-F]+) \d+ (# Channel Adapter portguid 0x[0-9a-fA-F]+: 'n9 nic7')`)
	head := regexp.MustCompile(`guid 0x[0-9a-fA-F]+ \('router0'\)`)
	for _, c := range []struct {
		name, property, want string
		do                   func(map[string][]byte)
	}{
		{"lanes", "buffers do not wait in a circle", "nue_max_num_vls is 4", func(f map[string][]byte) {
			f[conf] = bytes.Replace(f[conf], []byte("vls 1"), []byte("vls 4"), 1)
		}},
		{"a port without a cable", "adapters reach one another", "has no port with a cable for n9:nic7", func(f map[string][]byte) {
			f[file] = row.ReplaceAll(dump, []byte("$1 063 $2"))
		}},
		{"a port that leads elsewhere", "adapters reach one another", "for n9:nic7", func(f map[string][]byte) {
			f[file] = row.ReplaceAll(dump, []byte("$1 005 $2"))
		}},
		{"a switch that nobody knows", "files are modelled", "0x0000000000000042", func(f map[string][]byte) {
			f[file] = head.ReplaceAll(dump, []byte("guid 0x0000000000000042 ('router0')"))
		}},
	} {
		files := maps.Clone(whole)
		c.do(files)
		n, s := loadSubnet(t, files)
		r := n.ProveSubnet(s, nil, prove.Options{})
		i := slices.IndexFunc(r.Verdicts, func(v prove.Verdict) bool { return v.Property == c.property })
		if i < 0 || r.Verdicts[i].Holds || !strings.Contains(fmt.Sprint(r.Verdicts[i].Counter), c.want) {
			t.Errorf("%s: %+v", c.name, r.Verdicts)
		}
	}
}

// ibsimOf is the fabric of a plan in ibsim's format.
func ibsimOf(t *testing.T, p *network.Plan) []byte {
	t.Helper()
	d, err := format.Find("ibsim")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := d.Encode(&out, p.Graph); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// sameAsTables holds paths of a model that has opensm's tables to the same tables, switch by switch.
func sameAsTables(t *testing.T, tables map[string]map[string]int, left ports, s *prove.Subnet) {
	t.Helper()
	compared := 0
	for _, a := range adaptersOf(left) {
		for _, b := range adaptersOf(left) {
			if a == b {
				continue
			}
			from, to := strings.Replace(a.name, " ", ":", 1), strings.Replace(b.name, " ", ":", 1)
			want := append(append([]string{from}, along(tables, left, a.at, b.name)...), to)
			got, _, why := s.Follow(from, to)
			if compared++; !slices.Equal(got, want) {
				t.Fatalf("opensm's tables lead over %v, the model over %v %s", want, got, why)
			}
		}
	}
	t.Logf("%d paths compared", compared)
}

// TestNueReaches: whatever cables are missing, opensm's tables by nue reach what cables join, as the model says, and buffers never
// wait in a circle.
func TestNueReaches(t *testing.T) {
	compared, lost := 0, 0
	for seed := range bounded.Times(4, 60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { // a simulator each
			c, l := nueReaches(t, seed)
			compared, lost = compared+c, lost+l
		})
	}
	t.Logf("%d pairs compared, %d of them lost", compared, lost)
	if lost == 0 || lost == compared {
		t.Error("all pairs are lost or none: the cuts show nothing")
	}
}

// nueReaches compares one fabric of which random cables are missing.
func nueReaches(t *testing.T, seed int) (compared, lost int) {
	p := planOf(t, "test.yaml", []string{smallDragonfly, smallTorus}[seed%2])
	whole := ibsimOf(t, p)
	_, all := without(whole, nil)
	cut := randomCut(rand.New(rand.NewPCG(11, uint64(seed))), all, []int{4, 7, 8, 2}[seed/2%4])
	fabric, left := without(whole, cut)
	files := subnetFiles(t, p)
	files["cables/cables.csv"] = unplugged(files["cables/cables.csv"], cut)
	tables := forwarding(t, fabric, files)
	if circular(left, tables) {
		t.Error("opensm's tables have a circle")
	}
	_, s := loadSubnet(t, files)
	ends := adaptersOf(left)
	for _, a := range ends {
		if !joinedTo(left, "n0 nic0", a.at) {
			continue // opensm runs on the first host, and routes what that is joined with
		}
		for _, b := range ends {
			if a == b {
				continue
			}
			reached := along(tables, left, a.at, b.name) != nil
			_, _, why := s.Follow(strings.Replace(a.name, " ", ":", 1), strings.Replace(b.name, " ", ":", 1))
			if compared++; !reached {
				lost++
			}
			if reached != (why == "") {
				t.Errorf("%s to %s: by opensm's tables %v, by the model %q", a.name, b.name, reached, why)
			}
		}
	}
	return compared, lost
}

// randomCut picks cables between switches, some of ten.
func randomCut(random *rand.Rand, all ports, ofTen int) map[[2]string]bool {
	cut := map[[2]string]bool{}
	for _, a := range slices.Sorted(maps.Keys(all)) {
		for _, port := range slices.Sorted(maps.Keys(all[a])) {
			if b := all[a][port]; all[b] != nil && a < b && random.IntN(10) < ofTen {
				cut[[2]string{a, b}] = true
			}
		}
	}
	return cut
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
