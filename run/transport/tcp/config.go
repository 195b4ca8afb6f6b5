// Package tcp carries messages and one-sided operations between ranks over TCP. It is transport/match, which knows calls, on top of
// transport/wire, which knows links: here is which message a piece belongs to, and where its receiver wants it.
//
//	tcp.go       the endpoint                  port.go   the messages of a communicator
//	slot.go      messages on their receiver    route.go  where a piece goes
//	credit.go    how far a sender may be ahead
//	quick.go     short messages                swap.go   a send and a receive at once
//	whole.go     messages that come as a whole
//	internal/verbs  one-sided operations
package tcp

import (
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// Config describes a rank's links.
type Config = wire.Config

// Named finds own memory by a key that another transport gave, for the
// one-sided operations of peers.
type Named = func(k transport.Key, n int) ([]byte, error)
