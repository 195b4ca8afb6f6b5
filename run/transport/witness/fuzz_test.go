package witness

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
)

// FuzzQuestion: whatever a connection says, the witness answers whole, or not at all, and keeps no more than fits.
func FuzzQuestion(f *testing.F) {
	q := make([]byte, questionSize)
	binary.LittleEndian.PutUint32(q[28:], ^uint32(0))
	f.Add(q)
	f.Add(append(binary.LittleEndian.AppendUint32(make([]byte, 28), 3), "abc"...))
	f.Add(binary.LittleEndian.AppendUint32(make([]byte, 28), maxRecord+1))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := &Server{votes: &votes{list: map[Key]vote{}}}
		c := &spoken{in: bytes.NewReader(said)}
		s.answer(c, [16]byte{1})
		if b := c.out.Bytes(); len(b) > 0 && (len(b) < answerSize || len(b) != answerSize+int(binary.LittleEndian.Uint32(b[9:]))) {
			t.Errorf("%d bytes of an answer: %x", len(b), b[:min(len(b), 32)])
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
