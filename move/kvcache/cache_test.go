package kvcache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// hash names a block of tests; a path is blocks 0..n of one text.
func hash(text, i int) (h kv.Hash) {
	binary.BigEndian.PutUint64(h[:], uint64(text)<<20|uint64(i+1))
	return h
}

func path(text, n int) (out []kv.Hash) {
	for i := range n {
		out = append(out, hash(text, i))
	}
	return out
}

// content is what a tenant's block holds: a function of its name.
func content(who string, h kv.Hash) []byte {
	seed := binary.BigEndian.Uint64(h[:])
	r := rand.New(rand.NewPCG(seed, uint64(len(who))<<8|uint64(who[0])))
	b := make([]byte, 1+r.IntN(1000))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func small(t *testing.T, change func(*Options)) *Cache {
	t.Helper()
	o := Options{Name: "a", Block: 1000, Memory: 20 * 1000, Pack: 4000, Dirty: 16, Absent: time.Minute}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// settle waits until nothing waits for disk or store.
func settle(t *testing.T, c *Cache) {
	t.Helper()
	bounded.Until(t, 20*time.Second, "no block waits for the disk", func() bool {
		s := c.Stat()
		return s.Waiting == 0 && s.Tenants[0].InUse == 0
	})
}

// put stores the last block of a path.
func put(c *Cache, who string, path []kv.Hash, data []byte) error {
	_, err := c.Put(who, Path{Keys: path}, len(path)-1, data)
	return err
}

// get reads the last block of a path.
func get(ctx context.Context, c *Cache, who string, path []kv.Hash) ([]byte, Where, error) {
	var out []byte
	w, ok, err := c.Get(ctx, who, Path{Keys: path}, len(path)-1, func(b []byte) error { out = bytes.Clone(b); return nil })
	if err == nil && !ok {
		err = errMissing
	}
	return out, w, err
}

// A disk that is not mounted is noticed, and nothing is written where it would be.
func TestNoFolderNoSlab(t *testing.T) {
	dir := t.TempDir() + "/nvme"
	_, err := New(Options{Name: "a", Block: 1000, Memory: 20_000, Disk: dir + "/slab", Slab: 1 << 16})
	if err == nil || !strings.Contains(err.Error(), "mount the disk") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made")
	}
}

// Whatever many goroutines store and read, through memory, disk and packs: a block that comes is the right one.
func TestNeverAWrongBlock(t *testing.T) {
	for _, policy := range kv.Policies {
		t.Run(string(policy), func(t *testing.T) {
			ctx := limit(t)
			dir := t.TempDir()
			c := small(t, func(o *Options) {
				o.Policy, o.Disk, o.Slab = policy, filepath.Join(dir, "slab"), 60*8192
				o.Store = blob.NewDir(filepath.Join(dir, "store"))
				o.Absent = time.Millisecond
				o.Tenants = []Tenant{{Name: "a", Token: "1", Quota: 12 * 1000}, {Name: "b", Token: "2", Quota: 8 * 1000}}
			})
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 7))
					for range 300 {
						who := []string{"a", "b"}[r.IntN(2)]
						p := path(r.IntN(20), 1+r.IntN(9))
						h := p[len(p)-1]
						switch r.IntN(3) {
						case 0:
							if err := put(c, who, p, content(who, h)); err != nil && !errors.Is(err, ErrRoom) {
								t.Error(err)
							}
						case 1:
							data, _, err := get(ctx, c, who, p)
							if err == nil && !bytes.Equal(data, content(who, h)) {
								t.Errorf("block %s of %s is wrong", h, who)
							}
							if err != nil && !errors.Is(err, errMissing) {
								t.Error(err)
							}
						case 2:
							if _, err := c.Match(ctx, who, Path{Keys: p}); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
			settle(t, c)
			s := c.Stat()
			if s.Tenants[0].Memory > 12 || s.Tenants[1].Memory > 8 || s.Counters.Damaged > 0 || s.Counters.Failed > 0 {
				t.Errorf("%+v", s)
			}
			if free := len(c.free); free != c.slots-s.Tenants[0].Memory-s.Tenants[1].Memory {
				t.Errorf("%d free slots of %d", free, c.slots)
			}
		})
	}
}

// A slab without its index is empty, whatever its slots hold; a changed byte or a foreign slot is a miss, not a wrong block.
func TestSlabIsNeverWrong(t *testing.T) {
	ctx := limit(t)
	file := filepath.Join(t.TempDir(), "slab")
	open := func() *Cache {
		return small(t, func(o *Options) { o.Memory, o.Disk, o.Slab = 2000, file, 40*8192 })
	}
	fill := func(c *Cache) {
		for i := range 20 {
			if err := put(c, "default", path(1, i+1), content("default", hash(1, i))); err != nil {
				t.Fatal(err)
			}
			settle(t, c)
		}
	}
	c := open()
	fill(c)
	if data, w, err := get(ctx, c, "default", path(1, 1)); err != nil || w != OnDisk || !bytes.Equal(data, content("default", hash(1, 0))) {
		t.Fatal(w, err)
	}
	if _, err := New(Options{Block: 1000, Memory: 2000, Disk: file, Slab: 40 * 8192}); err == nil ||
		!strings.Contains(err.Error(), "another cache uses it") {
		t.Fatalf("two caches share a slab: %v", err)
	}
	c.Close()

	if err := os.Remove(file + ".index"); err != nil {
		t.Fatal(err)
	}
	again := open() // the file is full of blocks of another generation
	for i := range 20 {
		if _, _, err := get(ctx, again, "default", path(1, i+1)); !errors.Is(err, errMissing) {
			t.Fatalf("block %d of an earlier life: %v", i, err)
		}
	}
	fill(again)
	// Torn, swapped, flipped, cut short: each damages what it damages.
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	slot := func(i int) int64 {
		return int64(again.tenants["default"].blocks[again.tenants["default"].name(hash(1, i))].disk) * again.slab.slot
	}
	f.WriteAt([]byte{^content("default", hash(1, 2))[0]}, slot(2)+headRoom)
	other := make([]byte, 8192)
	f.ReadAt(other, slot(4))
	f.WriteAt(other, slot(3))
	f.WriteAt(make([]byte, 100), slot(5))
	for i, good := range []bool{0: true, 1: true, 2: false, 3: false, 4: true, 5: false} {
		data, _, err := get(ctx, again, "default", path(1, i+1))
		if good && (err != nil || !bytes.Equal(data, content("default", hash(1, i)))) {
			t.Errorf("block %d: %v", i, err)
		}
		if !good && !errors.Is(err, errMissing) {
			t.Errorf("block %d was damaged and is given out: %v", i, err)
		}
	}
	if n := again.Stat().Counters.Damaged; n != 3 {
		t.Errorf("%d damaged blocks, want 3", n)
	}
	settle(t, again)
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := get(ctx, again, "default", path(1, 8)); !errors.Is(err, errMissing) {
		t.Errorf("a slab that was cut short: %v", err)
	}
}

// A file that is no slab is left as it is; an empty one, one of noughts and one of an earlier life are taken.
func TestForeignSlab(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	c := small(t, func(o *Options) { o.Disk, o.Slab = old, 40*8192 })
	for i := range 40 {
		if err := put(c, "default", path(1, i+1), content("default", hash(1, i))); err != nil {
			t.Fatal(err)
		}
		settle(t, c)
	}
	c.Close()
	for name, text := range map[string]string{"notes": "do not lose this", "empty": "", "noughts": strings.Repeat("\x00", 9000),
		"mine": strings.Repeat("\x00", 100) + "x"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := New(Options{Block: 1000, Memory: 2000, Disk: file, Slab: 40 * 8192})
		if err == nil {
			c.Close()
		}
		have, _ := os.ReadFile(file)
		if bad := name == "notes" || name == "mine"; bad != (err != nil) || bad && string(have) != text {
			t.Errorf("%s: %v, it holds %d bytes", name, err, len(have))
		}
	}
	again, err := New(Options{Block: 3000, Memory: 6000, Disk: old, Slab: 30 * 8192}) // of other sizes
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if _, err := New(Options{Block: 1000, Memory: 2000, Disk: dir, Slab: 40 * 8192}); err == nil {
		t.Error("a folder is taken for a slab")
	}
}

// bare is a store that must not be listed, and that fails where it is told to.
type bare struct {
	blob.Place
	t       *testing.T
	mu      sync.Mutex
	reads   int
	fail    error
	exists  map[string]bool
	created int
}

func (b *bare) List(context.Context, string) ([]blob.Info, error) {
	b.t.Error("the store is listed")
	return nil, errors.New("no")
}

func (b *bare) Read(ctx context.Context, name string, p []byte, off int64) error {
	b.mu.Lock()
	b.reads++
	err := b.fail
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.Place.Read(ctx, name, p, off)
}

func (b *bare) Create(ctx context.Context, name string, body blob.Body) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.exists[name] {
		return os.ErrExist
	}
	if b.exists == nil {
		b.exists = map[string]bool{}
	}
	b.exists[name] = true
	b.created++
	return b.Place.Put(ctx, name, body)
}

