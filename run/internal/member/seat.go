package member

import (
	"fmt"
	"strconv"
)

// Seat is a slot of the job and the process that has it. Records on etcd, lines that ranks are told and accusations name
// processes so.
type Seat struct {
	ID   ID   `json:"id"`   // the slot, which it keeps over restarts
	Life Life `json:"life"` // which process of that slot
}

// Life tells a process from others of the same id. It is written as hexadecimal
// digits, as JSON's numbers do not hold 64 bits everywhere.
type Life uint64

func (l Life) String() string { return fmt.Sprintf("%016x", uint64(l)) }

// MarshalText and UnmarshalText are the form in records.
func (l Life) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads 16 hexadecimal digits.
func (l *Life) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 16, 64)
	if err != nil || len(b) != 16 {
		return fmt.Errorf("life %.32q is not of 16 hexadecimal digits", b)
	}
	*l = Life(n)
	return nil
}
