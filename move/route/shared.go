package route

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/move/openai"
)

// With a cache that the engines share, what one engine has computed the others can load. Then a prompt need not wait for the
// engine that knows its beginning:
//
//	cost(e) = what waits at e + bytes that nobody has + 1/loadShare of the bytes that the cache has and e has not
//
// Engines name blocks by tokens. weft.vllm leaves a note in the cache that says how, an engine's /tokenize gives the tokens, and
// the cache is asked how far they match.

// loadShare is how many bytes of a prompt are loaded in the time that computing one takes.
const loadShare = 4

// noteTime is how long a note counts: engines may start again with another seed.
const noteTime = time.Minute

// restTime is how long a cache that did not answer is left alone.
const restTime = 2 * time.Second

// A note says how engines name the blocks of a model; python/weft/vllm.py writes it.
type note struct {
	Space string `json:"space"`
	Block int    `json:"block"`
	Seed  string `json:"seed"`

	chain  kv.Chain
	client *kvcache.Client // for its chain
	until  time.Time
}

// shared is the cache that the engines share.
type shared struct {
	address, token string
	tls            *tls.Config
	client         *kvcache.Client

	mu      sync.Mutex
	notes   map[string]*note
	rest    time.Time
	why     string
	looks   int
	matched int // bytes
}

func newShared(address, token string, t *tls.Config) *shared {
	return &shared{address: address, token: token, tls: t, client: kvcache.DialTLS(address, token, "", t), notes: map[string]*note{}}
}

func (s *shared) close() {
	s.client.Close()
	for _, n := range s.notes {
		n.client.Close()
	}
}

// nameOf is a name of any length as the cache takes it: weft.kv.key_of.
func nameOf(text string) kv.Hash { return sha256.Sum256([]byte("name " + text)) }

// noteOf reads a model's note, and remembers it. It is nil for a model whose engines left none.
func (s *shared) noteOf(ctx context.Context, model string) (*note, error) {
	s.mu.Lock()
	old := s.notes[model]
	s.mu.Unlock()
	if old != nil && time.Now().Before(old.until) {
		return old, nil
	}
	n := &note{}
	got, err := s.client.Get(ctx, []kv.Hash{nameOf("weft.vllm note|" + model)}, 0,
		func(_ int, data []byte) error { return json.Unmarshal(data, n) })
	if err != nil || got == 0 {
		return nil, err
	}
	if n.chain, err = kv.NewChain(kv.VLLM, n.Seed, n.Block); err != nil {
		return nil, fmt.Errorf("the note of %q: %w", model, err)
	}
	n.until, n.client = time.Now().Add(noteTime), kvcache.DialTLS(s.address, s.token, n.chain.Print(), s.tls)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.notes[model]; old != nil {
		old.client.Close() // idle connections: those in use are kept
	}
	s.notes[model] = n
	return n, nil
}

// match is how many of a prompt's tokens the cache has, from the first on.
func (n *note) match(ctx context.Context, tokens []uint32, salt string) (int, error) {
	blocks, err := n.chain.Hashes(tokens, kv.Extra{Salt: salt})
	if err != nil || len(blocks) == 0 {
		return 0, err
	}
	names := make([]kv.Hash, len(blocks))
	for i, b := range blocks {
		names[i] = nameOf(fmt.Sprintf("%s|0.0|%s", n.Space, b))
	}
	found, err := n.client.Match(ctx, names)
	return len(found) * n.Block, err
}

// resting reports whether the cache did not answer a moment ago.
func (s *shared) resting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.rest)
}

// has is how many bytes of a prompt's text the shared cache holds; 0 without one, or where it cannot be told in time.
func (r *Router) has(q *http.Request, parsed *openai.Request, body []byte, size int) int {
	s := r.shared
	if s == nil || s.resting() {
		return 0
	}
	ctx, cancel := context.WithTimeout(q.Context(), r.o.Look)
	defer cancel()
	share, err := r.share(ctx, q, parsed, body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && q.Context().Err() == nil {
		s.rest, s.why = time.Now().Add(restTime), err.Error()
		r.o.Log.Warn("what the shared cache has is not known", "cache", s.address, "error", err)
		return 0
	}
	bytes := int(share * float64(size))
	s.looks, s.matched, s.why = s.looks+1, s.matched+bytes, ""
	return bytes
}

// share is the part of a prompt that the shared cache holds.
func (r *Router) share(ctx context.Context, q *http.Request, parsed *openai.Request, body []byte) (float64, error) {
	n, err := r.shared.noteOf(ctx, parsed.Model)
	if n == nil || err != nil {
		return 0, err
	}
	tokens, salt, err := r.tokens(ctx, q, parsed, body)
	if len(tokens) == 0 || err != nil {
		return 0, err
	}
	have, err := n.match(ctx, tokens, salt)
	return float64(have) / float64(len(tokens)), err
}

// tokens asks an engine that is up for the tokens of a prompt. A prompt that is a list of tokens needs no engine.
func (r *Router) tokens(ctx context.Context, q *http.Request, parsed *openai.Request, body []byte) (tokens []uint32, salt string,
	err error) {
	var ask struct {
		Model    string          `json:"model"`
		Prompt   json.RawMessage `json:"prompt,omitempty"`
		Messages json.RawMessage `json:"messages,omitempty"`
		Tools    json.RawMessage `json:"tools,omitempty"`
		Salt     string          `json:"cache_salt,omitempty"`
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, "", err
	}
	if json.Unmarshal(parsed.Prompt, &tokens) == nil && len(tokens) > 0 {
		return tokens, ask.Salt, nil
	}
	ups := r.ups()
	if len(ups) == 0 {
		return nil, "", nil
	}
	salt, ask.Salt = ask.Salt, ""
	text, err := json.Marshal(ask)
	if err != nil {
		return nil, "", err
	}
	tokens, err = r.tokenize(ctx, ups[0], q.Header, text)
	return tokens, salt, err
}

// tokenize asks one engine.
func (r *Router) tokenize(ctx context.Context, base string, from http.Header, text []byte) ([]uint32, error) {
	up, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/tokenize", bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	pass(from, up.Header)
	up.Header.Set("Content-Type", "application/json")
	a, err := r.client.Do(up)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	defer a.Body.Close()
	if a.StatusCode == http.StatusBadRequest { // a prompt that the engine will refuse, too
		return nil, nil
	}
	if a.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("tokens: POST /tokenize: %s; the engines must have it, as vLLM has", a.Status)
	}
	var got struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.NewDecoder(io.LimitReader(a.Body, 64<<20)).Decode(&got); err != nil {
		return nil, fmt.Errorf("tokens: POST /tokenize: %w", err)
	}
	return got.Tokens, nil
}
