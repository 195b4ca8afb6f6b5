package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/watch"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("WEFT_TEST_STORE"); dir != "" {
		s, err := Open(dir, 8<<20)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		for i := 0; ; i++ { // until it is killed
			s.Append(Raw, []byte(fmt.Sprintf("record %d", i)))
			if err := s.Flush(); err != nil {
				os.Exit(1)
			}
			fmt.Println(i)
		}
	}
	os.Exit(m.Run())
}

// After kill -9 everything that was flushed is there, in order, and the store goes on.
func TestSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	cmd := bounded.Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), "WEFT_TEST_STORE="+dir)
	var out bytes.Buffer
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(40*time.Second, func() { cmd.Process.Kill() })
	defer limit.Stop()
	buf := make([]byte, 4096)
	for !strings.Contains(out.String(), "\n200\n") {
		n, err := pipe.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			t.Fatalf("waiting for record 200: %v, got %d bytes", err, out.Len())
		}
	}
	cmd.Process.Kill()
	for {
		n, err := pipe.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			break
		}
	}
	cmd.Wait()
	told := strings.Count(out.String(), "\n")
	s, err := Open(dir, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.Append(Raw, []byte("after"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := Read(dir, Raw, func(b []byte) bool { got = append(got, string(b)); return true }); err != nil {
		t.Fatal(err)
	}
	if len(got) < told+1 || got[len(got)-1] != "after" {
		t.Fatalf("%d records, %d were flushed; the last is %q", len(got), told, got[len(got)-1])
	}
	for i, r := range got[:len(got)-1] {
		if r != fmt.Sprintf("record %d", i) {
			t.Fatalf("record %d is %q", i, r)
		}
	}
}

// A store stays within its limit, and the newest stay.
func TestBounded(t *testing.T) {
	dir := t.TempDir()
	const limit = 2 << 20
	s, err := Open(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, limit); err == nil {
		t.Error("two servers have one folder")
	}
	last := ""
	for i := range 4000 {
		last = fmt.Sprintf("%06d%s", i, strings.Repeat("x", 2000))
		s.Append(Raw, []byte(last))
		s.Append(Event, []byte(last))
		if i%10 == 0 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
			if n := s.Size(Raw) + s.Size(Event) + s.Size(Mean); n > limit {
				t.Fatalf("%d bytes", n)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, n := "", 0
	Read(dir, Raw, func(b []byte) bool { got = string(b); n++; return true })
	if got != last || n < 300 {
		t.Errorf("%d records, the last begins with %.6s", n, got)
	}
}

// Files that end anywhere give what is whole.
func TestCutAnywhere(t *testing.T) {
	dir := t.TempDir()
	s, _ := Open(dir, 1<<20)
	for i := range 20 {
		s.Append(Raw, bytes.Repeat([]byte{byte(i)}, 1+i*7))
	}
	s.Close()
	b, err := os.ReadFile(paths(dir, Raw)[0])
	if err != nil {
		t.Fatal(err)
	}
	for n := range b {
		k := 0
		if err := Records(bytes.NewReader(b[:n]), func(r []byte) bool {
			if len(r) != 1+k*7 || r[0] != byte(k) {
				t.Fatalf("cut at %d: record %d is %v", n, k, r)
			}
			k++
			return true
		}); err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	if err := Records(strings.NewReader(strings.Repeat("garbage ", 100)), nil); !errors.Is(err, ErrForeign) {
		t.Errorf("%v", err)
	}
}

// What lost power leaves, a file of noughts, ends no server. Files that nobody wrote to
// since a time can be left out, so that a server with days of reports starts at once.
func TestReadSince(t *testing.T) {
	dir := t.TempDir()
	s, _ := Open(dir, 1<<20)
	s.Append(Raw, []byte("old"))
	s.Close()
	old := paths(dir, Raw)[0]
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "raw-000002.log"), make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	s, _ = Open(dir, 1<<20)
	s.Append(Raw, []byte("new"))
	s.Close()
	for want, since := range map[string]time.Time{"oldnew": {}, "new": time.Now().Add(-time.Minute)} {
		got := ""
		if err := ReadSince(dir, Raw, since, func(b []byte) bool { got += string(b); return true }); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}

// A full disk ends writing and harms nothing; with room it goes on.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("weft-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no small file system: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	s, err := Open(dir, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1000, 0)
	s.now = func() time.Time { return at }
	ballast := filepath.Join(dir, "ballast")
	os.WriteFile(ballast, make([]byte, 600<<10), 0o644)
	full := false
	written := 0
	for i := range 100 {
		at = at.Add(11 * time.Second)
		s.Append(Event, bytes.Repeat([]byte{byte(i)}, 10<<10))
		if err := s.Flush(); err != nil {
			full = true
			break
		}
		written++
	}
	if !full {
		t.Fatal("1 MiB took 1.6 MiB")
	}
	count := func() (n int) {
		Read(dir, Event, func(b []byte) bool {
			if len(b) != 10<<10 || b[0] != byte(n) {
				t.Fatalf("record %d is wrong", n)
			}
			n++
			return true
		})
		return n
	}
	if n := count(); n != written {
		t.Errorf("%d records, %d were written", n, written)
	}
	os.Remove(ballast)
	at = at.Add(11 * time.Second)
	if err := s.Flush(); err != nil {
		t.Errorf("with room: %v", err)
	}
	if n := count(); n != written+1 {
		t.Errorf("with room %d records, want %d: what was told meanwhile is lost", n, written+1)
	}
	s.Close()
}

// Reports come back as they were, whatever the series do.
func TestReportsComeBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c, d := NewCoder(), NewDecoder()
	values := map[string][]float64{}
	for i := range 2000 {
		host := fmt.Sprintf("n%d", rng.IntN(5))
		r := &watch.Report{Host: host, At: float64(i), Every: 10}
		if rng.IntN(3) > 0 {
			n := 30
			if rng.IntN(100) == 0 {
				n = 31
			}
			v := values[host]
			if len(v) != n {
				v = make([]float64, n)
			}
			for k := range v {
				switch rng.IntN(6) {
				case 0:
					v[k] += float64(rng.IntN(1e6))
				case 1:
					v[k] = rng.NormFloat64()
				case 2:
					v[k] = []float64{0, -1, 1e300, math.Inf(1), 1 << 60, 3}[rng.IntN(6)]
				}
			}
			values[host] = v
			r.Counters = &watch.Counters{Schema: fmt.Sprint(n), Values: slices.Clone(v), Checks: 7}
		} else {
			r.HasRanks, r.Ranks = true, []watch.Rank{{Job: "j", Rank: i, Size: 3000, State: "R"}}
		}
		b, err := c.Report(float64(i)+0.5, r)
		if err != nil {
			t.Fatal(err)
		}
		now, got, err := d.Report(bytes.Clone(b))
		if err != nil {
			t.Fatal(err)
		}
		if now != float64(i)+0.5 || !reflect.DeepEqual(got, r) {
			t.Fatalf("report %d:\n%+v\n%+v", i, got.Counters, r.Counters)
		}
	}
}

// Means keep counters' digits, and least and greatest values.
func TestMeans(t *testing.T) {
	m := NewMeans()
	var rec []byte
	for i := range 31 {
		c := &watch.Counters{Schema: "s", Values: []float64{0, 1e15 + float64(i), float64(i % 5)}}
		if r := m.Add(3000+float64(i)*10, "h", c); r != nil {
			rec = r
		}
	}
	names := map[string][]string{"s": {"zero", "big", "small"}}
	p, ok := MeanOf(rec, "h", "big", names)
	if !ok || p.At != 3000 || p.Mean != 1e15+14.5 || p.Least != 1e15 || p.Great != 1e15+29 {
		t.Errorf("%+v %v", p, ok)
	}
	if p, ok := MeanOf(rec, "h", "small", names); !ok || p.Mean != 2 || p.Great != 4 {
		t.Errorf("%+v %v", p, ok)
	}
	if _, ok := MeanOf(rec, "other", "small", names); ok {
		t.Error("another host")
	}
	// An agent that has more series under the same name begins anew.
	if r := m.Add(3320, "h", &watch.Counters{Schema: "s", Values: []float64{1, 2, 3, 4, 5}}); r == nil {
		t.Error("no record of what was before")
	}
}

func FuzzRead(f *testing.F) {
	c := NewCoder()
	b, _ := c.Report(1, &watch.Report{Host: "a", Counters: &watch.Counters{Schema: "s", Values: []float64{1, 2.5}}})
	f.Add([]byte(magic+"\x05\x00\x00\x00aaaahello"), bytes.Clone(b))
	m := NewMeans()
	m.Add(1, "a", &watch.Counters{Schema: "s", Values: []float64{1, 2.5}})
	f.Add([]byte(magic), m.Rest()[0])
	f.Fuzz(func(t *testing.T, file, record []byte) {
		Records(bytes.NewReader(file), func([]byte) bool { return true })
		d := NewDecoder()
		for range 2 {
			if now, r, err := d.Report(record); err == nil && (r == nil || r.Check() == nil && math.IsNaN(now) && r.Host == "") {
				t.Error("a report of nobody")
			}
		}
		MeanOf(record, "a", "x", map[string][]string{"s": {"x", "y"}})
	})
}
