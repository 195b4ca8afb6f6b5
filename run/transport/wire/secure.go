//go:build linux

package wire

import (
	"io"

	"github.com/weft-fabric/weft/run/transport/internal/frame"
)

// Streams under TLS have a goroutine that reads and one that writes, as the
// connection holds back parts of records and socket.Poll(2) cannot see those. Callers
// wait for them parked.

// readSecure feeds the stage, which is as large as a TLS record.
func (s *Stream) readSecure() {
	buf := make([]byte, 16<<10)
	for {
		n, err := s.conn.Read(buf)
		if n > 0 {
			s.rmu.Lock()
			bad := s.feed(buf[:n])
			s.rmu.Unlock()
			if bad != nil {
				s.fail(bad)
				return
			}
		}
		if err != nil {
			s.fail(err)
			return
		}
	}
}

// feed digests bytes that were read elsewhere; the caller holds rmu.
func (s *Stream) feed(b []byte) error {
	s.reads++
	for len(b) > 0 {
		if s.r > 0 {
			s.w = copy(s.stage, s.stage[s.r:s.w])
			s.r = 0
		}
		n := copy(s.stage[s.w:], b)
		s.w += n
		b = b[n:]
		if _, err := s.digest(true, nil); err != nil {
			return err
		}
	}
	return nil
}

// writeSecure writes what is queued, from a copy: a peer that is stopped holds up the connection for as long as it likes,
// and the memory of a message that is not wanted any more is its caller's again all the same.
func (s *Stream) writeSecure() {
	var b []byte
	for {
		<-s.kick
		s.wmu.Lock()
		for s.first < len(s.queue) && !s.lost.Load() {
			o := s.queue[s.first]
			s.start(o)
			b = append(append(b[:0], s.wbuf[:frame.HeaderSize]...), o.B[:o.want]...)
			s.wmu.Unlock()
			_, err := s.conn.Write(b)
			s.wmu.Lock()
			if err != nil {
				s.wmu.Unlock()
				if err != io.ErrClosedPipe && !closedByPeer(err) { // the reader finds that out, behind what the peer sent
					s.fail(err)
				}
				return
			}
			if s.first < len(s.queue) && s.queue[s.first] == o { // it was not taken back meanwhile
				s.sent(o, len(b))
			}
		}
		lost := s.lost.Load()
		s.wmu.Unlock()
		if lost {
			return
		}
	}
}
