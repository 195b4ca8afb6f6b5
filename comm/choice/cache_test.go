package choice

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/tune"
)

var key = Key{Hosts: "0123", Kind: "tcp", Ranks: 4, Cores: 2, Kernel: "6.1.0", Path: "AVX2"}

// measured is what ranks of such a host may have found.
func measured(busy float64, when int) figures {
	return figures{When: time.Date(2026, 11, 16, 0, 0, when, 0, time.UTC), Busy: busy, Cores: 2, Sync: 1 + busy,
		Paces: []tune.Pace{{Traffic: 320 << 10, Byte: 4.3e-6}, {Traffic: 256 << 20, Byte: 42e-6}}, Near: exchange{7 * busy, 6, 90 * busy}}
}

func filed(list ...figures) file {
	return file{Version: version, Key: key, Made: len(list), Last: list[0].When, Kept: list}
}

func TestSavedLinksAreLoaded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if f, note := load(dir, key); len(f.Kept) > 0 || f.Key != key || note != "" {
		t.Errorf("found in no directory; %s", note)
	}
	want := filed(measured(1, 2), measured(1.1, 1))
	if err := save(dir, want); err != nil {
		t.Fatal(err)
	}
	got, note := load(dir, key)
	if note != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %q, want %+v", got, note, want)
	}
	// Every part of the key counts.
	for i, other := range []Key{
		{"x", "tcp", 4, 2, "6.1.0", "AVX2"}, {"0123", "shm", 4, 2, "6.1.0", "AVX2"}, {"0123", "tcp", 5, 2, "6.1.0", "AVX2"},
		{"0123", "tcp", 4, 3, "6.1.0", "AVX2"}, {"0123", "tcp", 4, 2, "6.1.1", "AVX2"}, {"0123", "tcp", 4, 2, "6.1.0", "AVX-512"},
	} {
		if f, _ := load(dir, other); len(f.Kept) > 0 {
			t.Errorf("key %d finds links of another", i)
		}
		// Even if the file is there under its name.
		if err := os.Link(filepath.Join(dir, key.name()), filepath.Join(dir, other.name())); err != nil {
			t.Fatal(err)
		}
		if f, note := load(dir, other); len(f.Kept) > 0 || !strings.Contains(note, "they belong to") {
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
		if len(f.Kept) > 0 || !strings.Contains(note, path) {
			t.Errorf("%q: used %v, note %q", text, f, note)
		}
		return note
	}
	for n := range len(whole) - 2 { // all but the last brace and the end of its line
		spoil(whole[:n])
	}
	for want, change := range map[string]func(f *file){
		"version 1, not 2":       func(f *file) { f.Version = 1 },
		"cost -2 us":             func(f *file) { f.Kept[0].Sync = -2 },
		"no pace":                func(f *file) { f.Kept[0].Paces = nil },
		"links of 4 ranks on -2": func(f *file) { f.Kept[0].Cores = -2 },
		"0 measurements":         func(f *file) { f.Kept = nil },
		"4 measurements":         func(f *file) { f.Kept = slices.Repeat(f.Kept, 4) },
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
	if f, note := load(dir, key); len(f.Kept) > 0 || !strings.Contains(note, "not read") {
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
				if f, note := load(dir, key); len(f.Kept) != 1 {
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
	good, err := json.Marshal(filed(measured(1, 1), measured(1.2, 2)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(strings.Replace(string(good), "4.3e-06", "1e308", 1)))
	f.Add([]byte(strings.Replace(string(good), `"cores":2,"sync`, `"cores":-2,"sync`, 1)))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := decode(text, key)
		if err != nil {
			return
		}
		m := merge(best(got.Kept, 1.3))
		l, err := m.links(make([]int, key.Ranks))
		if err != nil || l.Ranks != key.Ranks {
			t.Fatalf("%+v, %v", l, err)
		}
		for _, kind := range []string{"shm", "tcp"} {
			p, err := New(l, kind, 4, []int{0, 0, 1, 1}).Pick(1, 0, 1<<40, false)
			if err != nil || p.Predicted < 0 {
				t.Fatalf("%+v, %v", p, err)
			}
		}
	})
}

// Whatever comes in which order: quiet measurements are kept before doubtful ones, the
// quietest of these if there is room, and once there are enough of the first nothing is
// measured any more. Only the quiet ones count as soon as there is one.
func TestBusyNeverReplacesQuiet(t *testing.T) {
	const busy = 1.3
	rapid.Check(t, func(t *rapid.T) {
		f := file{Key: key}
		var seen []figures
		quiet := 0
		for i := range rapid.IntRange(1, 12).Draw(t, "measurements") {
			m := measured(rapid.SampledFrom([]float64{1, 1.1, 1.3, 1.31, 1.5, 2, 3}).Draw(t, "busy"), i)
			if m.Busy <= busy {
				quiet++
			}
			seen = append(seen, m)
			f.Kept, f.Made, f.Last = keep(append(f.Kept, m), busy), f.Made+1, m.When
			if want := min(len(seen), several); len(f.Kept) != want {
				t.Fatalf("%d kept of %d", len(f.Kept), len(seen))
			}
			for k, x := range f.Kept {
				if (x.Busy <= busy) != (k < quiet) {
					t.Fatalf("place %d of %+v, %d were quiet", k, f.Kept, quiet)
				}
			}
			if got := best(f.Kept, busy); quiet > 0 && (len(got) != min(quiet, several) || got[len(got)-1].Busy > busy) || quiet == 0 && len(got) != len(f.Kept) {
				t.Fatalf("%d used of %d, %d were quiet", len(got), len(f.Kept), quiet)
			}
			least := slices.MinFunc(seen, func(a, b figures) int { return cmp.Compare(a.Busy, b.Busy) })
			if quiet == 0 && f.Kept[0].Busy != least.Busy {
				t.Fatalf("the quietest is %g, kept %+v", least.Busy, f.Kept)
			}
			if got, want := f.settled(busy, m.When.Add(time.Minute)), quiet >= several || f.Made >= tries; got != want {
				t.Fatalf("settled %v after %d measurements, %d quiet", got, f.Made, quiet)
			}
			if f.settled(busy, m.When.Add(again)) != (quiet >= several) {
				t.Fatalf("doubtful ones last for longer than a day")
			}
		}
	})
}

// One measurement that is off does not change what three say; the figures of a host
// that was always busy are near to what is usual.
func TestMergedFigures(t *testing.T) {
	f := merge([]figures{measured(1, 1), measured(50, 2), measured(1.1, 3)})
	want := measured(1.1, 1)
	want.Busy = 50
	if !reflect.DeepEqual(f, want) {
		t.Errorf("%+v, want %+v", f, want)
	}
	for _, busy := range []float64{0.01, 1, 7, 100} {
		x := Found{}
		if err := x.use([]figures{measured(busy, 1)}, &Query{Kind: "tcp", Hosts: make([]int, 4), Busy: 1e-3}, "kept"); err != nil {
			t.Fatal(err)
		}
		if x.Near != believe(x.Near) || x.Near.Beta < loopback.Beta/believed || x.Near.Beta > loopback.Beta*believed || !strings.Contains(x.Origin, "doubtful") {
			t.Errorf("%+v", x)
		}
	}
}
