package ckpt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/weft-fabric/weft/run/ckpt/internal/safetensors"
	"golang.org/x/sync/errgroup"
)

// folderName is where an attempt at a step lies. Attempts that must not mix differ
// in the digest.
func folderName(m *shardMeta) string {
	key := fmt.Sprintf("%q %d %d %t", m.Run, m.Epoch, m.World, m.Emergency)
	return fmt.Sprintf("step-%012d-%08x", m.Step, uint32(sum([]byte(key))))
}

// parseFolder reads the step from a folder's name.
func parseFolder(name string) (step int64, ok bool) {
	var digest uint32
	n, err := fmt.Sscanf(name, "step-%012d-%08x", &step, &digest)
	return step, err == nil && n == 2 && step >= 0 && name == fmt.Sprintf("step-%012d-%08x", step, digest)
}

func isFolder(name string) bool {
	_, ok := parseFolder(name)
	return ok
}

func shardName(rank int) string { return fmt.Sprintf("rank-%05d.safetensors", rank) }

// Save writes this rank's shards and, if the other ranks' are there already, the
// manifest. It returns when this rank's part is durable; the checkpoint exists when
// all ranks have called Save with the same step, epoch, run and world. Saving again
// what is complete already does nothing if it is the same, and is an error if not.
//
// A rank's checkpoints are written in order: what Async started comes first.
func (s *Store) Save(ctx context.Context, m Meta, tensors []Tensor) error {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	select {
	case <-last:
	case <-ctx.Done():
		return fmt.Errorf("save step %d: waiting for the write before: %w", m.Step, context.Cause(ctx))
	}
	return s.save(ctx, m, false, tensors)
}

// Emergency is Save for ranks that may not live long: it does not wait for
// background writes, and what it writes does not count among those Options.Keep
// keeps: it goes when the next regular checkpoint is complete. The ranks that are
// left give their own number as World; the checkpoint is complete if they hold
// every tensor in full between them.
func (s *Store) Emergency(ctx context.Context, m Meta, tensors []Tensor) error {
	return s.save(ctx, m, true, tensors)
}

func (s *Store) save(ctx context.Context, m Meta, emergency bool, tensors []Tensor) error {
	sh, err := newShard(m, emergency, time.Now(), tensors)
	if err != nil {
		return fmt.Errorf("save step %d: %w", m.Step, err)
	}
	return s.write(ctx, sh)
}

// write puts a shard and completes the checkpoint if it is the last.
func (s *Store) write(ctx context.Context, sh *shard) error {
	err := func() error {
		folder := folderName(&sh.meta)
		body, err := sh.body()
		if err != nil {
			return err
		}
		done, err := s.manifest(ctx, folder)
		if err == nil {
			return s.same(ctx, done, sh, body)
		}
		// A manifest that cannot be read is damage to be replaced by this attempt.
		if d := new(Damage); !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &d) {
			return err
		}
		if err := s.place.Put(ctx, folder+"/"+shardName(sh.meta.Rank), body); err != nil {
			return err
		}
		m, err := s.commit(ctx, folder, sh.meta.World)
		if err != nil || m == nil {
			return err
		}
		if err := s.prune(ctx, m); err != nil {
			return fmt.Errorf("the checkpoint is complete, but old ones could not be removed: %w", err)
		}
		return nil
	}()
	if err != nil {
		return fmt.Errorf("save step %d, rank %d: %w", sh.meta.Step, sh.meta.Rank, err)
	}
	return nil
}

// same reports whether a complete checkpoint holds the shard already.
func (s *Store) same(ctx context.Context, m *Manifest, sh *shard, b blob.Body) error {
	if m.World != sh.meta.World {
		return fmt.Errorf("%s is complete already, of %d ranks; give every launch its own Meta.Run", s.place.Path(m.folder), m.World)
	}
	f := m.Files[sh.meta.Rank]
	h, _, err := readHeader(ctx, s.place, m.folder+"/"+f.Name, f.Size)
	if err != nil {
		return err
	}
	old, err := shardInfo(h)
	if err != nil {
		return err
	}
	if _, err := b.Header(); err != nil {
		return err
	}
	if b.Size()-b.Head == f.Size-f.Head && slices.Equal(old.Chunks, sh.meta.Chunks) {
		return nil
	}
	return fmt.Errorf("%s is complete already, and holds other data; give every launch its own Meta.Run", s.place.Path(m.folder))
}

