package choice

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// Key is what measured links belong to.
type Key struct {
	Hosts  string `json:"hosts"`  // a digest of the hosts' names, by rank
	Kind   string `json:"kind"`   // of the transport
	Ranks  int    `json:"ranks"`  // of all hosts
	Rails  int    `json:"rails"`  // between them
	Cores  int    `json:"cores"`  // that a process may use
	Kernel string `json:"kernel"` // release
	Path   string `json:"path"`   // of the reduction kernels: avx512, avx2, ...
}

// file is a cache file's content: what was measured, not what follows from it.
type file struct {
	Version int     `json:"version"`
	Key     Key     `json:"key"`
	Made    int     `json:"made"` // measurements that were made, since one was asked for
	Kept    figures `json:"kept"` // the quietest of them
}

// version changes when figures come to mean something else.
const version = 8

// maxFile is the size in bytes from which a file is no cache file of ours.
const maxFile = 64 << 10

// Dir is where links are kept: weft below the user's cache directory.
func Dir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep measured links: %w", err)
	}
	return filepath.Join(dir, "weft"), nil
}

// name is the file's name: readable, and another for every key.
func (k *Key) name() string {
	text, _ := json.Marshal(k) // strings and numbers
	sum := sha256.Sum256(text)
	return fmt.Sprintf("links-%s-%d-%s.json", k.Kind, k.Ranks, hex.EncodeToString(sum[:6]))
}

// load gets what was measured out of the cache in a directory, nothing if there is
// nothing; a file that cannot be used is as good as none, and note says why.
func load(dir string, key Key) (f file, note string) {
	path := filepath.Join(dir, key.name())
	none := file{Version: version, Key: key}
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, ""
	}
	if err != nil {
		return none, "measured links not read: " + err.Error()
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return none, "measured links not read: " + err.Error()
	}
	if f, err = decode(text, key); err != nil {
		return none, fmt.Sprintf("measured links in %s not used: %v", path, err)
	}
	return f, ""
}

// decode reads a cache file.
func decode(text []byte, key Key) (f file, err error) {
	if len(text) > maxFile {
		return f, fmt.Errorf("more than %d bytes", maxFile)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return f, err
	}
	switch {
	case f.Version != version:
		return f, fmt.Errorf("version %d, not %d", f.Version, version)
	case f.Key != key:
		return f, fmt.Errorf("they belong to %+v, not %+v", f.Key, key)
	case f.Made < 1:
		return f, fmt.Errorf("%d measurements; at least one expected", f.Made)
	}
	// Where the ranks are does not matter to whether the figures can be used.
	_, err = f.Kept.links(make([]int, key.Ranks))
	return f, err
}

// save keeps what was measured in the cache. The file is there whole or not at all.
func save(dir string, f file) error {
	text, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = write(dir, f.Key.name(), text)
	}
	if err != nil {
		return fmt.Errorf("keeping measured links: %w", err)
	}
	return nil
}

// write makes a file of the cache, whole or not at all.
func write(dir, name string, text []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	out, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = out.Write(append(text, '\n'))
	err = errors.Join(err, out.Close())
	if err == nil {
		err = os.Rename(out.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(out.Name()))
	}
	return nil
}

// tries is the number of measurements after which the quietest will do.
const tries = 6

// settled reports whether there is no need to measure again: what was measured on a
// quiet host is kept for good, so that the same calls run the same programs from then on.
func (f *file) settled(busy float64) bool {
	return f.Made > 0 && f.Kept.Busy <= busy || f.Made >= tries
}

// outdated reports whether a few messages take less than half as long as they took when links were measured: the machine was busy
// then, or the links are others. Messages that take longer say nothing, as this machine may be busy now. In shared memory choices do not
// follow from messages.
func (f *file) outdated(links func() *probe, q *Query) (bool, error) {
	if q.Can.SharedMemory {
		return false, nil
	}
	kept := f.Kept.Near.Small
	if f.Kept.Far.Small > 0 {
		kept = f.Kept.Far.Small
	}
	now, err := links().small(q.Gather)
	return 0 < now && now < kept/2, err
}

// hostName tells hosts apart, across restarts as well.
func hostName() string {
	if id, err := os.ReadFile("/etc/machine-id"); err == nil && len(bytes.TrimSpace(id)) > 0 {
		return string(bytes.TrimSpace(id))
	}
	name, err := os.Hostname()
	if err != nil {
		return "unnamed"
	}
	return name
}

// keyOf is the key of ranks whose names and cores are given by rank.
func keyOf(can transport.Capabilities, names [][]byte, hosts []int) Key {
	sum := sha256.New()
	for r, name := range names {
		fmt.Fprintf(sum, "%d %d %q\n", r, hosts[r], name)
	}
	return Key{Hosts: hex.EncodeToString(sum.Sum(nil)[:8]), Kind: can.Name, Ranks: len(hosts), Rails: max(can.Rails, 1), Cores: cores(),
		Kernel: kernel(), Path: reduce.Path()}
}

// Query is whose links are wanted. All ranks ask at once; see Measure for the
// port, the call and the hosts.
type Query struct {
	Port   transport.Port
	Call   transport.Call
	Can    transport.Capabilities
	Rank   int
	Hosts  []int
	Shared int // hosts that share the cores of a machine, at most; 0 is one
	Gather transport.Gather
	Dir    string // of the cache; empty for none
	Fresh  bool   // measure even if the cache knows them

	// Known are links of an earlier meeting on the same hosts, nil for none. They
	// serve where the cache has none of this many ranks: a rank that died leaves the
	// links as they were, and those that go on do not wait for a measurement.
	Known *cost.Links

	// Busy is how many times longer than necessary ranks may have waited for cores
	// for a measurement to be trusted, 0 for any: it tells a host that did something
	// else at the time. See figures.
	Busy float64
}

