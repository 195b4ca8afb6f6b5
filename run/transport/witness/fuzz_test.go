package witness

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
)

// FuzzQuestion: whatever a connection says, the witness answers whole, or not at all, and keeps no more than fits.
func FuzzQuestion(f *testing.F) {
	ask := func(h record.Header, body string) {
		var b [record.Size]byte
		h.Kind, h.Sum = kindAsk, auth.PlainKey().Piece([]byte(body))
		h.Put(&b, auth.PlainKey())
		f.Add(append(b[:], body...))
	}
	ask(record.Header{Length: votesSize}, string(make([]byte, votesSize)))
	ask(record.Header{Length: votesSize + 3, Flags: flagRecord}, string(make([]byte, votesSize))+"abc")
	ask(record.Header{Length: 3}, "abc")
	ask(record.Header{Length: votesSize + maxRecord + 1}, "")
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := &Server{votes: &votes{list: map[Key]vote{}}}
		c := &spoken{in: bytes.NewReader(said)}
		s.answer(record.New(c, nil, false, bufferSize), [16]byte{1})
		if b := c.out.Bytes(); len(b) > 0 {
			var h record.Header
			if _, err := record.New(&spoken{in: bytes.NewReader(b)}, nil, true, bufferSize).Receive(&h, room(kindFound, maxRecord)); err != nil {
				t.Errorf("%d bytes of an answer: %x: %v", len(b), b[:min(len(b), 32)], err)
			}
		}
		for k, v := range s.votes.list {
			if len(v.record) > maxRecord {
				t.Errorf("%v keeps %d bytes", k, len(v.record))
			}
		}
	})
}

// spoken is a connection on which everything was said already.
type spoken struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *spoken) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *spoken) Write(b []byte) (int, error) { return c.out.Write(b) }

// FuzzLedger: entries of any content are read or refused, and what is read lies within its entry.
func FuzzLedger(f *testing.F) {
	k := Key{Comm: 2, Epoch: 3}
	good, err := entry(k, []byte("record"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:100])
	long := append([]byte(nil), good...)
	binary.LittleEndian.PutUint32(long[12:], entrySize)
	f.Add(long)
	f.Fuzz(func(t *testing.T, entries []byte) {
		if record, err := firstOf(k, entries); err == nil && len(record) > entrySize-entryRecord {
			t.Errorf("a record of %d bytes", len(record))
		}
	})
}
