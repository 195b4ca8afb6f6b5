// Package witness casts the vote that decides between two halves.
//
// When the network splits a world into two halves of equal size, neither is a majority. A witness is one more voter, on a
// third host: the half that gets its vote continues. It knows nothing about the ranks. For each decision it stores a vote and
// the record voted for, and changes both at once by compare and swap, as the ranks' boards do (package comm, shrink.go). It
// must not forget its votes, so a server with a directory writes every change to disk before it answers. Both ends prove the
// token, and messages have keyed checksums; they are not encrypted.
package witness

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
)

// Key names a decision: how a communicator of a world goes on.
type Key struct {
	World [16]byte
	Comm  uint32
	Epoch uint64 // that begins
}

// Witness keeps votes.
type Witness interface {
	// Swap changes a vote from what it was to another, together with the record that is voted for, unless that is nil. It gives vote
	// and record as they were found: if the vote is not what was asked for, nothing was changed. The first vote is 0.
	Swap(ctx context.Context, k Key, was, to uint64, record []byte) (found uint64, kept []byte, err error)
}

const (
	bufferSize   = 4 << 10
	maxRecord    = 4 << 10
	maxDecisions = 1 << 16
)

// votes are those of all decisions.
type votes struct {
	mu   sync.Mutex
	list map[Key]vote
	file *os.File // nil if they are kept in memory alone
	size int64    // of the file: whole lines
}

type vote struct {
	word   uint64
	record []byte
}

// line is a change as it stands in the file.
type line struct {
	Key
	Word   uint64
	Record []byte
}

// Memory is a witness in this process, which forgets when the process ends.
func Memory() Witness { return &votes{list: map[Key]vote{}} }

// open reads what a witness said before.
func open(dir string) (*votes, error) {
	v := &votes{list: map[Key]vote{}}
	if dir == "" {
		return v, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, "witness")
	old, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	whole := bytes.LastIndexByte(old, '\n') + 1 // a line that was cut short was not answered
	for n, text := range bytes.Split(old[:whole], []byte("\n")) {
		if len(text) == 0 {
			continue
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n+1, err)
		}
		v.list[l.Key] = vote{l.Word, l.Record}
	}
	if v.file, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	v.size = int64(whole)
	return v, v.file.Truncate(v.size)
}

// Swap is that of Witness.
func (v *votes) Swap(_ context.Context, k Key, was, to uint64, record []byte) (uint64, []byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	found, known := v.list[k]
	if found.word != was {
		return found.word, found.record, nil
	}
	if !known && len(v.list) >= maxDecisions {
		return 0, nil, fmt.Errorf("the witness keeps %d decisions and takes no more: start another", maxDecisions)
	}
	next := vote{to, found.record}
	if record != nil {
		next.record = record
	}
	if v.file != nil {
		text, err := json.Marshal(line{k, next.word, next.record})
		if err != nil {
			return 0, nil, err
		}
		text = append(text, '\n')
		if _, err = v.file.WriteAt(text, v.size); err == nil { // over what an earlier attempt left, if any
			err = v.file.Sync()
		}
		if err != nil {
			return 0, nil, errors.Join(fmt.Errorf("the witness cannot write its state: %w", err), v.file.Truncate(v.size))
		}
		v.size += int64(len(text))
	}
	v.list[k] = next
	return found.word, found.record, nil
}

// Server answers ranks.
type Server struct {
	votes *votes
	ln    net.Listener
	gate  *auth.Listener
	wg    sync.WaitGroup
}

// ServerConfig says where a server listens and which ranks it answers.
type ServerConfig struct {
	Listen string // host:port; port 0 takes a free one
	Dir    string // of its state; empty: in memory alone
	Token  string // of the cluster; may be empty only on loopback addresses
	Log    *slog.Logger
}

