package draw

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// element is what the tests need to know of a drawn element.
type element struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Inside  []element  `xml:",any"`
}

func (e *element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// add sums a data attribute over an element and all inside it.
func (e *element) add(name string) int {
	n, _ := strconv.Atoi(e.attr(name))
	for i := range e.Inside {
		n += e.Inside[i].add(name)
	}
	return n
}

// reporter is what *testing.T and *rapid.T have in common here.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// parse refuses what is not one well-formed document.
func parse(t reporter, data []byte) *element {
	t.Helper()
	var root element
	d := xml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&root); err != nil {
		t.Fatalf("not well-formed: %v", err)
	}
	for {
		next, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if blank, ok := next.(xml.CharData); err != nil || !ok || len(bytes.TrimSpace(blank)) > 0 {
			t.Fatalf("something follows the document: %v, %v", next, err)
		}
	}
	return &root
}

func draw(t *testing.T, g *topo.Graph, o Options) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := Cluster(&out, g, o); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// readable checks that every text lies in the picture and none over another.
func readable(t reporter, p *page) {
	t.Helper()
	whole := svg.Box{W: p.width, H: p.y + margin}
	texts := p.c.Texts()
	bad := 0
	for i, a := range texts {
		if !a.Box.Inside(whole) {
			t.Errorf("%q at %.0f,%.0f is cut off: the picture is %.0f × %.0f", a.Text, a.Box.X, a.Box.Y, whole.W, whole.H)
			bad++
		}
		for _, b := range texts[:i] {
			if a.Box.Overlaps(b.Box) {
				t.Errorf("%q at %.0f,%.0f lies over %q at %.0f,%.0f", a.Text, a.Box.X, a.Box.Y, b.Text, b.Box.X, b.Box.Y)
				bad++
			}
		}
		if bad > 5 {
			t.Fatal("and so on")
		}
	}
}

// accounted checks that each panel draws or counts every switch, chip and host of its network.
func accounted(t reporter, g *topo.Graph, root *element) {
	t.Helper()
	parts := partition(g)
	covered := 0
	for i := range root.Inside {
		e := &root.Inside[i]
		if e.attr("class") != "panel" {
			continue
		}
		if e.attr("data-panel") == "apart" {
			covered += e.add("data-hosts")
			continue
		}
		pn := parts[0]
		parts = parts[1:]
		if got := e.add("data-switches"); got != len(pn.switches) {
			t.Errorf("panel %q accounts for %d switches of %d", pn.name, got, len(pn.switches))
		}
		if got := e.add("data-chips"); got != len(pn.chips) {
			t.Errorf("panel %q accounts for %d chips of %d", pn.name, got, len(pn.chips))
		}
		if got := e.add("data-hosts"); got != len(pn.hosts) {
			t.Errorf("panel %q accounts for %d hosts of %d", pn.name, got, len(pn.hosts))
		}
	}
	joined := map[topo.HostID]bool{}
	for _, pn := range partition(g) {
		for _, h := range pn.hosts {
			joined[h] = true
		}
	}
	if len(parts) > 0 {
		t.Errorf("%d networks are not drawn", len(parts))
	}
	if apart := len(g.Hosts) - len(joined); covered != apart && !(len(g.Hosts) == 1 && apart == 1) {
		t.Errorf("%d hosts are joined to nothing, %d of them drawn", apart, covered)
	}
}