// A cache that starts empty finds blocks by the names of packs; two writers of a pack write it once; what is not
// there is not asked for twice; a store that fails or holds damaged bytes gives a miss.
func TestStore(t *testing.T) {
	ctx := limit(t)
	dir := t.TempDir()
	store := &bare{Place: blob.NewDir(dir), t: t}
	with := func(o *Options) { o.Store = store }
	a, b, c := small(t, with), small(t, with), small(t, with)
	for _, x := range []*Cache{a, b} {
		for i := range 10 { // two packs of four, and two blocks more
			if err := put(x, "default", path(1, i+1), content("default", hash(1, i))); err != nil {
				t.Fatal(err)
			}
		}
		settle(t, x)
		bounded.Until(t, 25*time.Second, "two packs", func() bool { return x.Stat().Counters.Packed+x.Stat().Counters.Raced >= 2 })
	}
	if store.created != 2 || b.Stat().Counters.Raced != 2 {
		t.Errorf("%d packs created, %d were there", store.created, b.Stat().Counters.Raced)
	}
	where, err := c.Match(ctx, "default", Path{Keys: path(1, 10)})
	if err != nil || len(where) != 8 || where[0] != InStore {
		t.Fatal(where, err)
	}
	// A client that gives the whole path and says which block it means reads all of them.
	s := httptest.NewServer(NewServer(c, "peers", "").Handler())
	defer s.Close()
	client := Dial(s.Listener.Addr().String(), "", "")
	defer client.Close()
	n, err := client.Get(ctx, path(1, 10), 0, func(i int, data []byte) error {
		if !bytes.Equal(data, content("default", hash(1, i))) {
			t.Errorf("block %d is wrong", i)
		}
		return nil
	})
	if err != nil || n != 8 {
		t.Fatal(n, err)
	}
	// Absent packs are asked for once.
	before := store.reads
	for range 5 {
		if w, err := c.Match(ctx, "default", Path{Keys: path(9, 8)}); len(w) != 0 || err != nil {
			t.Fatal(w, err)
		}
	}
	if store.reads != before+1 {
		t.Errorf("an absent pack was asked for %d times", store.reads-before)
	}
	// Damaged data in a pack.
	var pack string
	filepath.Walk(dir, func(p string, i os.FileInfo, err error) error {
		if err == nil && !i.IsDir() {
			pack = p
		}
		return nil
	})
	text, _ := os.ReadFile(pack)
	text[len(text)-1] ^= 1
	os.WriteFile(pack, text, 0o644)
	d := small(t, with)
	bad := 0
	for _, p := range [][]kv.Hash{path(1, 4), path(1, 8)} {
		if data, _, err := get(ctx, d, "default", p); err != nil {
			bad++
		} else if !bytes.Equal(data, content("default", p[len(p)-1])) {
			t.Error("a damaged block is given out")
		}
	}
	if bad != 1 || d.Stat().Counters.Damaged != 1 {
		t.Errorf("%d damaged, counted %d", bad, d.Stat().Counters.Damaged)
	}
	store.fail = errors.New("503 SlowDown")
	e := small(t, with)
	if _, _, err := get(ctx, e, "default", path(1, 4)); !errors.Is(err, errMissing) || e.Stat().Counters.Failed != 1 {
		t.Errorf("a store that fails: %v %+v", err, e.Stat().Counters)
	}
}

