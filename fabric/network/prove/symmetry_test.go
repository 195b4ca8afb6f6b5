package prove_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/internal/bounded"
)

// mistakes change one line of a random switch or host, each in a way that some property reads.
var mistakes = []struct{ file, old, new string }{
	{"frr/frr.conf", " interface v6only peer-group FABRIC", " peer-group FABRIC"}, // a session less
	{"frr/frr.conf", "maximum-paths 64", "maximum-paths 1"},
	{"frr/frr.conf", "redistribute connected route-map OURS", "!"},
	{"frr/frr.conf", " bgp bestpath as-path multipath-relax", " !"},
	{"frr/frr.conf", "router bgp 42000", "router bgp 42001"},
	{"frr/frr.conf", "router bgp 42000100", "router bgp 4200010005\n!"}, // a number that another leaf has
	{"etc/udev/rules.d/60-weft-mtu.rules", `ATTR{mtu}="9216"`, `ATTR{mtu}="1500"`},
	{"etc/sonic/config_db.json", `"pfc_enable": "3"`, `"pfc_enable": ""`},
	{"etc/sonic/config_db.json", `"26": "3"`, `"26": "0"`},
	{"etc/netplan/60-weft.yaml", "mtu: 9000", "mtu: 4000"},
	{"etc/netplan/60-weft.yaml", "- {to: 10.160", "# - {to: 10.160"},
}

// mistake makes one in a file drawn at random.
func mistake(rng *rand.Rand, files map[string]string) string {
	m := mistakes[rng.IntN(len(mistakes))]
	var paths []string
	for path, text := range files {
		if strings.HasSuffix(path, m.file) && strings.Contains(text, m.old) {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return "nothing"
	}
	slices.Sort(paths)
	path := paths[rng.IntN(len(paths))]
	lines := strings.Split(files[path], "\n")
	var at []int
	for i, l := range lines {
		if strings.Contains(l, m.old) {
			at = append(at, i)
		}
	}
	i := at[rng.IntN(len(at))]
	lines[i] = strings.Replace(lines[i], m.old, m.new, 1)
	files[path] = strings.Join(lines, "\n")
	return path + ": " + lines[i]
}

// TestSymmetryIsExact: on fabrics of several shapes with mistakes at random places, what is decided by symmetry is,
// case by case and counterexample by counterexample, what is decided class by class. Untouched fabrics fold.
func TestSymmetryIsExact(t *testing.T) {
	shapes := []string{
		"name: c\nhosts: {\"n[0-15]\": hgx-h100}\nfabric: {family: rail, pod: 4, leaf: {switch: SN5600-400, down: 4, up: 4}, spine: {switch: SN5600-400, count: 2}, link: 400gbe}\n",
		"name: c\nhosts: {\"n[0-15]\": hgx-h100}\nfabric: {family: rail, tiers: 3, pod: 4, switch: SN5600-400, link: 400gbe}\n",
		"name: c\nhosts: {\"n[0-11]\": hgx-h100}\nfabric: {family: fat-tree, leaf: {switch: SN5600-400, down: 8, up: 4}, spine: {switch: SN5600-400, count: 4}, link: 400gbe}\n",
		sonicFabric(8, 4),
	}
	folded, refuted := 0, 0
	for k, shape := range shapes {
		p := planOf(t, "c.yaml", shape)
		areas, clean := areasOf(p), texts(t, p)
		r := load(t, clean).Prove(areas, prove.Options{Failures: true})
		t.Logf("shape %d: %d classes, %d decided", k, r.Classes, r.Decided)
		if r.Decided*4 > r.Classes {
			t.Errorf("shape %d: %d of %d classes are decided; they are alike", k, r.Decided, r.Classes)
		}
		for seed := range uint64(bounded.Times(8, 200)) {
			rng := rand.New(rand.NewPCG(seed, uint64(k)))
			files := map[string]string{}
			for path, text := range clean {
				files[path] = text
			}
			var made []string
			for range rng.IntN(4) {
				made = append(made, mistake(rng, files))
			}
			n := load(t, files)
			fold, each := n.Prove(areas, prove.Options{Failures: true}), n.Prove(areas, prove.Options{Failures: true, Each: true})
			if fold.Decided < fold.Classes {
				folded++
			}
			if !each.Holds() {
				refuted++
			}
			if fold.Decided = each.Decided; !reflect.DeepEqual(fold, each) {
				t.Errorf("shape %d, seed %d, %q:\n%s\nclass by class:\n%s", k, seed, made, lines(fold), lines(each))
			}
		}
	}
	if folded < 6 || refuted < 6 {
		t.Errorf("%d folded, %d refuted: too few to compare", folded, refuted)
	}
	t.Logf("%d folded, %d refuted", folded, refuted)
}

func lines(r *prove.Report) string {
	var out strings.Builder
	for _, v := range r.Verdicts {
		fmt.Fprintf(&out, "%s: %d of %d: %v\n", v.Property, v.Broken, v.Cases, v.Counter)
	}
	return out.String()
}
