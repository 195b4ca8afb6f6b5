package network

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo/format"
)

var update = flag.Bool("update", false, "rewrite testdata/wrong.txt; read the difference before you commit it")

// wrong is a case of testdata/wrong.txt: an intent, the files beside it, and what
// is said of it.
//
//	# its name
//	the cluster file
//	++ a file beside it
//	----
//	the first error
type wrong struct {
	name, text, want string
	files            map[string]string
}

func readWrong(t *testing.T, data string) (out []*wrong) {
	t.Helper()
	var w *wrong
	into := ""
	for line := range strings.Lines(data) {
		switch text := strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(text, "# ") && into != "++ test.lock":
			w, into = &wrong{name: text[2:], files: map[string]string{}}, "text"
			out = append(out, w)
		case strings.HasPrefix(text, "++ "):
			into = text
		case text == "----":
			into = "want"
		case into == "text":
			w.text += line
		case into == "want":
			w.want = strings.TrimSpace(w.want + line)
		default:
			w.files[into[3:]] += line
		}
	}
	return out
}

// imported is what a case means by the file fabric.txt: an InfiniBand fabric as ibnetdiscover prints it.
func imported(t *testing.T) string {
	t.Helper()
	c := parse(t, "name: f\nhosts: {\"n[0-7]\": dgx-h100}\nfabric: {family: rail, switch: QM9700}\n", nil)
	d, err := format.Find("ibnetdiscover")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := d.Encode(&b, c.Graph); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// first is the first error of several.
func first(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

// TestWrongIntentsAreRefused: each intent of testdata/wrong.txt is refused with
// file, line, value and a fix.
func TestWrongIntentsAreRefused(t *testing.T) {
	const file = "testdata/wrong.txt"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cases, fabric := readWrong(t, string(data)), imported(t)
	located := regexp.MustCompile(`^[a-z0-9.]+:[0-9]+: `)
	var out strings.Builder
	for _, w := range cases {
		c, err := cluster.Parse("test.yaml", []byte(w.text), func(name string) ([]byte, error) {
			if s, ok := w.files[name]; ok {
				return []byte(strings.ReplaceAll(s, "@fabric\n", fabric)), nil
			}
			return nil, fmt.Errorf("there is no file %s", name)
		})
		var lock *Lock
		if text, ok := w.files["test.lock"]; ok && err == nil {
			lock, err = ParseLock("test.lock", []byte(text))
		}
		if err == nil {
			_, err = Make("test.yaml", c, lock)
		}
		got := "accepted"
		if err != nil {
			got = first(err)
		}
		if got != w.want && !*update {
			t.Errorf("%s:\n got %s\nwant %s", w.name, got, w.want)
		}
		if !located.MatchString(got) {
			t.Errorf("%s: no file and line: %s", w.name, got)
		}
		fmt.Fprintf(&out, "# %s\n%s", w.name, w.text)
		for name, text := range w.files {
			fmt.Fprintf(&out, "++ %s\n%s", name, text)
		}
		fmt.Fprintf(&out, "----\n%s\n\n", got)
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.TrimSuffix(out.String(), "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d wrong intents", len(cases))
}

// TestIntentsThatSurprise: what is allowed but unusual is accepted, with a note.
func TestIntentsThatSurprise(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"network: {storage: {vlan: 1}}", "vlan 1"},
		{"network: {backend: {mtu: 1500}}", "4096 bytes"},
		{"network: {backend: {prefix: 8.8.0.0/16}}", "public"},
		{"network: {roce: {dscp: 56, priority: 7}}", "control traffic"},
		{"network: {routing: {bfd: 50ms x3}}", "under 100 ms"},
	} {
		p := plan(t, roce("n[0-7]", x.text))
		if !strings.Contains(strings.Join(p.Warnings, "\n"), x.want) {
			t.Errorf("%s: notes are %q, want %q", x.text, p.Warnings, x.want)
		}
	}
}

// TestNumbersOfTheGoneStay: a host that is gone keeps its number in the lock, so
// that a new one does not get its address.
func TestNumbersOfTheGoneStay(t *testing.T) {
	lock := func(text string, old *Lock) *Lock {
		t.Helper()
		p, err := Make("test.yaml", parse(t, text, nil), old)
		if err != nil {
			t.Fatal(err)
		}
		l, err := ParseLock("lock", p.Lock())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := lock(roce("n[0-3]", ""), nil)
	l = lock(roce("n[0-2]", ""), l)
	l = lock(roce("n[0-2,9]", ""), l)
	if l.Hosts["n3"] != 3 || l.Hosts["n9"] != 4 {
		t.Errorf("n3 is %d and n9 is %d, want 3 and 4", l.Hosts["n3"], l.Hosts["n9"])
	}
}
