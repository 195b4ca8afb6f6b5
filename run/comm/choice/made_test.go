package choice

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
)

// ring is the text of a program of the ranks of key.
func ring(t testing.TB, op sched.Collective, n int) string {
	t.Helper()
	a, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(algo.Spec{Op: op, Ranks: n})
	if err != nil {
		t.Fatal(err)
	}
	return p.String()
}

func TestMadeProgramsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if list, note := loadMade(dir, key); list != nil || note != "" {
		t.Errorf("found %v in no directory; %s", list, note)
	}
	want := []Made{
		{Op: sched.AllReduce, From: 1 << 20, To: 1<<22 - 1, Form: "a ring", Program: ring(t, sched.AllReduce, 4), Took: 10, Instead: "direct",
			Would: 20},
		{Op: sched.AllReduce, From: 1 << 22, To: 1 << 62, Form: "a ring", Program: ring(t, sched.AllReduce, 4), Took: 10, Instead: "direct",
			Would: 20},
		{Op: sched.AllGather, From: 1 << 20, To: 1 << 62, Form: "a ring", Program: ring(t, sched.AllGather, 4), Took: 10, Instead: "direct",
			Would: 20},
	}
	path, err := KeepMade(dir, key, want)
	if err != nil {
		t.Fatal(err)
	}
	got, note := loadMade(dir, key)
	if note != "" || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %q", got, note)
	}
	p := NewPrograms(got)
	for _, x := range []struct {
		op    sched.Collective
		bytes int64
		made  int
	}{{sched.AllReduce, 1<<20 - 1, -1}, {sched.AllReduce, 1 << 20, 0}, {sched.AllReduce, 1<<22 - 1, 0}, {sched.AllReduce, 1 << 22, 1},
		{sched.AllGather, 1 << 40, 2}, {sched.ReduceScatter, 1 << 20, -1}} {
		program, m := p.For(x.op, 0, x.bytes)
		if (program != nil) != (x.made >= 0) || program != nil && (m != &p.list[x.made] || program.Op != x.op) {
			t.Errorf("%s of %d bytes: %v, want %d", x.op, x.bytes, m, x.made)
		}
		if again, _ := p.For(x.op, 0, x.bytes); again != program {
			t.Errorf("%s of %d bytes: parsed twice", x.op, x.bytes)
		}
	}
	// None at all takes the file away, also if there is none.
	for range 2 {
		if _, err := KeepMade(dir, key, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("still there: %v", err)
		}
	}
}

// Whatever is wrong with a file, it is not used, and the note names it.
func TestSpoiledProgramsAreNotUsed(t *testing.T) {
	dir := t.TempDir()
	good := Made{Op: sched.AllReduce, From: 1, To: 2, Program: ring(t, sched.AllReduce, 4)}
	for _, x := range []struct {
		spoil func(m *Made)
		note  string
	}{
		{func(m *Made) { m.Program = "not a program" }, "program 0"},
		{func(m *Made) { m.Program = ring(t, sched.AllReduce, 5) }, "of 5 ranks"},
		{func(m *Made) { m.Op = sched.AllGather }, "is for all-reduce"},
		{func(m *Made) { m.To = 0 }, "1 to 0 bytes"},
	} {
		m := good
		x.spoil(&m)
		if _, err := KeepMade(dir, key, []Made{m}); err != nil {
			t.Fatal(err)
		}
		if list, note := loadMade(dir, key); list != nil || !strings.Contains(note, x.note) || !strings.Contains(note, "programs-tcp-4") {
			t.Errorf("%v, %q; want a note with %q", list, note, x.note)
		}
	}
	path, err := KeepMade(dir, key, []Made{good})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut < len(whole)-2; cut += 97 {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if list, note := loadMade(dir, key); list != nil || note == "" {
			t.Errorf("%d bytes of %d: %v, %q", cut, len(whole), list, note)
		}
	}
	if err := os.Truncate(path, maxMade+1); err != nil {
		t.Fatal(err)
	}
	if _, note := loadMade(dir, key); !strings.Contains(note, "at most") {
		t.Errorf("a huge file: %q", note)
	}
}

func FuzzMade(f *testing.F) {
	dir := f.TempDir()
	path, err := KeepMade(dir, key, []Made{{Op: sched.AllReduce, From: 1, To: 2, Program: ring(f, sched.AllReduce, 4)}})
	if err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := decodeMade(text, key)
		if err != nil {
			return
		}
		p := NewPrograms(list)
		for i := range list {
			if program, _ := p.For(list[i].Op, list[i].Root, list[i].From); program == nil || program.Ranks != key.Ranks {
				t.Errorf("entry %d is not found", i)
			}
		}
	})
}
