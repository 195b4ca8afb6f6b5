//go:build !linux

package witness

import "errors"

// HostLedger is a ledger of the processes of a host, which Linux has.
type HostLedger struct{ Ledger }

var errNoLedger = errors.New("ledger: only on Linux")

// NewLedger makes a ledger for the ranks of a world.
func NewLedger([16]byte) (*HostLedger, error) { return nil, errNoLedger }

// Number is the ledger's number among the open files of this process.
func (l *HostLedger) Number() int { return 0 }

// OpenLedger opens the ledger of a world that a process of the same user has open.
func OpenLedger(int, int, [16]byte) (*HostLedger, error) { return nil, errNoLedger }
