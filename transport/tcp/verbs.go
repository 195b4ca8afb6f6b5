package tcp

import (
	"errors"
	"net"

	"github.com/weft-fabric/weft/transport"
)

type verbs struct{}

func (e *Endpoint) startVerbs()                         {}
func (e *Endpoint) stopVerbs()                          {}
func (e *Endpoint) serveVerbs(conn net.Conn, rank int)  { conn.Close() }
func (e *Endpoint) Alloc(n int) ([]byte, error)         { return make([]byte, n), nil }
func (e *Endpoint) Free(b []byte) error                 { return nil }
func (e *Endpoint) Key(b []byte) (transport.Key, error) { return 0, errors.New("x") }
func (e *Endpoint) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return 0, nil
}
func (e *Endpoint) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return 0, nil
}
func (e *Endpoint) CompareSwap(to int, word transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	return 0, nil
}
func (e *Endpoint) FetchAdd(to int, word transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	return 0, nil
}
func (e *Endpoint) Notify(to int, value uint32) (transport.Ticket, error)   { return 0, nil }
func (e *Endpoint) Poll(done []transport.Completion) []transport.Completion { return done }
