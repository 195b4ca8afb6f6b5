package choice

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

var key = Key{Hosts: "0123", Kind: "tcp", Ranks: 4, Cores: 2, Kernel: "6.1.0", Path: "AVX2"}

func TestSavedLinksAreLoaded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if _, note, ok := Load(dir, key); ok || note != "" {
		t.Errorf("found in no directory; %s", note)
	}
	links := desk(4)
	if err := Save(dir, key, links); err != nil {
		t.Fatal(err)
	}
	got, note, ok := Load(dir, key)
	if !ok || note != "" || !reflect.DeepEqual(got, links) {
		t.Errorf("%+v, %q, want %+v", got, note, links)
	}
	// Every part of the key counts.
	for i, other := range []Key{
		{"x", "tcp", 4, 2, "6.1.0", "AVX2"}, {"0123", "shm", 4, 2, "6.1.0", "AVX2"}, {"0123", "tcp", 5, 2, "6.1.0", "AVX2"},
		{"0123", "tcp", 4, 3, "6.1.0", "AVX2"}, {"0123", "tcp", 4, 2, "6.1.1", "AVX2"}, {"0123", "tcp", 4, 2, "6.1.0", "AVX-512"},
	} {
		if _, _, ok := Load(dir, other); ok {
			t.Errorf("key %d finds links of another", i)
		}
		// Even if the file is there under its name.
		if err := os.Link(filepath.Join(dir, key.name()), filepath.Join(dir, other.name())); err != nil {
			t.Fatal(err)
		}
		if _, note, ok := Load(dir, other); ok || !strings.Contains(note, "they belong to") {
			t.Errorf("key %d: %q", i, note)
		}
	}
}

// Whatever is wrong with a file, it is not used, and the note names it.
func TestSpoiledLinksAreNotUsed(t *testing.T) {
	dir := t.TempDir()
	if err := Save(dir, key, desk(4)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, key.name())
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spoil := func(text []byte) string {
		t.Helper()
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		_, note, ok := Load(dir, key)
		if ok || !strings.Contains(note, path) {
			t.Errorf("%q: used %v, note %q", text, ok, note)
		}
		return note
	}
	for n := range len(whole) - 2 { // all but the last brace and the end of its line
		spoil(whole[:n])
	}
	for want, change := range map[string][2]string{
		"version 2, not 1": {`"version": 1`, `"version": 2`},
		"unknown field":    {`"sync_us"`, `"sink_us"`},
		"cost -1 us":       {`"sync_us": 1`, `"sync_us": -1`},
		"4 ranks over":     {`"kind": "tcp",` + "\n" + `    "ranks": 4,` + "\n" + `    "cores": 2,` + "\n" + `    "sync`, `"kind": "udp",` + "\n" + `    "ranks": 4,` + "\n" + `    "cores": 2,` + "\n" + `    "sync`},
		"without a pace":   {`"paces": [`, `"paces": [], "paces": [`},
	} {
		text := strings.Replace(string(whole), change[0], change[1], 1)
		if want == "without a pace" {
			text = text[:strings.Index(text, `, "paces": [`)] + text[strings.Index(text, `"near"`)-len(",\n    "):]
		}
		if note := spoil([]byte(text)); !strings.Contains(note, want) {
			t.Errorf("%q, want %q", note, want)
		}
	}
	if note := spoil([]byte(strings.Repeat(" ", maxFile+1))); !strings.Contains(note, "more than 65536 bytes") {
		t.Error(note)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, note, ok := Load(dir, key); ok || !strings.Contains(note, "not read") {
		t.Errorf("a directory: %q", note)
	}
}

// Readers see one writer's file or another's, never a part of one.
func TestWritersAtOnce(t *testing.T) {
	dir := t.TempDir()
	if err := Save(dir, key, desk(4)); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			l := desk(4)
			l.Sync = float64(w)
			for range 20 {
				if err := Save(dir, key, l); err != nil {
					t.Error(err)
				}
				if _, note, ok := Load(dir, key); !ok {
					t.Error(note)
				}
			}
		})
	}
	group.Wait()
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}

// Any text is refused or gives links that can be used.
func FuzzDecode(f *testing.F) {
	good, err := json.Marshal(file{version, key, desk(4)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(strings.Replace(string(good), "4.3e-06", "1e308", 1)))
	f.Add([]byte(strings.Replace(string(good), `"cores":2,"sync`, `"cores":-2,"sync`, 1)))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := decode(text, key)
		if err != nil {
			return
		}
		if l.Ranks != key.Ranks || l.Check() != nil {
			t.Fatalf("%+v", l)
		}
		for _, kind := range []string{"shm", "tcp"} {
			p, err := New(l, kind, 4, []int{0, 0, 1, 1}).Pick(1, 0, 1<<40, false)
			if err != nil || p.Predicted < 0 {
				t.Fatalf("%+v, %v", p, err)
			}
		}
	})
}
