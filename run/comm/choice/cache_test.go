package choice

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/predict/cost"
)

var key = Key{Hosts: "0123", Kind: "tcp", Ranks: 4, Cores: 2, Kernel: "6.1.0", Path: "AVX2"}

// measured is what ranks of such a host may have found.
func measured(busy float64, when int) figures {
	return figures{When: time.Date(2026, 11, 16, 0, 0, when, 0, time.UTC), Busy: busy, Cores: 2, Sync: 1 + busy,
		Paces: []cost.Pace{{Traffic: 320 << 10, Byte: 4.3e-6}, {Traffic: 256 << 20, Byte: 42e-6}},
		Near:  exchange{Small: 7 * busy, More: 6, Large: 90 * busy}}
}

func filed(f figures) file { return file{Version: version, Key: key, Made: 1, Kept: f} }

func TestSavedLinksAreLoaded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if f, note := load(dir, key); f.Made > 0 || f.Key != key || note != "" {
		t.Errorf("found in no directory; %s", note)
	}
	want := filed(measured(1, 2))
	if err := save(dir, want); err != nil {
		t.Fatal(err)
	}
	got, note := load(dir, key)
	if note != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %q, want %+v", got, note, want)
	}
	// Every part of the key counts.
	for i, other := range []Key{
		{"x", "tcp", 4, 0, 2, "6.1.0", "AVX2"}, {"0123", "shm", 4, 0, 2, "6.1.0", "AVX2"}, {"0123", "tcp", 4, 2, 2, "6.1.0", "AVX2"},
		{"0123", "tcp", 5, 0, 2, "6.1.0", "AVX2"},
		{"0123", "tcp", 4, 0, 3, "6.1.0", "AVX2"}, {"0123", "tcp", 4, 0, 2, "6.1.1", "AVX2"}, {"0123", "tcp", 4, 0, 2, "6.1.0", "AVX-512"},
	} {
		if f, _ := load(dir, other); f.Made > 0 {
			t.Errorf("key %d finds links of another", i)
		}
		// Even if the file is there under its name.
		if err := os.Link(filepath.Join(dir, key.name()), filepath.Join(dir, other.name())); err != nil {
			t.Fatal(err)
		}
		if f, note := load(dir, other); f.Made > 0 || !strings.Contains(note, "they belong to") {
			t.Errorf("key %d: %q", i, note)
		}
	}
}

// Whatever is wrong with a file, it is not used, and the note names it.
func TestSpoiledLinksAreNotUsed(t *testing.T) {
	dir := t.TempDir()
	if err := save(dir, filed(measured(1, 1))); err != nil {
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
		f, note := load(dir, key)
		if f.Made > 0 || !strings.Contains(note, path) {
			t.Errorf("%q: used %v, note %q", text, f, note)
		}
		return note
	}
	for n := range len(whole) - 2 { // all but the last brace and the end of its line
		spoil(whole[:n])
	}
	for want, change := range map[string]func(f *file){
		"version 2, not 8":       func(f *file) { f.Version = 2 },
		"cost -2 us":             func(f *file) { f.Kept.Sync = -2 },
		"no pace":                func(f *file) { f.Kept.Paces = nil },
		"links of 4 ranks on -2": func(f *file) { f.Kept.Cores = -2 },
		"0 measurements":         func(f *file) { f.Made = 0 },
	} {
		f := filed(measured(1, 1))
		change(&f)
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if note := spoil(text); !strings.Contains(note, want) {
			t.Errorf("%q, want %q", note, want)
		}
	}
	if note := spoil([]byte(strings.Replace(string(whole), "sync_us", "sink_us", 1))); !strings.Contains(note, "unknown field") {
		t.Error(note)
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
	if f, note := load(dir, key); f.Made > 0 || !strings.Contains(note, "not read") {
		t.Errorf("a directory: %q", note)
	}
}

// Readers see one writer's file or another's, never a part of one.
func TestWritersAtOnce(t *testing.T) {
	dir := t.TempDir()
	if err := save(dir, filed(measured(1, 1))); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for range 20 {
				if err := save(dir, filed(measured(1, w))); err != nil {
					t.Error(err)
				}
				if f, note := load(dir, key); f.Made != 1 {
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
	good, err := json.Marshal(filed(measured(1, 1)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(`{"version":3}`))
	f.Add([]byte(strings.Replace(string(good), "4.3e-06", "1e308", 1)))
	f.Add([]byte(strings.Replace(string(good), `"cores":2,"sync`, `"cores":-2,"sync`, 1)))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := decode(text, key)
		if err != nil {
			return
		}
		l, err := got.Kept.links(make([]int, key.Ranks))
		if err != nil || l.Ranks != key.Ranks {
			t.Fatalf("%+v, %v", l, err)
		}
		for _, kind := range []string{"shm", "tcp"} {
			p, err := New(l, can[kind], 4, []int{0, 0, 1, 1}).Pick(1, 0, 1<<40, false)
			if err != nil || p.Predicted < 0 {
				t.Fatalf("%+v, %v", p, err)
			}
		}
	})
}

// The first quiet measurement ends it, and so does a number of others.
func TestSettled(t *testing.T) {
	const busy = 1.3
	for made := range tries + 2 {
		f := file{Made: made, Kept: measured(busy, 0)}
		if f.settled(busy) != (made > 0) {
			t.Errorf("settled after %d quiet measurements: %t", made, f.settled(busy))
		}
		if f.Kept.Busy = busy + 0.01; f.settled(busy) != (made >= tries) {
			t.Errorf("settled after %d doubtful measurements: %t", made, f.settled(busy))
		}
	}
}
