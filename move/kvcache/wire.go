package kvcache

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/weft-fabric/weft/move/kv"
)

// The protocol is HTTP/1.1 with bodies that any language reads with its own library: a head in JSON, then blocks.
//
//	body    4 bytes length of the head, the head, then frames
//	frame   8 bytes length of the block (all ones: not there), 4 bytes CRC-32 (IEEE) of it, the block
//
// Numbers are little-endian.

// request is the head of calls about a path.
type request struct {
	// Keys are the names of the blocks from the beginning of a text on, in hexadecimal.
	Keys []string `json:"keys"`
	// From is the first that is meant; those before only say where it is.
	From int `json:"from"`
	// Alone says that every name is one by itself: no path is known.
	Alone bool `json:"alone,omitempty"`
	// Each asks match about every name that stands alone, also behind those that are nowhere: their entries are empty.
	Each bool `json:"each,omitempty"`
}

// answer is the head of what comes back.
type answer struct {
	Blocks int     `json:"blocks"` // from From on: those that are there, or were stored
	Where  []Where `json:"where,omitempty"`
	Error  string  `json:"error,omitempty"`
}

const (
	maxHead = 16 << 20
	maxKeys = 1 << 17
	missing = ^uint64(0)

	maxBlock = 1 << 32
)

// hashes decodes the keys, and checks that From is one of them.
func (r request) hashes() ([]kv.Hash, error) {
	if len(r.Keys) == 0 || len(r.Keys) > maxKeys || r.From < 0 || r.From >= len(r.Keys) {
		return nil, fmt.Errorf("%d keys from %d on; want 1 to %d, and the first of them among them", len(r.Keys), r.From, maxKeys)
	}
	out := make([]kv.Hash, len(r.Keys))
	for i, k := range r.Keys {
		h, err := kv.ParseHash(k)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i, err)
		}
		out[i] = h
	}
	return out, nil
}

func writeHead(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// readHead reads the JSON that stands before frames: four bytes of length, at most maxHead, then the text.
func readHead(r io.Reader, v any) error {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return fmt.Errorf("length of the head: %w", err)
	}
	size := binary.LittleEndian.Uint32(n[:])
	if size > maxHead {
		return fmt.Errorf("a head of %d bytes; at most %d", size, maxHead)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return fmt.Errorf("head: %w", err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("head: %w", err)
	}
	return nil
}

// writeFrame writes length, CRC-32 and data. nil is a missing block; a block of no bytes is not the same.
func writeFrame(w io.Writer, data []byte) error {
	var b [12]byte
	if data == nil {
		binary.LittleEndian.PutUint64(b[:], missing)
		_, err := w.Write(b[:])
		return err
	}
	binary.LittleEndian.PutUint64(b[:], uint64(len(data)))
	binary.LittleEndian.PutUint32(b[8:], crc32.ChecksumIEEE(data))
	if _, err := w.Write(b[:]); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

var errMissing = errors.New("not there")

// readFrame reads a block of at most most bytes into buf if buf is large enough.
func readFrame(r io.Reader, most int64, buf []byte) ([]byte, error) {
	var b [12]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, fmt.Errorf("frame: %w", err)
	}
	n := binary.LittleEndian.Uint64(b[:])
	if n == missing {
		return nil, errMissing
	}
	if n > uint64(most) {
		return nil, fmt.Errorf("a block of %d bytes; at most %d", n, most)
	}
	if uint64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, fmt.Errorf("block of %d bytes: %w", n, err)
	}
	if crc32.ChecksumIEEE(buf) != binary.LittleEndian.Uint32(b[8:]) {
		return nil, fmt.Errorf("block of %d bytes: %w", n, errDamaged)
	}
	return buf, nil
}
