package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Hash names a block: its tokens and everything before them. Two blocks with equal hashes hold
// the same cache, wherever they were computed.
type Hash [32]byte

// String is the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash reads what String writes.
func ParseHash(text string) (Hash, error) {
	var h Hash
	if len(text) != hex.EncodedLen(len(h)) {
		return Hash{}, fmt.Errorf("kv: %.80q is not a hash: %d digits; want 64 hexadecimal digits", text, len(text))
	}
	if _, err := hex.Decode(h[:], []byte(text)); err != nil {
		return Hash{}, fmt.Errorf("kv: %q is not a hash; want 64 hexadecimal digits", text)
	}
	return h, nil
}

// Convention is the way in which a serving engine hashes blocks.
type Convention string

// The conventions.
//
//	vllm    h = sha256(cbor([parent, [tokens], extra or null])); the first parent is sha256(cbor(seed)),
//	        the seed being the text of PYTHONHASHSEED (vLLM's sha256_cbor)
//	sglang  h = sha256(parent + tokens as 32-bit little-endian numbers); no seed, no salt (SGLang's HiCache)
const (
	VLLM   Convention = "vllm"
	SGLang Convention = "sglang"
)

// Media is a picture or a sound in a prompt: what it is, and where it begins after the block's
// first token (negative if it began in an earlier block).
type Media struct {
	ID     string
	Offset int
}

// Extra is what a block's cache depends on beside its tokens.
type Extra struct {
	LoRA string
	// Media gives the pictures and sounds of a block by its first token.
	Media func(first int) []Media
	// Salt keeps the blocks of one tenant from matching another's. It enters the first block, and
	// by the chain all others.
	Salt string
}

// Chain computes hashes. All processes that share blocks need the same one.
type Chain struct {
	convention Convention
	root       Hash
	block      int
}

// NewChain is the chain of a convention for blocks of block tokens. SGLang's takes no seed.
func NewChain(c Convention, seed string, block int) (Chain, error) {
	if block < 1 {
		return Chain{}, fmt.Errorf("kv: blocks of %d tokens; want at least 1", block)
	}
	switch c {
	case VLLM:
		if seed == "" {
			return Chain{}, fmt.Errorf("kv: no seed: hashes of several processes would differ; give all of them the same PYTHONHASHSEED")
		}
		return Chain{c, sha256.Sum256(cborText(nil, seed)), block}, nil
	case SGLang:
		if seed != "" {
			return Chain{}, fmt.Errorf("kv: seed %q: hashes of %s have no seed", seed, SGLang)
		}
		return Chain{c, Hash{}, block}, nil
	}
	return Chain{}, fmt.Errorf("kv: convention %q; known: %s, %s", c, VLLM, SGLang)
}

// Block is the number of tokens of a block.
func (c Chain) Block() int { return c.block }

// Print tells chains apart that do not fit: peers exchange it and refuse another's. It does not
// tell the seed.
func (c Chain) Print() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "weft kv chain 1 %s %d %x", c.convention, c.block, c.root))
	return fmt.Sprintf("%s/%d/%x", c.convention, c.block, sum[:8])
}

// Hashes gives the hashes of the whole blocks of tokens; the rest has none.
func (c Chain) Hashes(tokens []uint32, x Extra) ([]Hash, error) {
	if c.convention == SGLang && (x.LoRA != "" || x.Media != nil || x.Salt != "") {
		return nil, fmt.Errorf("kv: hashes of %s hold tokens alone; keep tenants and adapters apart by name", SGLang)
	}
	out := make([]Hash, 0, len(tokens)/c.block)
	parent, first := c.root, true
	var buf []byte
	for at := 0; at+c.block <= len(tokens); at += c.block {
		buf = c.encode(buf[:0], parent, tokens[at:at+c.block], at, x, first)
		parent, first = sha256.Sum256(buf), false
		out = append(out, parent)
	}
	return out, nil
}

// encode writes what the hash of a block is taken of.
func (c Chain) encode(b []byte, parent Hash, tokens []uint32, at int, x Extra, first bool) []byte {
	if c.convention == SGLang {
		if !first {
			b = append(b, parent[:]...)
		}
		for _, t := range tokens {
			b = binary.LittleEndian.AppendUint32(b, t)
		}
		return b
	}
	b = cborHead(b, 4, 3)
	b = cborHead(b, 2, uint64(len(parent)))
	b = append(b, parent[:]...)
	b = cborHead(b, 4, uint64(len(tokens)))
	for _, t := range tokens {
		b = cborHead(b, 0, uint64(t))
	}
	var media []Media
	if x.Media != nil {
		media = x.Media(at)
	}
	keys := len(media)
	if x.LoRA != "" {
		keys++
	}
	salted := first && x.Salt != ""
	if salted {
		keys++
	}
	if keys == 0 {
		return append(b, 0xf6)
	}
	b = cborHead(b, 4, uint64(keys))
	if x.LoRA != "" {
		b = cborText(b, x.LoRA)
	}
	for _, m := range media {
		b = cborHead(b, 4, 2)
		b = cborText(b, m.ID)
		if m.Offset < 0 {
			b = cborHead(b, 1, uint64(-m.Offset-1))
		} else {
			b = cborHead(b, 0, uint64(m.Offset))
		}
	}
	if salted {
		b = cborText(b, x.Salt)
	}
	return b
}

func cborText(b []byte, text string) []byte {
	return append(cborHead(b, 3, uint64(len(text))), text...)
}

// cborHead writes the head of an item (RFC 8949): major type and number, in the fewest bytes.
func cborHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major<<5|byte(n))
	case n < 1<<8:
		return append(b, major<<5|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major<<5|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major<<5|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major<<5|27), n)
}