// TestEveryPicture draws every preset, example and import, and checks what must
// hold for each. With WEFT_TEST_DRAW set to a folder it leaves the pictures there.
func TestEveryPicture(t *testing.T) {
	for name, g := range everything(t) {
		t.Run(name, func(t *testing.T) {
			p, err := clusterPage(g, Options{})
			if err != nil {
				t.Fatal(err)
			}
			readable(t, p)
			out := draw(t, g, Options{})
			accounted(t, g, parse(t, out))
			if again := draw(t, g, Options{}); !bytes.Equal(out, again) {
				t.Error("two drawings of one graph differ")
			}
			if len(out) > 1e6 {
				t.Errorf("%d bytes", len(out))
			}
			if dir := os.Getenv("WEFT_TEST_DRAW"); dir != "" {
				if err := os.WriteFile(filepath.Join(dir, name+".svg"), out, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestWidths draws at widths from a phone's to a wall's.
func TestWidths(t *testing.T) {
	for name, g := range pictures(t) {
		for _, w := range []int{1, 900, 1200, 2400, 5000} {
			p, err := clusterPage(g, Options{Width: w})
			if err != nil {
				t.Fatal(err)
			}
			t.Run(name+"-"+strconv.Itoa(w), func(t *testing.T) { readable(t, p) })
		}
	}
}

// TestHostInsides draws one host of every sort by itself and below its cluster;
// every part of it has a box.
func TestHostInsides(t *testing.T) {
	for name, g := range everything(t) {
		if len(g.Hosts) == 0 {
			continue
		}
		seen := map[string]bool{}
		for h := range g.Hosts {
			if seen[g.Hosts[h].Model] {
				continue
			}
			seen[g.Hosts[h].Model] = true
			t.Run(name+"/"+g.Hosts[h].Name, func(t *testing.T) {
				p, err := hostPage(g, topo.HostID(h), Options{})
				if err != nil {
					t.Fatal(err)
				}
				readable(t, p)
				var out bytes.Buffer
				if err := Host(&out, g, topo.HostID(h), Options{}); err != nil {
					t.Fatal(err)
				}
				parse(t, out.Bytes())
				for _, n := range g.HostNodes(topo.HostID(h)) {
					if want := `data-part="` + svg.Escape(n.Name) + `"`; strings.Count(out.String(), want) != 1 {
						t.Errorf("part %q has %d boxes", n.Name, strings.Count(out.String(), want))
					}
				}
				if len(g.Hosts) > 1 {
					both, err := clusterPage(g, Options{Hosts: []string{g.Hosts[h].Name}})
					if err != nil {
						t.Fatal(err)
					}
					readable(t, both)
				}
			})
		}
	}
}

func TestUnknownHost(t *testing.T) {
	g := railFabric(t, "r", 2, 2, 1, 0, 2)
	err := Cluster(io.Discard, g, Options{Hosts: []string{"n9"}})
	if err == nil || !strings.Contains(err.Error(), `"n9"`) || !strings.Contains(err.Error(), `"n0" to "n3"`) {
		t.Errorf("got %v", err)
	}
	if err := Host(io.Discard, g, 99, Options{}); err == nil || !strings.Contains(err.Error(), "99") {
		t.Errorf("got %v", err)
	}
}

func TestEmptyGraph(t *testing.T) {
	g := must(t, topo.NewBuilder(""))
	parse(t, draw(t, g, Options{}))
}

// TestHostileNames draws names that try to be markup, to be invisible, or to be endless.
func TestHostileNames(t *testing.T) {
	names := []string{"</svg><script>alert(1)</script>", `"&'<>`, "a\x00b\x1b[31m", "\xff\xfe", strings.Repeat("x", 5000), "名前", "\u202eevil",
		"]]>", "<!--"}
	b := topo.NewBuilder(names[0])
	b.Fabric(topo.Fabric{Name: names[1], Family: topo.Irregular})
	c := b.Class(topo.Class{Kind: topo.InfiniBand, Gen: names[0], Rate: 1})
	for i, n := range names {
		s := sw(b, n, names[(i+1)%len(names)], 1, topo.None, topo.None, topo.None)
		nic := slim(b, strings.NewReplacer(":", "", " ", "", "\t", "", "\n", "").Replace("h"+n), n, topo.None, 1, 1, 1)
		b.Link(topo.Link{A: nic[0], B: s, Class: c})
	}
	g := must(t, b)
	p, err := clusterPage(g, Options{Title: names[0]})
	if err != nil {
		t.Fatal(err)
	}
	readable(t, p)
	out := draw(t, g, Options{Title: names[0], Hosts: []string{g.Hosts[0].Name}})
	root := parse(t, out)
	if bytes.Contains(out, []byte("<script")) {
		t.Error("a name became markup")
	}
	accounted(t, g, root)
}

// TestStyleStaysInside checks that every rule names the root class, so that a
// picture inside a page changes nothing else on it, and that no element has an id.
func TestStyleStaysInside(t *testing.T) {
	for _, line := range strings.Split(style, "\n") {
		for _, rule := range strings.Split(line, "}") {
			selector, _, ok := strings.Cut(rule, "{")
			if !ok || strings.HasPrefix(selector, "@media") || strings.HasPrefix(selector, "--") {
				continue
			}
			for _, s := range strings.Split(selector, ",") {
				if !strings.HasPrefix(strings.TrimSpace(s), ".weft-draw") {
					t.Errorf("rule %q reaches outside the picture", s)
				}
			}
		}
	}
	out := draw(t, railFabric(t, "r", 2, 2, 1, 0, 2), Options{})
	if bytes.Contains(out, []byte(` id="`)) || bytes.Contains(out, []byte("href")) {
		t.Error("the picture has ids or references")
	}
}

// TestLikeThisIsTrue makes the last pod but one smaller: it must not be counted among its likes.
func TestLikeThisIsTrue(t *testing.T) {
	sigs := make([]string, 20)
	for i := range sigs {
		sigs[i] = "a"
	}
	sigs[13] = "b"
	for _, pk := range choices(sigs, 5) {
		if pk.index < 0 && pk.from <= 13 && 13 < pk.to {
			t.Error("the odd one is elided though there is room for it")
		}
	}
	v := &tiersView{pn: &panel{kind: topo.Switch}}
	e := &elision{}
	v.describe(e, []string{"a", "b"}, "a")
	if strings.Contains(strings.Join(e.lines, " "), "like this") {
		t.Errorf("unlike things are said to be alike: %q", e.lines)
	}
}

// TestChoices checks that every index is shown or elided exactly once, in order, for all small cases.
func TestChoices(t *testing.T) {
	for n := 0; n < 12; n++ {
		for kinds := 0; kinds < 1<<n; kinds += 1 + kinds/7 {
			sigs := make([]string, n)
			for i := range sigs {
				sigs[i] = strconv.Itoa(kinds >> i & 1)
			}
			for most := 1; most < 8; most++ {
				next, alone := 0, 0
				for _, pk := range choices(sigs, most) {
					if pk.index >= 0 {
						if pk.index != next {
							t.Fatalf("%v at most %d: %d comes after %d", sigs, most, pk.index, next-1)
						}
						next++
						continue
					}
					if pk.from != next || pk.to <= pk.from {
						t.Fatalf("%v at most %d: range %d to %d after %d", sigs, most, pk.from, pk.to, next-1)
					}
					if pk.to-pk.from == 1 {
						alone++
					}
					next = pk.to
				}
				if next != n {
					t.Fatalf("%v at most %d: %d of %d", sigs, most, next, n)
				}
			}
		}
	}
}

func TestSpan(t *testing.T) {
	for _, c := range []struct{ names, want string }{
		{"leaf0", "leaf0"}, {"leaf0 leaf1 leaf2 leaf3", "leaf0-3"}, {"leaf0 leaf2 leaf4", "leaf0,2…4"},
		{"n008 n009 n010 n011", "n008-011"}, {"l0a l1a l2a", "l[0-2]a"}, {"n0 n1 n2 ufm0 ufm1", "n0-2, ufm0-1"},
		{"a b", "a, b"}, {"a b c d e", "a … e"}, {"n0 n1 n5 n6 n9 n20", "n0 … n20"}, {"", ""},
		{"p0-l7 p1-l7", "p[0-1]-l7"}, {"x99999999999999999999 x99999999999999999998", "x99999999999999999999, x99999999999999999998"},
	} {
		names := strings.Fields(c.names)
		if got := span(len(names), func(i int) string { return names[i] }); got != c.want {
			t.Errorf("%s: %q, want %q", c.names, got, c.want)
		}
	}
}

// TestFiguresInPicture checks numbers that can be counted by hand: 4 pods of 32 hosts
// with 8 NICs each are 1,024 links up from hosts at 50 GB/s, 51.2 TB/s, and as many from the leaves.
func TestFiguresInPicture(t *testing.T) {
	p, err := clusterPage(railFabric(t, "r", 4, 32, 1, 0, 16), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, l := range p.c.Texts() {
		all.WriteString(l.Text + " ")
	}
	for _, want := range []string{"1,024 GPUs (H100-SXM), 128 hosts (dgx-h100), 48 switches",
		"host to leaf: 1,024 × NDR 400 Gb/s (50 GB/s) each way; 51.2 TB/s in all",
		"leaf to spine: 1,024 × NDR", "oversubscription 1:1: 51.2 TB/s down, 51.2 TB/s up", "leaf0-7", "8 × QM9700", "n96-127", "rail 7"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
}

// TestLargest draws 131,072 GPUs in under 1 MB. (64 KB in 0.2 s, 2026-11-15.)
func TestLargest(t *testing.T) {
	if !bounded.Long() {
		t.Skip("builds 131,072 GPUs; make long does")
	}
	g := example(t, "../../examples/rail-131k.yaml")
	out := draw(t, g, Options{})
	if len(out) > 1e6 {
		t.Errorf("%d bytes for %d GPUs and %d links", len(out), g.Count(topo.GPU), len(g.Links))
	}
	accounted(t, g, parse(t, out))
	p, err := clusterPage(g, Options{})
	if err != nil {
		t.Fatal(err)
	}
	readable(t, p)
	if dir := os.Getenv("WEFT_TEST_DRAW"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "rail-131k.svg"), out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
