package draw

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// count prints a number with separators and its noun: "1,024 GPUs".
func count(n int, noun string) string {
	if n != 1 {
		switch {
		case strings.HasSuffix(noun, "ch"):
			noun += "es"
		case strings.HasSuffix(noun, "leaf"):
			noun = strings.TrimSuffix(noun, "f") + "ves"
		default:
			noun += "s"
		}
	}
	return thousands(n) + " " + noun
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// span names a sorted list of names by runs: "leaf0-31" where they count up by
// one, "leaf0,2…14" where by more, "leaf[0-7]a" where the number is not last.
// More than three runs are named by the first and the last name.
func span(n int, at func(int) string) string {
	var runs []string
	for i := 0; i < n; {
		if len(runs) == 3 {
			return at(0) + " … " + at(n-1)
		}
		run, next := runFrom(i, n, at)
		runs = append(runs, run)
		i = next
	}
	if len(runs) == n && n > 2 {
		return at(0) + " … " + at(n-1)
	}
	return strings.Join(runs, ", ")
}

// runFrom names the longest run of evenly counted names from i on, and says where the next begins.
func runFrom(i, n int, at func(int) string) (string, int) {
	if i+1 == n {
		return at(i), n
	}
	prefix, first, suffix, ok := differ(at(i), at(i+1))
	if !ok {
		return at(i), i + 1
	}
	number := func(k int) (int, string, bool) {
		digits, ok := strings.CutPrefix(at(k), prefix)
		if !ok {
			return 0, "", false
		}
		digits, ok = strings.CutSuffix(digits, suffix)
		if !ok || digits == "" || len(digits) > 9 {
			return 0, "", false
		}
		for _, c := range []byte(digits) {
			if c < '0' || c > '9' {
				return 0, "", false
			}
		}
		v, err := strconv.Atoi(digits)
		return v, digits, err == nil
	}
	start, _, _ := number(i)
	second, secondDigits, ok := number(i + 1)
	step := second - start
	if !ok || step <= 0 {
		return at(i), i + 1
	}
	j, last := i+1, secondDigits
	for k := i + 2; k < n; k++ {
		v, digits, ok := number(k)
		if !ok || v-start != step*(k-i) {
			break
		}
		j, last = k, digits
	}
	body := first + "-" + last
	if step > 1 {
		if j == i+1 {
			return at(i), i + 1
		}
		body = first + "," + secondDigits + "…" + last
	}
	if suffix == "" {
		return prefix + body, j + 1
	}
	return prefix + "[" + body + "]" + suffix, j + 1
}

// differ finds the one number in which two names differ, and what stands before and behind it.
func differ(a, b string) (prefix, digits, suffix string, ok bool) {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	for i > 0 && isDigit(a[i-1]) { // the whole number, also where its first digits agree
		i--
	}
	j := i
	for j < len(a) && isDigit(a[j]) {
		j++
	}
	prefix, digits, suffix = a[:i], a[i:j], a[j:]
	return prefix, digits, suffix, digits != "" && len(digits) <= 9 && strings.HasSuffix(b, suffix) && len(b) >= i+len(suffix)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// short is the end of a name that tells it from its neighbours: its last
// number, the name itself if it is short, or its last five characters.
func short(name string) string {
	i := len(name)
	for i > 0 && isDigit(name[i-1]) {
		i--
	}
	if n := len(name) - i; n > 0 && n <= 4 {
		return name[i:]
	}
	if r := []rune(name); len(r) > 8 {
		return "…" + string(r[len(r)-5:])
	}
	return name
}

// spanAll joins a list for a hover text, which may be long but not endless.
func spanAll(n int, at func(int) string) string {
	const most = 12
	var b strings.Builder
	for i := range n {
		if n > most && i == most-1 {
			fmt.Fprintf(&b, ", … %s", at(n-1))
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(at(i))
	}
	return b.String()
}

func kindTitle(k topo.LinkKind) string {
	switch k {
	case topo.NVLink:
		return "NVLink"
	case topo.C2C:
		return "NVLink-C2C"
	case topo.XGMI:
		return "xGMI"
	case topo.ICI:
		return "ICI"
	case topo.PCIe:
		return "PCIe"
	case topo.SMP:
		return "between or inside sockets"
	case topo.InfiniBand:
		return "InfiniBand"
	case topo.Ethernet:
		return "Ethernet"
	}
	return k.String()
}

// genTitle prints a generation as people write it: "NVLink 4", "PCIe 5 x16", "NDR".
func genTitle(c *topo.Class) string {
	name := c.Gen
	for _, k := range []struct{ key, title string }{{"nvlink", "NVLink"}, {"pcie", "PCIe"}, {"xgmi", "xGMI"}, {"ici", "ICI"}, {"upi", "UPI"},
		{"qpi", "QPI"}, {"c2c", "C2C"}} {
		if rest, ok := strings.CutPrefix(strings.ToLower(c.Gen), k.key); ok {
			name = strings.TrimSpace(k.title + " " + strings.TrimLeft(rest, "-_ "))
			break
		}
	}
	switch c.Kind {
	case topo.PCIe:
		if c.Lanes > 0 {
			name += fmt.Sprintf(" x%d", c.Lanes)
		}
	case topo.InfiniBand:
		name = strings.ToUpper(name)
	case topo.Ethernet:
		if speed, ok := strings.CutSuffix(strings.ToLower(name), "gbe"); ok {
			name = speed + "GbE"
		}
	}
	if name == "" {
		name = kindTitle(c.Kind)
	}
	return name
}

// rateTitle prints what one link carries. Ports of networks are known by their bits.
func rateTitle(c *topo.Class) string {
	if !c.Stated() {
		return "rate unknown"
	}
	if c.Kind == topo.Ethernet && strings.HasSuffix(genTitle(c), "GbE") { // the name says the bits
		return fmt.Sprintf("%s (%s) each way", genTitle(c), c.Rate)
	}
	if c.Kind.Network() {
		return fmt.Sprintf("%s %s (%s) each way", genTitle(c), bits(c.Rate), c.Rate)
	}
	return fmt.Sprintf("%s, %s each way", genTitle(c), c.Rate)
}

// bits prints a rate as whole gigabits where it has a thousand or more of them: 1600 Gb/s
// is what is written on the port.
func bits(r unit.Rate) string {
	if b := r.Bits(); b >= 1e12 && b < 1e13 {
		return strconv.FormatFloat(float64(b)/1e9, 'f', -1, 64) + " Gb/s"
	}
	return r.Bits().String()
}

// tally counts links by class.
type tally struct {
	links int
	rate  unit.Rate
	by    map[topo.ClassID]int
}

func (t *tally) add(g *topo.Graph, l topo.LinkID) {
	n := int(g.Links[l].Count)
	t.links += n
	t.rate += g.Rate(l)
	if t.by == nil {
		t.by = map[topo.ClassID]int{}
	}
	t.by[g.Links[l].Class] += n
}

func (t *tally) merge(o *tally) {
	t.links += o.links
	t.rate += o.rate
	if t.by == nil {
		t.by = map[topo.ClassID]int{}
	}
	for c, n := range o.by {
		t.by[c] += n
	}
}

// classes lists the classes counted, in the graph's order.
func (t *tally) classes() []topo.ClassID {
	list := make([]topo.ClassID, 0, len(t.by))
	for c := range t.by {
		list = append(list, c)
	}
	slices.Sort(list)
	return list
}

// kind is the kind of the class with the most links, for its colour.
func (t *tally) kind(g *topo.Graph) topo.LinkKind {
	best, most := topo.LinkKind(0), 0
	for _, c := range t.classes() {
		if t.by[c] > most {
			best, most = g.Classes[c].Kind, t.by[c]
		}
	}
	return best
}

// text says what the links are: "32 × NDR 400 Gb/s (50 GB/s) each way".
func (t *tally) text(g *topo.Graph) string {
	var parts []string
	for i, c := range t.classes() {
		if i == 3 {
			parts = append(parts, fmt.Sprintf("and %d more sorts", len(t.by)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s × %s", thousands(t.by[c]), rateTitle(&g.Classes[c])))
	}
	return strings.Join(parts, "; ")
}

// models joins the models of a list of nodes: "8 × QM9700", or "8 switches" where unknown.
func models(n int, model func(int) string, noun string) string {
	byModel := map[string]int{}
	var order []string
	for i := range n {
		m := model(i)
		if byModel[m] == 0 {
			order = append(order, m)
		}
		byModel[m]++
	}
	var parts []string
	for i, m := range order {
		if i == 2 && len(order) > 3 {
			parts = append(parts, fmt.Sprintf("%d more models", len(order)-i))
			break
		}
		if m == "" {
			parts = append(parts, count(byModel[m], noun))
		} else {
			parts = append(parts, fmt.Sprintf("%s × %s", thousands(byModel[m]), m))
		}
	}
	return strings.Join(parts, ", ")
}

// tierTitle names a row of switches.
func tierTitle(kind topo.Kind, tier int) string {
	if kind == topo.NVSwitch {
		if tier <= 1 {
			return "NVSwitches"
		}
		return fmt.Sprintf("NVSwitches, tier %d", tier)
	}
	switch tier {
	case 1:
		return "Leaf"
	case 2:
		return "Spine"
	case 3:
		return "Core"
	}
	return fmt.Sprintf("Tier %d", tier)
}

func tierWord(kind topo.Kind, tier int) string {
	if kind == topo.NVSwitch {
		return "NVSwitch"
	}
	switch tier {
	case 1, 2, 3:
		return strings.ToLower(tierTitle(kind, tier))
	}
	return fmt.Sprintf("tier %d switch", tier)
}