// serve starts a cache with a server.
func serve(t *testing.T, c *Cache, chain string) (*httptest.Server, string) {
	s := httptest.NewServer(NewServer(c, "peers", chain).Handler())
	t.Cleanup(s.Close)
	return s, s.Listener.Addr().String()
}

// Workers share prefixes through one cache and through another that follows it; who is gone is a miss.
func TestPeers(t *testing.T) {
	ctx := limit(t)
	a := small(t, nil)
	sa, at := serve(t, a, "")
	b := small(t, func(o *Options) { o.Name = "b" })
	b.Follow(at, "peers")
	wrong := small(t, func(o *Options) { o.Name = "c" })
	wrong.Follow(at, "guess")
	for i := range 5 {
		if err := put(a, "default", path(3, i+1), content("default", hash(3, i))); err != nil {
			t.Fatal(err)
		}
	}
	bounded.Until(t, 20*time.Second, "b knows five blocks of a", func() bool { return b.Stat().Peers[0].Blocks == 5 })
	if w, err := b.Match(ctx, "default", Path{Keys: path(3, 7)}); err != nil || len(w) != 5 || w[4] != AtPeer {
		t.Fatal(w, err)
	}
	if data, w, err := get(ctx, b, "default", path(3, 5)); err != nil || w != AtPeer || !bytes.Equal(data, content("default", hash(3, 4))) {
		t.Fatal(w, err)
	}
	if _, w, err := get(ctx, b, "default", path(3, 5)); err != nil || w != InMemory {
		t.Error("the second time it is here: ", w, err)
	}
	for i := range 30 { // a evicts; b hears of it
		put(a, "default", path(4, i+1), content("default", hash(4, i)))
	}
	bounded.Until(t, 20*time.Second, "b knows what a has now", func() bool {
		return b.Stat().Peers[0].Blocks == 20 && !b.peers[0].has(a.tenants["default"].name(hash(3, 0)))
	})
	bounded.Until(t, 20*time.Second, "the wrong token is refused", func() bool { return strings.Contains(wrong.Stat().Peers[0].Error, "401") })
	if wrong.Stat().Peers[0].Blocks != 0 {
		t.Error("a stranger was told what there is")
	}
	sa.CloseClientConnections()
	sa.Close()
	bounded.Until(t, 20*time.Second, "b knows that a is gone", func() bool {
		of := b.Stat().Peers[0]
		return of.Error != "" && of.Blocks == 0
	})
	if _, _, err := get(ctx, b, "default", path(4, 30)); !errors.Is(err, errMissing) {
		t.Errorf("a block of a peer that is gone: %v", err)
	}
	// What was read through b has a replica there.
	if data, w, err := get(ctx, b, "default", path(3, 5)); err != nil || w != InMemory || !bytes.Equal(data, content("default", hash(3, 4))) {
		t.Errorf("the replica of a block whose first cache is gone: %v, %v", w, err)
	}
}