// Serve begins to answer.
func Serve(c ServerConfig) (*Server, error) {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("address of the witness: %w", err)
	}
	if err := auth.CheckToken(c.Token, host, false); err != nil {
		return nil, err
	}
	v, err := open(c.Dir)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, err
	}
	s := &Server{votes: v, ln: ln}
	s.gate = &auth.Listener{Token: c.Token, Log: c.Log,
		Admit: func(h auth.Hello) error {
			if h.Purpose != auth.Witness {
				return errors.New("this is a witness")
			}
			return nil
		},
		Enter: func(conn net.Conn, h auth.Hello) {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(auth.Timeout))
			s.answer(record.New(conn, &h.Secret, false, bufferSize), h.World)
		}}
	s.wg.Go(func() { s.gate.Serve(ln) })
	return s, nil
}

// Address is where the server listens.
func (s *Server) Address() string { return s.ln.Addr().String() }

// Close ends the server.
func (s *Server) Close() error {
	err := s.ln.Close()
	s.gate.Close()
	s.wg.Wait()
	if s.votes.file != nil {
		err = errors.Join(err, s.votes.file.Close())
	}
	return err
}

// The kinds of records: a question, whose call is the epoch and whose number the communicator; and the answers, whose number is the
// vote that was found.
const (
	kindAsk    = 1 + iota // body: the vote that is expected, the new one, and what is voted for if flagRecord is set
	kindFound             // body: what was voted for
	kindFailed            // body: why
)

const flagRecord = 1

const votesSize = 16 // before the record of a question

// room is what a record of a kind may hold.
func room(kind uint8, most uint32) func(*record.Header) (uint32, error) {
	return func(h *record.Header) (uint32, error) {
		if h.Kind != kind && h.Kind != kindFailed {
			return 0, fmt.Errorf("a record of kind %d where one of kind %d belongs", h.Kind, kind)
		}
		return most, nil
	}
}

// answer serves one vote: it compares and swaps, and tells the caller what holds now, with the record of whoever won.
func (s *Server) answer(conn *record.Conn, world [16]byte) {
	var h record.Header
	q, err := conn.Receive(&h, room(kindAsk, votesSize+maxRecord))
	if err != nil || h.Kind != kindAsk || len(q) < votesSize {
		return
	}
	le := binary.LittleEndian
	was, to, said := le.Uint64(q), le.Uint64(q[8:]), q[votesSize:]
	if h.Flags&flagRecord == 0 {
		said = nil
	}
	kind := uint8(kindFound)
	found, kept, err := s.votes.Swap(context.Background(), Key{world, uint32(h.Number), h.Call}, was, to, said)
	if err != nil {
		text := err.Error()
		kind, kept = kindFailed, []byte(text[:min(len(text), maxRecord)])
	}
	_ = conn.Send(record.Header{Kind: kind, Number: found}, kept)
}

// Client asks a witness.
type Client struct {
	Addr       string // host:port
	Token      string
	Rank, Size int // who asks
}

// Swap is that of Witness, over a connection of its own: a decision takes a few of them.
func (c *Client) Swap(ctx context.Context, k Key, was, to uint64, say []byte) (found uint64, kept []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("witness %s: %w", c.Addr, err)
		}
	}()
	line := auth.Line{Addr: c.Addr, Token: c.Token}
	conn, secret, err := line.Connect(ctx, auth.Hello{Purpose: auth.Witness, Rank: c.Rank, Size: c.Size, World: k.World})
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	records := record.New(conn, &secret, true, bufferSize)
	le := binary.LittleEndian
	q := le.AppendUint64(le.AppendUint64(nil, was), to)
	h := record.Header{Kind: kindAsk, Call: k.Epoch, Number: uint64(k.Comm)}
	if say != nil {
		h.Flags = flagRecord
	}
	if err := records.Send(h, append(q, say...)); err != nil {
		return 0, nil, err
	}
	if kept, err = records.Receive(&h, room(kindFound, maxRecord)); err != nil {
		return 0, nil, err
	}
	if h.Kind == kindFailed {
		return 0, nil, errors.New(string(kept))
	}
	return h.Number, kept, nil
}