// Found are links and where they come from.
type Found struct {
	cost.Links
	Origin string // for people: measured now or kept, since when, and what they cost
	Note   string // likewise: what was wrong with the cache, if anything
	Key    Key    // what they belong to
	Made   []Made // programs that were made for them
}

// offer is what a rank knows before links are measured.
type offer struct {
	Made     int         // measurements of rank 0
	Kept     figures     // of them, if there are any
	Fresh    bool        // links are to be measured, and nothing else is to be used
	Known    *cost.Links // of an earlier meeting
	Programs []Made      `json:",omitempty"` // of rank 0
}

// Find gets links. Rank 0 keeps them in its cache: the first that were measured on a
// quiet host, for good, and until there are such the ranks measure each time, up to a
// number of times. Every rank returns the same links.
func Find(ctx context.Context, q Query) (found Found, err error) {
	if q.Busy == 0 {
		q.Busy = math.Inf(1)
	}
	// One round tells rank 0 whose links they are, the next what it has of them.
	names, err := q.Gather(ctx, []byte(fmt.Sprintf("%s %d", hostName(), cores())))
	if err != nil {
		return found, fmt.Errorf("gathering host names: %w", err)
	}
	if len(names) != len(q.Hosts) {
		return found, fmt.Errorf("names of %d hosts for %d ranks", len(names), len(q.Hosts))
	}
	cache := file{Version: version, Key: keyOf(q.Can, names, q.Hosts)}
	keeps := q.Rank == 0 && q.Dir != ""
	if keeps {
		cache, found.Note = load(q.Dir, cache.Key)
	}
	found.Key = cache.Key
	mine := offer{Made: cache.Made, Kept: cache.Kept, Fresh: q.Fresh}
	if keeps && !q.Fresh {
		var note string
		mine.Programs, note = loadMade(q.Dir, cache.Key)
		found.Note = join(found.Note, note)
	}
	if q.Known != nil && q.Known.Kind == q.Can.Name {
		known := *q.Known
		known.Ranks = len(q.Hosts)
		mine.Known = &known
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return found, fmt.Errorf("measured links: %w", err)
	}
	all, err := q.Gather(ctx, text)
	if err != nil {
		return found, fmt.Errorf("gathering measured links: %w", err)
	}
	offers := make([]offer, len(all))
	for rank, text := range all {
		if err := json.Unmarshal(text, &offers[rank]); err != nil {
			return found, fmt.Errorf("measured links of rank %d: %w", rank, err)
		}
	}
	if len(offers) == 0 {
		return found, errors.New("measured links of no rank")
	}
	first := offers[0]
	cache.Made, cache.Kept = first.Made, first.Kept
	found.Made = first.Programs
	links := sync.OnceValue(func() *probe { return newProbe(ctx, q.Port, q.Call, q.Rank, q.Hosts, q.Can.Rails) })
	if !first.Fresh {
		if known, err := found.known(&cache, offers, &q, links); known || err != nil {
			return found, err
		}
	}
	now, err := links().measure(max(q.Shared, 1), q.Gather)
	if err != nil {
		return found, err
	}
	if first.Fresh || cache.Made == 0 || now.Busy < cache.Kept.Busy {
		cache.Kept = now
	}
	if cache.Made++; first.Fresh {
		cache.Made = 1
	}
	if keeps { // links are good without a cache
		if err := save(q.Dir, cache); err != nil {
			found.Note = join(found.Note, err.Error())
		}
	}
	return found, found.use(cache.Kept, &q, fmt.Sprintf("measured in %.0f ms", now.Took/1e3))
}

// known takes links that were measured before, and reports whether they serve.
func (f *Found) known(cache *file, offers []offer, q *Query, links func() *probe) (bool, error) {
	met := slices.IndexFunc(offers, func(o offer) bool { return o.Known != nil })
	if met >= 0 && cache.Made == 0 {
		f.Links, f.Origin = *offers[met].Known, "known of an earlier meeting"
		return true, f.Check()
	}
	if met < 0 && !cache.settled(q.Busy) {
		return false, nil
	}
	since := cache.Kept.When.Format(time.DateTime)
	if met < 0 { // those that go on after a death do not wait for this
		if outdated, err := cache.outdated(links, q); err != nil {
			return false, err
		} else if outdated {
			if q.Rank == 0 {
				f.Note = join(f.Note, "links are measured again: messages take less than half as long as on "+since)
			}
			cache.Made = 0
			return false, nil
		}
	}
	return true, f.use(cache.Kept, q, "kept since "+since)
}

// join puts notes one behind the other.
func join(a, b string) string { return strings.Trim(a+"; "+b, "; ") }

// use makes links of a measurement.
func (f *Found) use(m figures, q *Query, how string) (err error) {
	if f.Links, err = m.links(q.Hosts); err != nil {
		return err
	}
	f.Kind, f.Doubtful, f.Origin = q.Can.Name, m.Busy > q.Busy, how+": "+costs(&f.Links, false, slices.Max(q.Hosts)+1)
	if f.Doubtful {
		f.Origin += fmt.Sprintf("; doubtful, as the ranks' work took %.1f times as long as it takes", m.Busy)
		if !q.Can.SharedMemory {
			f.Origin += ": what is usual counts"
		}
	}
	return nil
}
