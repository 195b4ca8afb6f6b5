package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Pace of the stream. A reader is told at most four times a second what has
// changed, and once a second how the run stands even if nothing did, so that it
// can tell a quiet run from a lost server.
const (
	pace      = 250 * time.Millisecond
	heartbeat = time.Second
	patience  = 10 * time.Second // for a reader to take one message
	readers   = 64               // at a time; a browser tab is one
)

// stream sends everything, or what has changed since the number that the reader
// has, and from then on changes. Nothing is queued: each message is made when
// the reader has taken the one before, so that a slow one gets fewer and larger
// ones, and nobody waits for it.
func (b *Board) stream(w http.ResponseWriter, r *http.Request) {
	if b.clients.Add(1) > readers {
		b.clients.Add(-1)
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, fmt.Sprintf("%d readers follow this run already; close a tab, or read /api/all", readers))
		return
	}
	defer b.clients.Add(-1)
	out := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")

	if r.Method == http.MethodHead {
		return
	}
	seq := b.position(r)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var sent time.Time
	for r.Context().Err() == nil {
		closing := false
		select {
		case <-b.done:
			closing = true
		default:
		}
		if now := time.Now(); seq == 0 || closing || b.seq.Load() != seq || now.Sub(sent) >= heartbeat {
			m := b.since(seq)
			name := "change"
			if m.Full {
				name = "all"
			}
			// A deadline that cannot be set is one of a recorder, which is not slow.
			_ = out.SetWriteDeadline(now.Add(patience))
			err := event(w, name, b.id, m.Seq, m)
			if err == nil && closing {
				err = event(w, "bye", b.id, m.Seq, struct{}{})
			}
			if err == nil {
				err = out.Flush()
			}
			if err != nil {
				if r.Context().Err() == nil {
					b.dropped.Add(1)
				}
				return
			}
			if closing {
				_ = out.SetWriteDeadline(time.Time{})
				return
			}
			seq, sent = m.Seq, now
			if took := time.Since(now); took > pace {
				b.skipped.Add(int64(took / pace))
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-b.done:
		case <-tick.C:
		}
	}
}

// position is the number up to which a reader has been told; 0 where it is new
// or comes from another board.
func (b *Board) position(r *http.Request) uint64 {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		last = r.URL.Query().Get("since")
	}
	id, text, _ := strings.Cut(last, ".")
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id != b.id || n > b.seq.Load() {
		return 0
	}
	return n
}

// event writes one server-sent event in one piece. JSON has no line breaks.
func event(w http.ResponseWriter, name, board string, seq uint64, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "event: %s\nid: %s.%d\ndata: %s\n\n", name, board, seq, body)
	_, err = w.Write(buf.Bytes())
	return err
}
