package transport

import (
	"fmt"

	"github.com/weft-fabric/weft/reduce"
)

const (
	channelBits = 16 // of a channel name the way; those above are the type of the elements, if it is told
	typeBits    = 8
	lengthBits  = 64 - typeBits // of a form
)

// Typed is a channel whose messages hold elements of a type, of which sender and
// receiver must agree. The way is that of the channel: messages on it may be of
// different types.
func Typed(channel int, t reduce.Type) int { return channel | int(t)<<channelBits }

// Way is the channel without the type.
func Way(channel int) int { return channel & (1<<channelBits - 1) }

// ValidChannel reports whether a channel may be one, with or without a type.
func ValidChannel(channel int) bool {
	return uint(channel) < 1<<channelBits || uint(channel) < 1<<(channelBits+typeBits) && reduce.Type(channel>>channelBits).Valid()
}

// ErrChannel is the error for a channel that is none.
func ErrChannel(channel int) error {
	return fmt.Errorf("channel %d; channels are 0 to %d", channel, 1<<channelBits-1)
}

// Form is in what sender and receiver of a message must agree: its length, and the
// type of its elements where the channel tells it.
type Form uint64

// FormOf is the form of a message of n bytes on a channel.
func FormOf(channel, n int) Form { return Form(channel>>channelBits)<<lengthBits | Form(n) }

// Bytes is the length.
func (f Form) Bytes() int { return int(f & (1<<lengthBits - 1)) }

func (f Form) String() string {
	if t := reduce.Type(f >> lengthBits); t.Size() > 0 {
		return fmt.Sprintf("%d %s", f.Bytes()/t.Size(), t)
	}
	return fmt.Sprintf("%d bytes", f.Bytes())
}

// Unlike says how a message differs from the one that is received.
func (f Form) Unlike(want Form, channel int) string {
	if f>>lengthBits != 0 {
		return fmt.Sprintf("%s were sent, %s are received", f, want)
	}
	return fmt.Sprintf("a message on channel %d has %s, %s were expected", Way(channel), f, want)
}
