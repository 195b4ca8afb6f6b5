package ckpt_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// memory is a place for tests that need many or slow ones. It counts the bytes that
// were read, and holds Puts until gate lets them go if there is one.
type memory struct {
	mu    sync.Mutex
	blobs map[string][]byte
	read  int64
	gate  chan error // one value for each Put: nil to go on, or the error it gives
}

func newMemory() *memory { return &memory{blobs: map[string][]byte{}} }

func (m *memory) Put(ctx context.Context, name string, b blob.Body) error {
	if m.gate != nil {
		if err := <-m.gate; err != nil {
			return err
		}
	}
	var head []byte
	if b.Header != nil {
		h, err := b.Header()
		if err != nil {
			return err
		}
		head = h
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blobs[name] = append(bytes.Clone(head), bytes.Join(b.Data, nil)...)
	return nil
}

func (m *memory) Read(ctx context.Context, name string, p []byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.blobs[name]
	if !ok {
		return &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	if int64(len(b)) < off+int64(len(p)) {
		return fmt.Errorf("read %s: %w", name, io.ErrUnexpectedEOF)
	}
	copy(p, b[off:])
	m.read += int64(len(p))
	return nil
}

func (m *memory) List(ctx context.Context, prefix string) ([]blob.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []blob.Info
	for _, name := range slices.Sorted(maps.Keys(m.blobs)) {
		if strings.HasPrefix(name, prefix) {
			list = append(list, blob.Info{Name: name, Size: int64(len(m.blobs[name]))})
		}
	}
	return list, nil
}

func (m *memory) Remove(ctx context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.blobs, name)
	return nil
}

func (m *memory) RemoveAll(ctx context.Context, folder string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.blobs, func(name string, _ []byte) bool { return strings.HasPrefix(name, folder+"/") })
	return nil
}

func (m *memory) Unfinished(context.Context) ([]string, error) { return nil, nil }
func (m *memory) Abandon(context.Context, string) error        { return nil }
func (m *memory) Sync(context.Context, string) error           { return nil }
func (m *memory) Path(name string) string                      { return name }
func (m *memory) Close()                                       {}