// Tenants do not find one another's blocks, do not push them out, and are known by their tokens; a chain of another
// seed is refused.
func TestTenantsAndChains(t *testing.T) {
	ctx := limit(t)
	c := small(t, func(o *Options) {
		o.Tenants = []Tenant{{Name: "red", Token: "r", Quota: 5000}, {Name: "blue", Token: "b", Quota: 5000}}
	})
	_, at := serve(t, c, "")
	one, _ := kv.NewChain(kv.VLLM, "1", 16)
	two, _ := kv.NewChain(kv.VLLM, "2", 16)
	red, blue := Dial(at, "r", one.Print()), Dial(at, "b", one.Print())
	defer red.Close()
	defer blue.Close()
	data := [][]byte{[]byte("one"), []byte("two")}
	if n, err := red.Put(ctx, path(1, 2), 0, data); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if w, err := blue.Match(ctx, path(1, 2)); len(w) != 0 || err != nil {
		t.Error("blue finds red's blocks: ", w, err)
	}
	for i := range 40 {
		if _, err := blue.Put(ctx, path(2, i+1), i, [][]byte{[]byte("blue")}); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	if n, err := red.Get(ctx, path(1, 3), 0, func(i int, b []byte) error {
		if string(b) != string(data[i]) {
			t.Errorf("block %d: %q", i, b)
		}
		got++
		return nil
	}); n != 2 || err != nil || got != 2 {
		t.Error(n, err)
	}
	other := Dial(at, "r", two.Print())
	defer other.Close()
	if _, err := other.Match(ctx, path(1, 1)); err == nil || !strings.Contains(err.Error(), "PYTHONHASHSEED") {
		t.Errorf("another seed: %v", err)
	}
	nobody := Dial(at, "x", "")
	defer nobody.Close()
	if _, err := nobody.Match(ctx, path(1, 1)); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a stranger: %v", err)
	}
	if _, err := nobody.Stat(ctx); err == nil {
		t.Error("a stranger sees figures")
	}
	if s, err := red.Stat(ctx); err != nil || len(s.Tenants) != 1 || s.Tenants[0].Name != "red" || s.Chain != one.Print() ||
		s.Counters.Stored != 2 {
		t.Error(s, err)
	}
	for _, bad := range []Options{
		{Block: 1000, Memory: 999},
		{Block: 1000, Memory: 9000, Tenants: []Tenant{{Name: "a", Token: "1", Quota: 5000}, {Name: "b", Token: "2", Quota: 5000}}},
		{Block: 1000, Memory: 9000, Tenants: []Tenant{{Name: "a", Token: "1", Quota: 5000}, {Name: "b", Token: "1", Quota: 1000}}},
		{Block: 1000, Memory: 9000, Tenants: []Tenant{{Name: "a", Quota: 10}}},
		{Block: 1000, Memory: 9000, Policy: "fifo"},
		{Block: 1000, Memory: 9000, Disk: t.TempDir(), Slab: 1 << 20},
		{Block: 1000, Memory: 9000, Disk: filepath.Join(t.TempDir(), "s"), Slab: 100},
	} {
		if c, err := New(bad); err == nil {
			c.Close()
			t.Errorf("%+v is taken", bad)
		}
	}
}

