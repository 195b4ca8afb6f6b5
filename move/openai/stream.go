package openai

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// KeepAlive is how often a stream that has nothing to say sends a comment, so that proxies keep the connection open.
const KeepAlive = 15 * time.Second

// Stream writes server-sent events. The HTTP status is sent with the first of them: until then a request can still fail
// with a status of its own. It is safe for concurrent use.
type Stream struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	begun bool
	last  time.Time
}

// NewStream makes a stream of an answer.
func NewStream(w http.ResponseWriter) *Stream { return &Stream{w: w, last: time.Now()} }

// Begun reports whether something was sent.
func (s *Stream) Begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// Send sends one event. What a client does not read is lost: the request's context ends.
func (s *Stream) Send(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and lists of this package
	}
	s.write("data: " + string(text) + "\n\n")
}

// Quiet sends a comment if nothing was sent for so long that somebody may believe the connection dead.
func (s *Stream) Quiet() {
	s.mu.Lock()
	idle := time.Since(s.last)
	s.mu.Unlock()
	if idle >= KeepAlive {
		s.write(": keep-alive\n\n")
	}
}

// End closes a stream that is whole, or that failed with an error.
func (s *Stream) End(bad *Error) {
	if bad != nil {
		s.Send(map[string]any{"error": bad})
	}
	s.write("data: [DONE]\n\n")
}

// write sends text at once. The header goes out with the first: until then the request can still fail with a status.
func (s *Stream) write(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.w.WriteHeader(http.StatusOK)
	}
	s.last = time.Now()
	_, _ = s.w.Write([]byte(text))
	_ = http.NewResponseController(s.w).Flush()
}
