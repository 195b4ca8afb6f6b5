package kvcache

import (
	"bufio"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/move/kv"
)

// ChainHeader carries kv.Chain's Print: the first client of a tenant says which chain its blocks are named by, unless it was given, and
// clients of the tenant with another are refused.
const ChainHeader = "Weft-Kv-Chain"

// Server answers clients of a cache.
type Server struct {
	cache *Cache
	peer  string // token of other caches
	apart bool   // tenants have tokens that are not that of other caches: what concerns others is not told

	mu     sync.Mutex
	chains map[string]string // of each tenant
}

// NewServer serves a cache. Other caches show the peer token, which no tenant has unless there is only one; with tenants and without a peer
// token there are no other caches. chain may be empty.
func NewServer(c *Cache, peerToken, chain string) *Server {
	s := &Server{cache: c, peer: peerToken, chains: map[string]string{}}
	for name, t := range c.tenants {
		s.chains[name] = chain
		s.apart = s.apart || t.Token != peerToken
	}
	return s
}

// Handler is the service:
//
//	POST /v1/match   head {keys, from}             -> JSON {blocks, where}
//	POST /v1/get     head {keys, from}             -> head {blocks}, a frame for each key
//	POST /v1/put     head {keys, from}, frames     -> JSON {blocks}
//	POST /v1/fill, /v1/drain  head {keys, from, agent, region, pieces} -> JSON {blocks, sums, path}: get and put by transfers
//	GET  /v1/stat, /metrics, /healthz
//	GET  /v1/changes?generation=G&since=N, POST /v1/fetch, /v1/push: for other caches
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/match", s.tenant(s.match))
	mux.HandleFunc("POST /v1/get", s.tenant(s.get))
	mux.HandleFunc("POST /v1/put", s.tenant(s.put))
	mux.HandleFunc("POST /v1/fill", s.moves(s.cache.fill))
	mux.HandleFunc("POST /v1/drain", s.moves(s.cache.drain))
	mux.HandleFunc("GET /v1/stat", s.any(func(w http.ResponseWriter, st Stat) { reply(w, http.StatusOK, st) }))
	metrics := func(w http.ResponseWriter, st Stat) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_ = st.Metrics(w)
	}
	if s.apart {
		mux.HandleFunc("GET /metrics", s.any(metrics))
	} else {
		mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { metrics(w, s.cache.Stat()) })
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /v1/changes", s.other(s.changes))
	mux.HandleFunc("POST /v1/fetch", s.other(s.fetch))
	mux.HandleFunc("POST /v1/push", s.other(s.push))
	return mux
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code int, format string, args ...any) {
	reply(w, code, answer{Error: fmt.Sprintf(format, args...)})
}

func bearer(r *http.Request) string {
	t, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return ""
	}
	return t
}

func (s *Server) isPeer(r *http.Request) bool {
	if _, tenant := certificate(r); tenant || s.apart && s.peer == "" {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(bearer(r)), []byte(s.peer)) == 1
}

// tenant finds out who asks.
func (s *Server) tenant(f func(w http.ResponseWriter, r *http.Request, who string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		claim, ok := s.who(r)
		if !ok {
			refuse(w, http.StatusUnauthorized, "no tenant has this token, or it is over, or for another cache; send 'Authorization: Bearer TOKEN'")
			return
		}
		who := claim.Tenant
		if print := r.Header.Get(ChainHeader); print != "" {
			s.mu.Lock()
			if s.chains[who] == "" {
				s.chains[who] = print
			}
			have := s.chains[who]
			s.mu.Unlock()
			if have != print {
				refuse(w, http.StatusConflict,
					"blocks here are named by the chain %s, yours is %s: convention, block size or seed (PYTHONHASHSEED) differ", have, print)
				return
			}
		}
		f(w, r, who)
	}
}

// any is for tenants, who hear of themselves alone, and for whoever has the token of other caches, who hears of all.
func (s *Server) any(f func(w http.ResponseWriter, st Stat)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		claim, ok := s.who(r)
		var st Stat
		switch {
		case s.isPeer(r):
			st = s.cache.Stat()
		case ok:
			st = s.cache.Of(claim.Tenant)
		default:
			refuse(w, http.StatusUnauthorized, "nobody has this token; send 'Authorization: Bearer TOKEN'")
			return
		}
		s.mu.Lock()
		if len(st.Tenants) == 1 {
			st.Chain = s.chains[st.Tenants[0].Name]
		}
		s.mu.Unlock()
		f(w, st)
	}
}

// other is for other caches.
func (s *Server) other(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.isPeer(r) {
			refuse(w, http.StatusUnauthorized, "this is for other caches; they show WEFT_TOKEN")
			return
		}
		f(w, r)
	}
}

func (s *Server) read(w http.ResponseWriter, r io.Reader) (request, []kv.Hash, bool) {
	var q request
	if err := readHead(r, &q); err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return q, nil, false
	}
	all, err := q.hashes()
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return q, nil, false
	}
	return q, all, true
}