// TestMetricsAreDocumented compares the page of metrics with what a cache says of itself: every metric has a line of help.
func TestMetricsAreDocumented(t *testing.T) {
	c := small(t, nil)
	c.Tell("b", "127.0.0.1:1", "", false)
	var out bytes.Buffer
	if err := c.Stat().Metrics(&out); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString(metricsHead)
	seen := 0
	for _, m := range regexp.MustCompile(`(?m)^# HELP (\w+) (.+)\n# TYPE (\w+) (\w+)\n(\w+)(\{\S+\})? `).FindAllStringSubmatch(out.String(),
		-1) {
		if m[1] != m[3] || m[1] != m[5] {
			t.Errorf("help of %s, type of %s and a row of %s", m[1], m[3], m[5])
		}
		labels := regexp.MustCompile(`="[^"]*"`).ReplaceAllString(m[6], "")
		fmt.Fprintf(&want, "| `%s%s` | %s | %s |\n", m[1], labels, m[4], m[2])
		seen++
	}
	if helps := strings.Count(out.String(), "# HELP "); seen != helps || seen < 18 {
		t.Errorf("%d metrics, %d lines of help", seen, helps)
	}
	if *update {
		if err := os.WriteFile(metricsPage, []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if page, err := os.ReadFile(metricsPage); err != nil || string(page) != want.String() {
		t.Errorf("%s is not what a cache says (%v); go test ./move/kvcache -run MetricsAreDocumented -update writes it", metricsPage, err)
	}
}

var update = flag.Bool("update", false, "write docs/reference/tables/kv-metrics.md")

const metricsPage = "../../docs/reference/tables/kv-metrics.md"

const metricsHead = `# KV cache metrics

Made by:

    go test ./move/kvcache -run MetricsAreDocumented -update

What /metrics of ` + "`weft kv serve`" + ` has. [KV cache reference](../kv.md#metrics).

| metric | type | meaning |
|---|---|---|
`

// Wrong requests are answered with what is wrong, and nothing breaks.
func TestWrongRequests(t *testing.T) {
	c := small(t, nil)
	s, at := serve(t, c, "")
	frame := func(data []byte) string {
		var b bytes.Buffer
		writeFrame(&b, data)
		return b.String()
	}
	head := func(q request) string {
		var b bytes.Buffer
		writeHead(&b, q)
		return b.String()
	}
	good := request{Keys: names(path(1, 1))}
	for _, x := range []struct{ path, body, want string }{
		{"/v1/match", "", "length of the head"},
		{"/v1/match", "\xff\xff\xff\xff", "at most"},
		{"/v1/match", "\x04\x00\x00\x00{}", "head"},
		{"/v1/match", "\x02\x00\x00\x00{}", "0 keys"},
		{"/v1/match", head(request{Keys: []string{"zz"}}), "64 hexadecimal digits"},
		{"/v1/match", head(request{Keys: good.Keys, From: 1}), "from 1 on"},
		{"/v1/match", head(request{Keys: good.Keys, From: -1}), "from -1 on"},
		{"/v1/put", head(good), "frame"},
		{"/v1/put", head(good) + frame(make([]byte, 2000)), "at most 1000"},
		{"/v1/put", head(good) + frame([]byte{}), "empty"},
		{"/v1/put", head(good) + strings.Replace(frame([]byte("abc")), "abc", "abd", 1), "checksum"},
		{"/v1/put", head(good) + frame(make([]byte, 900))[:500], "unexpected EOF"},
		{"/v1/put", head(good) + strings.Repeat("\xff", 7) + "\x7f1234", "at most"},
	} {
		r, err := http.Post("http://"+at+x.path, "", strings.NewReader(x.body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), x.want) {
			t.Errorf("%s %q: %s %s; want %q", x.path, x.body[:min(20, len(x.body))], r.Status, text, x.want)
		}
	}
	if n := c.Stat().Tenants[0].Memory; n != 0 {
		t.Errorf("%d blocks were stored", n)
	}
	r, err := http.Get(s.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(r.Body)
	r.Body.Close()
	for _, want := range []string{`weft_kv_lookups_total{found="memory"} 0`, `weft_kv_blocks{tenant="default",tier="memory"} 0`,
		"# TYPE weft_kv_damaged_total counter"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("metrics lack %s:\n%s", want, text)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func FuzzRequests(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00{}"))
	f.Add([]byte("\x10\x00\x00\x00{\"keys\":[\"00\"]}1234567890"))
	c, err := New(Options{Block: 100, Memory: 1000})
	if err != nil {
		f.Fatal(err)
	}
	defer c.Close()
	h := NewServer(c, "p", "").Handler()
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, p := range []string{"/v1/match", "/v1/get", "/v1/put"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, p, bytes.NewReader(body)))
			if w.Code >= 500 {
				t.Fatal(w.Code)
			}
		}
	})
}

// BenchmarkService moves blocks of 1 MiB through a socket of this host.
func BenchmarkService(b *testing.B) {
	c, err := New(Options{Name: "a", Block: 1 << 20, Memory: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	s := httptest.NewServer(NewServer(c, "p", "").Handler())
	defer s.Close()
	client := Dial(s.Listener.Addr().String(), "", "")
	defer client.Close()
	data := make([][]byte, 16)
	for i := range data {
		data[i] = bytes.Repeat([]byte{byte(i + 1)}, 1<<20)
	}
	b.Run("put", func(b *testing.B) {
		b.SetBytes(16 << 20)
		for i := range b.N {
			if _, err := client.Put(b.Context(), path(i+1, 16), 0, data); err != nil {
				b.Fatal(err)
			}
		}
	})
	client.Put(b.Context(), path(0, 16), 0, data)
	b.Run("get", func(b *testing.B) {
		b.SetBytes(16 << 20)
		for range b.N {
			if n, err := client.Get(b.Context(), path(0, 16), 0, func(int, []byte) error { return nil }); n != 16 || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("match", func(b *testing.B) {
		for range b.N {
			if w, err := client.Match(b.Context(), path(0, 16)); len(w) != 16 || err != nil {
				b.Fatal(w, err)
			}
		}
		b.ReportMetric(float64(16*b.N)/b.Elapsed().Seconds(), "blocks/s")
	})
}

// BenchmarkDirectory is how long it takes until another cache knows of a block, and what it costs.
func BenchmarkDirectory(b *testing.B) {
	open := func(name string) *Cache {
		c, err := New(Options{Name: name, Block: 64, Memory: 64 << 16})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.Close)
		return c
	}
	a, other := open("a"), open("b")
	s := httptest.NewServer(NewServer(a, "p", "").Handler())
	defer s.Close()
	other.Follow(s.Listener.Addr().String(), "p")
	b.ResetTimer()
	for i := range b.N {
		h := hash(7, i)
		if err := put(a, "default", []kv.Hash{h}, []byte("x")); err != nil {
			b.Fatal(err)
		}
		name := a.tenants["default"].name(h)
		bounded.Until(b, 20*time.Second, "the other to know a block", func() bool { return other.peers[0].has(name) })
	}
	b.ReportMetric(float64(other.Stat().Peers[0].Bytes)/float64(b.N), "bytes/block")
}

// A cache whose peer has longer blocks gives them out and does not keep them: they would lie over its other blocks.
func TestPeerWithLongerBlocks(t *testing.T) {
	ctx := limit(t)
	a := small(t, func(o *Options) { o.Block, o.Memory = 4000, 40_000 })
	_, at := serve(t, a, "")
	b := small(t, func(o *Options) { o.Name = "b" })
	b.Follow(at, "peers")
	long := bytes.Repeat([]byte("long"), 1000)
	if err := put(a, "default", path(3, 1), long); err != nil {
		t.Fatal(err)
	}
	bounded.Until(t, 20*time.Second, "b knows a's block", func() bool { return b.Stat().Peers[0].Blocks == 1 })
	for i := range 4 {
		got, where, err := get(ctx, b, "default", path(3, 1))
		if err != nil || where != AtPeer || !bytes.Equal(got, long) {
			t.Fatalf("look %d: found at %q, %d bytes, right: %v, %v", i, where, len(got), bytes.Equal(got, long), err)
		}
		if err := put(b, "default", path(4+i, 1), content("default", hash(4+i, 0))); err != nil {
			t.Fatal(err)
		}
	}
}
