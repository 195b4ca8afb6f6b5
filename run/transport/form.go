package transport

import "fmt"

const (
	channelBits = 16 // of a channel name the way; the bits above them are the tag
	tagBits     = 8
	lengthBits  = 64 - tagBits // of a form
)

// Channels is how many channels a port has.
const Channels = 1 << channelBits

// Tagged is a channel whose messages carry a tag, on which sender and receiver
// must agree: the type of their elements, for example. The way is that of the
// channel: messages on it may have different tags. Zero is no tag.
func Tagged(channel int, tag uint8) int { return channel | int(tag)<<channelBits }

// Way is the channel without the tag.
func Way(channel int) int { return channel & (1<<channelBits - 1) }

// ValidChannel reports whether a channel may be one, with or without a tag.
func ValidChannel(channel int) bool { return uint(channel) < 1<<(channelBits+tagBits) }

// ErrChannel is the error for a channel that is none.
func ErrChannel(channel int) error {
	return fmt.Errorf("channel %d; channels are 0 to %d", channel, 1<<channelBits-1)
}

// Form is what sender and receiver of a message must agree on: its length, and
// the tag of the channel.
type Form uint64

// FormOf is the form of a message of n bytes on a channel.
func FormOf(channel, n int) Form { return Form(channel>>channelBits)<<lengthBits | Form(n) }

// Bytes is the length.
func (f Form) Bytes() int { return int(f & (1<<lengthBits - 1)) }

// Tag is the channel's; 0 if it has none.
func (f Form) Tag() uint8 { return uint8(f >> lengthBits) }

func (f Form) String() string {
	if f.Tag() != 0 {
		return fmt.Sprintf("%d bytes with tag %d", f.Bytes(), f.Tag())
	}
	return fmt.Sprintf("%d bytes", f.Bytes())
}
