// Package coord is where the processes of an elastic job meet: workers under
// leases, epochs by compare and set, barriers and small values, all in etcd.
//
//	Serve     an etcd of one's own in this process, with its state in a directory
//	Dial      a client of that one, or of any etcd cluster by address
//	Register  a worker under a lease, kept alive until it leaves
//	Decide    leads a job: leases in, epochs out
//	Gather    small values of all members of an epoch, by name
//
// What happens when a process dies:
//
//	launcher ── ReportDead ──►  worker/3 "dead"  ──► decider ── compare and set ──► epoch/7 ──► everyone's WatchEpochs
//	silent host ── lease ends ──►  worker/3 deleted ─┘
//
// # Epochs
//
// An epoch is written once, under its number, in one transaction with three
// conditions: the number is free, its predecessor exists, and the writer still leads.
// Two would-be leaders cannot publish different lists for one number, whatever their
// clocks say. member.Machine makes the decision; this package feeds it the store's
// content and writes its proposal.
//
// # What survives
//
// Members continue while the coordinator is unreachable: a client retries until its
// context ends, leases restart with a full term when etcd has a leader again, and
// watches begin with the current state. A restart on the same directory continues where
// it was killed, because each write is on disk before it is acknowledged. A cluster of
// three survives the loss of one.
//
// # What it is not for
//
// Tensors, checkpoints and logs do not go through etcd: a value has at most
// MaxValue bytes, and the answer to a larger one is ErrTooLarge.
package coord

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Format is the version of what is written to the store. A client refuses a job of another one.
const Format = 2

const (
	// MaxValue is the most bytes of one value that a worker gives to Gather, or
	// of its record.
	MaxValue = 64 << 10
	// MaxGather is the most bytes that all values of one Gather have together,
	// and the most that the record of an epoch takes: 10,000 members with
	// addresses. etcd takes 1.5 MiB in a request.
	MaxGather = 1400 << 10
)

// TTL is the term of a lease if nothing else is said. etcd counts whole seconds
// and looks for ended leases twice a second: a silent host is gone from the
// store 1.0 to 1.6 s after its last sign of life.
const TTL = time.Second

// OneHost is the term of a lease in a job on one host, which has the coordinator,
// too: the agent there sees ranks end or hang itself, no other host can be silent,
// and a machine that stands still for a second or two must not cost all ranks their
// places.
const OneHost = 5 * time.Second

// What callers branch on.
var (
	ErrUnreachable = errors.New("the coordinator does not answer")
	ErrToken       = errors.New("the coordinator has another token: set WEFT_TOKEN to the same value here and there")
	ErrJob         = errors.New("the coordinator serves another job")
	ErrVersion     = errors.New("the data of the coordinator has another version")
	ErrTooLarge    = errors.New("too large for the coordinator")
	ErrTaken       = errors.New("a living process has this id")
	ErrSuperseded  = errors.New("a later epoch has been published")
	ErrConflict    = errors.New("this epoch has been published by another decider")
)

// checkSize refuses what does not belong in the store.
func checkSize(what string, size, limit int) error {
	if size <= limit {
		return nil
	}
	return fmt.Errorf("coord: %s has %d bytes, at most %d go through the coordinator; send it through comm or a file and its address through here: %w",
		what, size, limit, ErrTooLarge)
}

// checkName accepts what may be a part of a key.
func checkName(what, name string) error {
	if name == "" || len(name) > 128 {
		return fmt.Errorf("coord: %s %q has %d bytes; it has from 1 to 128", what, name, len(name))
	}
	if i := strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:@+", r))
	}); i >= 0 {
		return fmt.Errorf("coord: %s %q has %q in it; letters, digits and - _ . : @ + are allowed", what, name, []rune(name[i:])[0])
	}
	return nil
}
