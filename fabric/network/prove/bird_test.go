package prove

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// birdPart draws a condition on a network.
func birdPart(rng *rand.Rand, depth int) string {
	prefix := func() string {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rng.IntN(3)), byte(rng.IntN(2) * 128), 0}), 8+rng.IntN(12)).Masked().String()
	}
	set := func() string {
		p := prefix()
		bits := netip.MustParsePrefix(p).Bits()
		return "[ " + p + ", " + prefix() + "+, " + fmt.Sprintf("%s{%d,%d}", p, bits+rng.IntN(4), bits+4+rng.IntN(4)) + " ]"
	}
	if depth > 0 {
		a, b := birdPart(rng, depth-1), birdPart(rng, depth-1)
		return []string{a + " && " + b, a + " || " + b, "! (" + a + ")", "(" + a + ")"}[rng.IntN(4)]
	}
	return []string{"net ~ " + set(), "net !~ " + set(), "net = " + prefix(), "net != " + prefix(), "net ~ " + prefix(), "true"}[rng.IntN(6)]
}

// TestConditionsAreBIRDs: conditions drawn at random come to what BIRD says.
func TestConditionsAreBIRDs(t *testing.T) {
	bird, err := exec.LookPath("/usr/sbin/bird")
	if err != nil {
		t.Skip(err, "; Debian has it in bird2")
	}
	dir := t.TempDir()
	conf, control := filepath.Join(dir, "bird.conf"), filepath.Join(dir, "ctl")
	if err := os.WriteFile(conf, []byte("router id 10.0.0.1;\nprotocol device {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := bounded.Command(t, bird, "-c", conf, "-s", control, "-P", filepath.Join(dir, "pid")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ask := func(line string) string {
		out, err := bounded.Command(t, "/usr/sbin/birdc", "-s", control, line).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return lines[len(lines)-1]
	}
	defer ask("down")
	rng, yes := rand.New(rand.NewPCG(34, 1)), 0
	for range 300 {
		text := birdPart(rng, rng.IntN(4))
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rng.IntN(3)), byte(rng.IntN(2) * 128), 0}), 8+rng.IntN(17)).Masked()
		tokens, err := birdTokens(text)
		if err != nil {
			t.Fatal(err)
		}
		c := birdCode{in: tokens}
		is := c.expr()
		if c.err != nil || c.at != len(tokens) {
			t.Fatalf("%s: %v at %d", text, c.err, c.at)
		}
		want := ask("eval " + strings.ReplaceAll(text, "net ", p.String()+" "))
		if got := strings.ToUpper(fmt.Sprint(is(p, false))); got != want {
			t.Errorf("%s of %s: BIRD says %s, the model %s", text, p, want, got)
		}
		if want == "TRUE" {
			yes++
		}
	}
	if yes < 50 || yes > 250 {
		t.Errorf("%d of 300 are true", yes)
	}
}

// TestFiltersOfBIRD: filters as people write them decide by network and by where it comes from.
func TestFiltersOfBIRD(t *testing.T) {
	for text, want := range map[string][2]bool{ // a network of its own, one that BGP learnt
		`if source = RTS_DEVICE then accept; reject;`:                               {true, false},
		`if source ~ [ RTS_BGP, RTS_STATIC ] then accept; else reject;`:             {false, true},
		`krt_prefsrc = 10.0.0.1; accept;`:                                           {true, true},
		`if source != RTS_BGP then { bgp_community.add((65000,1)); accept "own"; }`: {true, false},
		`if net ~ [ 10.9.0.0/16+ ] then accept;`:                                    {false, false},
	} {
		tokens, err := birdTokens(text)
		if err != nil {
			t.Fatal(err)
		}
		c := birdCode{in: tokens}
		is := c.filter()
		p := netip.MustParsePrefix("10.1.0.0/24")
		if got := [2]bool{is(p, true), is(p, false)}; c.err != nil || got != want {
			t.Errorf("%s: %v %v, want %v", text, got, c.err, want)
		}
	}
	for _, text := range []string{`bgp_path.prepend(65000); accept;`, `if net.len > 24 then reject; accept;`,
		`if proto = "direct1" then accept;`,
		`return true;`, `if net ~ [ 10.0.0.0/16- ] then accept;`, `if net ~ [ 10.0.0.0/16{8,24} ] then accept;`} {
		tokens, err := birdTokens(text)
		if err != nil {
			t.Fatal(err)
		}
		c := birdCode{in: tokens}
		if c.filter(); c.err == nil {
			t.Errorf("%s is not modelled, and nothing is said of it", text)
		}
	}
}