// match says how many blocks of a path are there, and where, without moving any.
func (s *Server) match(w http.ResponseWriter, r *http.Request, who string) {
	q, all, ok := s.read(w, r.Body)
	if !ok {
		return
	}
	if q.Each {
		s.matchEach(w, r, who, all[q.From:])
		return
	}
	var where []Where
	list, err := s.cache.Match(r.Context(), who, Path{all, q.Alone})
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	if len(list) > q.From {
		where = list[q.From:]
	}
	reply(w, http.StatusOK, answer{Blocks: len(where), Where: where})
}

// matchEach answers for every name by itself. Blocks counts those from the first on.
func (s *Server) matchEach(w http.ResponseWriter, r *http.Request, who string, all []kv.Hash) {
	out := answer{Where: make([]Where, len(all))}
	for at := 0; at < len(all); at++ { // over the one that is nowhere
		list, err := s.cache.Match(r.Context(), who, Path{all[at:], true})
		if err != nil {
			refuse(w, http.StatusBadRequest, "%v", err)
			return
		}
		if at == 0 {
			out.Blocks = len(list)
		}
		at += copy(out.Where[at:], list)
	}
	reply(w, http.StatusOK, out)
}

// get sends blocks in frames, in the order of the keys. The status is sent before the first block is looked for, so a
// missing block is an empty frame and not an error.
func (s *Server) get(w http.ResponseWriter, r *http.Request, who string) {
	q, all, ok := s.read(w, r.Body)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	out := bufio.NewWriterSize(w, 64<<10)
	if writeHead(out, answer{Blocks: len(all) - q.From}) != nil {
		return
	}
	// From a path's first gap on nothing is of use; names that stand alone have no gaps.
	for i := q.From; i < len(all); i++ {
		_, found, err := s.cache.Get(r.Context(), who, Path{all, q.Alone}, i, func(data []byte) error { return writeFrame(out, data) })
		if err != nil {
			return // the client is gone
		}
		if !found && writeFrame(out, nil) != nil {
			return
		}
		if !found && !q.Alone {
			writeGaps(out, len(all)-i-1)
			return
		}
	}
	_ = out.Flush()
}

// writeGaps ends an answer with blocks that are not there.
func writeGaps(out *bufio.Writer, n int) {
	for range n {
		if writeFrame(out, nil) != nil {
			return // the client is gone
		}
	}
	_ = out.Flush()
}

// put stores blocks until the cache has no room. That is an answer with the number stored, not a failure; the rest of
// the body is read so that the connection can be used again.
func (s *Server) put(w http.ResponseWriter, r *http.Request, who string) {
	in := bufio.NewReaderSize(r.Body, 64<<10)
	q, all, ok := s.read(w, in)
	if !ok {
		return
	}
	var buf []byte
	stored := 0
	for i := q.From; i < len(all); i++ {
		data, err := readFrame(in, s.cache.o.Block, buf)
		if err != nil {
			refuse(w, http.StatusBadRequest, "block %d: %v", i, err)
			return
		}
		if buf = data; len(data) == 0 {
			refuse(w, http.StatusBadRequest, "block %d is empty", i)
			return
		}
		switch _, err := s.cache.Put(who, Path{all, q.Alone}, i, data); {
		case errors.Is(err, ErrRoom):
			_, _ = io.Copy(io.Discard, in)
			reply(w, http.StatusOK, answer{Blocks: stored, Error: err.Error()})
			return
		case err != nil:
			refuse(w, http.StatusBadRequest, "block %d: %v", i, err)
			return
		}
		stored++
	}
	reply(w, http.StatusOK, answer{Blocks: stored})
}

// changes gives what is new since a number, for up to half a second where nothing is.
func (s *Server) changes(w http.ResponseWriter, r *http.Request) {
	generation, err1 := strconv.ParseUint(r.URL.Query().Get("generation"), 16, 64)
	since, err2 := strconv.ParseUint(r.URL.Query().Get("since"), 10, 64)
	if err1 != nil || err2 != nil {
		refuse(w, http.StatusBadRequest, "want ?generation=HEX&since=NUMBER")
		return
	}
	end := time.NewTimer(500 * time.Millisecond)
	defer end.Stop()
	for {
		list, more := s.cache.changes(generation, since)
		if len(list.Blocks) > 0 || list.Whole {
			reply(w, http.StatusOK, list)
			return
		}
		select {
		case <-more:
		case <-end.C:
			reply(w, http.StatusOK, list)
			return
		case <-r.Context().Done():
			return
		}
	}
}

// fetch gives one block, by its mixed name, to another cache.
func (s *Server) fetch(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Tenant string `json:"tenant"`
		Key    string `json:"key"`
	}
	if err := readHead(r.Body, &q); err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	h, err := kv.ParseHash(q.Key)
	t := s.cache.tenants[q.Tenant]
	if err != nil || t == nil {
		refuse(w, http.StatusNotFound, "tenant %q: %v", q.Tenant, err)
		return
	}
	if err := s.cache.begin(); err != nil {
		refuse(w, http.StatusServiceUnavailable, "%v", err)
		return
	}
	defer s.cache.leave()
	w.Header().Set("Content-Type", "application/octet-stream")
	_, ok, err := s.cache.local(t, h, func(data []byte) error { return writeFrame(w, data) }, true)
	if err == nil && !ok {
		_ = writeFrame(w, nil)
	}
}
