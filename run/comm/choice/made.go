package choice

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/weft-fabric/weft/collective/sched"
)

// Made is a program that was made for the links of certain ranks, and that took less
// time there than the choice did, when both were run in turns.
type Made struct {
	Op      sched.Collective `json:"op"`
	Root    int              `json:"root"`
	From    int64            `json:"from_bytes"` // of the larger buffer, the least
	To      int64            `json:"to_bytes"`   // the most, itself included
	Form    string           `json:"form"`       // in words
	Program string           `json:"program"`    // its text
	Took    float64          `json:"took_us"`    // at From, when it was made
	Instead string           `json:"instead"`    // the choice that it replaces
	Would   float64          `json:"would_us"`   // what that took
}

// madeFile is the content of the file that keeps them.
type madeFile struct {
	Version int    `json:"version"`
	Key     Key    `json:"key"`
	Made    []Made `json:"made"`
}

// maxMade is the size in bytes from which a file is none of programs.
const maxMade = 4 << 20

func (k *Key) madeName() string {
	text, _ := json.Marshal(k) // strings and numbers
	sum := sha256.Sum256(text)
	return fmt.Sprintf("programs-%s-%d-%s.json", k.Kind, k.Ranks, hex.EncodeToString(sum[:6]))
}

// KeepMade keeps programs in the cache, in the place of those that were there. None at
// all takes the file away. It returns the file's path.
func KeepMade(dir string, key Key, list []Made) (string, error) {
	path := filepath.Join(dir, key.madeName())
	if len(list) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return path, fmt.Errorf("forgetting programs: %w", err)
		}
		return path, nil
	}
	text, err := json.MarshalIndent(madeFile{Version: version, Key: key, Made: list}, "", "  ")
	if err != nil {
		return path, fmt.Errorf("keeping programs: %w", err)
	}
	if len(text) > maxMade {
		return path, fmt.Errorf("keeping programs: %d bytes of them; at most %d are kept: ask for fewer trees or sizes", len(text), maxMade)
	}
	return path, write(dir, key.madeName(), text)
}

// loadMade gets the programs of a key; a file that cannot be used is as good as none,
// and note says why.
func loadMade(dir string, key Key) (list []Made, note string) {
	path := filepath.Join(dir, key.madeName())
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ""
	}
	var text []byte
	if err == nil && info.Size() > maxMade {
		err = fmt.Errorf("%d bytes; at most %d", info.Size(), maxMade)
	}
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		list, err = decodeMade(text, key)
	}
	if err != nil {
		return nil, fmt.Sprintf("programs in %s not used: %v", path, err)
	}
	return list, ""
}

// decodeMade reads a file of programs.
func decodeMade(text []byte, key Key) ([]Made, error) {
	var f madeFile
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	switch {
	case f.Version != version:
		return nil, fmt.Errorf("version %d, not %d", f.Version, version)
	case f.Key != key:
		return nil, fmt.Errorf("they belong to %+v, not %+v", f.Key, key)
	}
	for i := range f.Made {
		if err := f.Made[i].check(key.Ranks); err != nil {
			return nil, fmt.Errorf("program %d %w", i, err)
		}
	}
	return f.Made, nil
}

// check refuses what is not the program that its entry says.
func (m *Made) check(ranks int) error {
	p, err := sched.Parse(m.Program)
	switch {
	case err != nil:
		return fmt.Errorf("does not read: %w", err)
	case p.Op != m.Op || p.Op.Rooted() && p.Root != m.Root || p.Ranks != ranks || p.Switches > 0:
		return fmt.Errorf("is for %s of %d ranks, root %d; want %s of %d, root %d, without switches", p.Op, p.Ranks, p.Root, m.Op, ranks, m.Root)
	case m.From < 0 || m.To < m.From:
		return fmt.Errorf("is for %d to %d bytes", m.From, m.To)
	}
	return nil
}

// Programs are those that were made for the ranks' links. The zero value has none.
type Programs struct {
	list   []Made
	mu     sync.Mutex
	parsed map[int]*sched.Program
}

// NewPrograms takes what Find found.
func NewPrograms(list []Made) *Programs {
	return &Programs{list: list, parsed: map[int]*sched.Program{}}
}

// For gives the program that was made for a call, nil if none was.
func (p *Programs) For(op sched.Collective, root int, bytes int64) (*sched.Program, *Made) {
	if p == nil {
		return nil, nil
	}
	for i := range p.list {
		m := &p.list[i]
		if m.Op != op || op.Rooted() && m.Root != root || bytes < m.From || bytes > m.To {
			continue
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.parsed[i] == nil {
			prog, err := sched.Parse(m.Program)
			if err != nil { // it was read when it was found
				return nil, nil
			}
			p.parsed[i] = prog
		}
		return p.parsed[i], m
	}
	return nil, nil
}

// All lists them.
func (p *Programs) All() []Made {
	if p == nil {
		return nil
	}
	return p.list
}
