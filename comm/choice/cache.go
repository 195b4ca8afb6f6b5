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
	"os"
	"path/filepath"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/tune"
)

// Key is what measured links belong to.
type Key struct {
	Hosts  string `json:"hosts"`  // a digest of the hosts' names, by rank
	Kind   string `json:"kind"`   // of the transport
	Ranks  int    `json:"ranks"`  // of all hosts
	Cores  int    `json:"cores"`  // that a process may use
	Kernel string `json:"kernel"` // release
	Path   string `json:"path"`   // of the reduction kernels: avx512, avx2, ...
}

// file is a cache file's content.
type file struct {
	Version int        `json:"version"`
	Key     Key        `json:"key"`
	Links   tune.Links `json:"links"`
}

// version changes when figures come to mean something else.
const version = 1

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

// Load gets links out of the cache in a directory. ok is false if there are
// none; a file that cannot be used is as good as none, and note says why.
func Load(dir string, key Key) (l tune.Links, note string, ok bool) {
	path := filepath.Join(dir, key.name())
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return tune.Links{}, "", false
	}
	if err != nil {
		return tune.Links{}, "measured links not read: " + err.Error(), false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return tune.Links{}, "measured links not read: " + err.Error(), false
	}
	if l, err = decode(text, key); err != nil {
		return tune.Links{}, fmt.Sprintf("measured links in %s not used: %v", path, err), false
	}
	return l, "", true
}

// decode reads a cache file.
func decode(text []byte, key Key) (tune.Links, error) {
	var got file
	if len(text) > maxFile {
		return tune.Links{}, fmt.Errorf("more than %d bytes", maxFile)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		return tune.Links{}, err
	}
	switch {
	case got.Version != version:
		return tune.Links{}, fmt.Errorf("version %d, not %d", got.Version, version)
	case got.Key != key:
		return tune.Links{}, fmt.Errorf("they belong to %+v, not %+v", got.Key, key)
	case got.Links.Ranks != key.Ranks || got.Links.Kind != key.Kind:
		return tune.Links{}, fmt.Errorf("%d ranks over %q, not %d over %q", got.Links.Ranks, got.Links.Kind, key.Ranks, key.Kind)
	}
	return got.Links, got.Links.Check()
}

// Save keeps links in the cache. The file is there whole or not at all.
func Save(dir string, key Key, l tune.Links) error {
	text, err := json.MarshalIndent(file{version, key, l}, "", "  ")
	if err != nil {
		return fmt.Errorf("keeping measured links: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("keeping measured links: %w", err)
	}
	f, err := os.CreateTemp(dir, ".links-*")
	if err != nil {
		return fmt.Errorf("keeping measured links: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, key.name()))
	}
	if err != nil {
		return fmt.Errorf("keeping measured links: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
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
func keyOf(kind string, names [][]byte, hosts []int) Key {
	sum := sha256.New()
	for r, name := range names {
		fmt.Fprintf(sum, "%d %d %q\n", r, hosts[r], name)
	}
	return Key{Hosts: hex.EncodeToString(sum.Sum(nil)[:8]), Kind: kind, Ranks: len(hosts), Cores: cores(), Kernel: kernel(), Path: reduce.Path()}
}

// Query is whose links are wanted. All ranks ask at once; see Measure for the
// port, the call and the hosts.
type Query struct {
	Port   transport.Port
	Call   transport.Call
	Kind   string // of the transport
	Rank   int
	Hosts  []int
	Gather transport.Gather
	Dir    string // of the cache; empty for none
	Fresh  bool   // measure even if the cache knows them

	// Known are links of an earlier meeting on the same hosts, nil for none. They
	// serve where the cache has none of this many ranks: a rank that died leaves the
	// links as they were, and those that go on do not wait for a measurement.
	Known *tune.Links

	// Busy is how many times longer than necessary ranks may have waited for cores
	// for links to be kept, 0 for any. It tells a host that did something else at
	// the time: 1.5 is plenty.
	Busy float64
}

// Find gets links: those that rank 0 has in its cache if there are some, else
// measured ones, which rank 0 then keeps. Every rank returns the same. note is
// for people: what was wrong with the cache, if anything.
func Find(ctx context.Context, q Query) (l tune.Links, note string, err error) {
	// One round tells rank 0 whose links they are, the next what it has of them.
	names, err := q.Gather(ctx, []byte(fmt.Sprintf("%s %d", hostName(), cores())))
	if err != nil {
		return l, "", fmt.Errorf("gathering host names: %w", err)
	}
	if len(names) != len(q.Hosts) {
		return l, "", fmt.Errorf("names of %d hosts for %d ranks", len(names), len(q.Hosts))
	}
	key := keyOf(q.Kind, names, q.Hosts)
	keeps := q.Rank == 0 && q.Dir != ""
	var mine []byte
	if keeps && !q.Fresh {
		var ok bool
		if l, note, ok = Load(q.Dir, key); ok {
			if mine, err = json.Marshal(l); err != nil {
				return l, "", fmt.Errorf("measured links: %w", err)
			}
		}
	}
	if mine == nil && q.Known != nil && q.Known.Kind == q.Kind && !q.Fresh {
		known := *q.Known
		known.Ranks = len(q.Hosts)
		if mine, err = json.Marshal(known); err != nil {
			return l, "", fmt.Errorf("known links: %w", err)
		}
	}
	all, err := q.Gather(ctx, mine)
	if err != nil {
		return l, note, fmt.Errorf("gathering measured links: %w", err)
	}
	for rank, text := range all {
		if len(text) == 0 {
			continue
		}
		var got tune.Links
		if err := json.Unmarshal(text, &got); err != nil {
			return l, note, fmt.Errorf("measured links of rank %d: %w", rank, err)
		}
		return got, note, got.Check()
	}
	l, busy, err := measure(ctx, q.Port, q.Call, q.Rank, q.Hosts, q.Gather)
	if err != nil {
		return l, note, err
	}
	l.Kind = q.Kind
	also := ""
	switch {
	case !keeps:
	case busy > q.Busy && q.Busy > 0:
		also = fmt.Sprintf("measured links not kept: while they were measured, ranks had a core for 1/%.1f of the time that was theirs", busy)
	default: // links are good without a cache
		if err := Save(q.Dir, key, l); err != nil {
			also = err.Error()
		}
	}
	if note != "" && also != "" {
		note += "; "
	}
	return l, note + also, nil
}