// commit writes the manifest if all shards of a folder are there; nil if not.
func (s *Store) commit(ctx context.Context, folder string, world int) (*Manifest, error) {
	list, err := s.place.List(ctx, folder+"/")
	if err != nil {
		return nil, err
	}
	size := map[string]int64{}
	for _, i := range list {
		size[strings.TrimPrefix(i.Name, folder+"/")] = i.Size
	}
	for rank := range world {
		if _, ok := size[shardName(rank)]; !ok {
			return nil, nil
		}
	}
	type front struct {
		header safetensors.Header
		head   []byte
		meta   *shardMeta
	}
	fronts := make([]front, world)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers())
	for rank := range world {
		g.Go(func() error {
			name := folder + "/" + shardName(rank)
			h, head, err := readHeader(gctx, s.place, name, size[shardName(rank)])
			if err != nil {
				return s.named(name, err)
			}
			meta, err := shardInfo(h)
			fronts[rank] = front{h, head, meta}
			return s.named(name, err)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	first := fronts[0].meta
	m := &Manifest{
		Format: formatName, folder: folder, Step: first.Step, Epoch: first.Epoch, Run: first.Run, World: first.World,
		Emergency: first.Emergency, Layout: first.Layout, Data: first.Data,
	}
	tensors := map[string]*Info{}
	for rank, f := range fronts {
		if f.meta.Rank != rank {
			return nil, fmt.Errorf("%s is of rank %d", s.place.Path(folder+"/"+shardName(rank)), f.meta.Rank)
		}
		if err := first.agree(f.meta); err != nil {
			return nil, fmt.Errorf("%s: %w", s.place.Path(folder), err)
		}
		if m.Extra == nil {
			m.Extra = f.meta.Extra
		}
		if f.meta.Created.After(m.Created) {
			m.Created = f.meta.Created
		}
		name := shardName(rank)
		m.Files = append(m.Files, File{Name: name, Rank: rank, Size: size[name], Head: int64(len(f.head)), Hash: sum(f.head),
			Random: f.meta.Random})
		if err := addParts(tensors, rank, name, f.header, f.meta.Parts); err != nil {
			return nil, fmt.Errorf("%s: %w", s.place.Path(folder), err)
		}
	}
	m.Tensors = sorted(tensors)
	if err := m.covered(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.place.Path(folder), err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.place.Path(folder), err)
	}
	text, err := m.encode()
	if err != nil {
		return nil, err
	}
	// The others' files must be durable before a manifest that names them is.
	if err := s.place.Sync(ctx, folder); err != nil {
		return nil, err
	}
	return m, s.place.Put(ctx, folder+"/"+manifestName, blob.Bytes(text))
}

// agree reports what two ranks of one checkpoint say differently.
func (a *shardMeta) agree(b *shardMeta) error {
	differ := func(what string, x, y any) error {
		return fmt.Errorf("ranks %d and %d do not save the same: %s is %v and %v", a.Rank, b.Rank, what, x, y)
	}
	switch {
	case a.Step != b.Step:
		return differ("step", a.Step, b.Step)
	case a.Epoch != b.Epoch:
		return differ("epoch", a.Epoch, b.Epoch)
	case a.Run != b.Run:
		return differ("run", a.Run, b.Run)
	case a.World != b.World:
		return differ("world", a.World, b.World)
	case a.Emergency != b.Emergency:
		return differ("emergency", a.Emergency, b.Emergency)
	case a.Data != b.Data:
		return differ("data position", a.Data, b.Data)
	case !maps.Equal(a.Layout, b.Layout):
		return differ("layout", a.Layout, b.Layout)
	}
	return nil
}

// named puts a blob's name in front of an error about its contents; errors of
// reading name it themselves.
func (s *Store) named(name string, err error) error {
	if f := new(fault); errors.As(err, &f) {
		return fmt.Errorf("%s: %w", s.place.Path(name), err)
	}
	return err
}
