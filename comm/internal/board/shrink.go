package board

import "github.com/weft-fabric/weft/transport"

// The words of the shrink lines.
const (
	wantEpoch  = atShrink      // the epoch that the rank wants to begin
	wantHandle = atShrink + 8  // its board there
	wantKey    = atShrink + 16 // and the board's key
	decided    = atShrink + 24 // the epoch that the rank decided on
	decidedID  = atShrink + 32 // the communicator's number
	decidedSet = atShrink + 40 // the ranks that are in, a bit a rank

	// MaxShrink is how many ranks a decision has bits for.
	MaxShrink = (atNotice - decidedSet) * 8
)

// Propose says that the rank wants to begin an epoch, and where its next board is.
func (b Board) Propose(epoch uint64, next Address) {
	atomicAt(b, wantHandle).Store(uint64(next.Handle))
	atomicAt(b, wantKey).Store(uint64(next.Key))
	atomicAt(b, wantEpoch).Store(epoch)
}

// Proposes reports whether the rank wants to begin an epoch.
func (b Board) Proposes(epoch uint64) bool { return atomicAt(b, wantEpoch).Load() == epoch }

// Next is where the rank's next board is.
func (b Board) Next() Address {
	return Address{transport.Handle(atomicAt(b, wantHandle).Load()), transport.Key(atomicAt(b, wantKey).Load())}
}

// Decide writes down which ranks are in, by their number of ranks and a test of membership.
func (b Board) Decide(epoch uint64, id uint32, ranks int, in func(rank int) bool) {
	for w := range MaxShrink / 64 {
		var set uint64
		for k := range 64 {
			if i := 64*w + k; i < ranks && in(i) {
				set |= 1 << k
			}
		}
		atomicAt(b, decidedSet+8*w).Store(set)
	}
	atomicAt(b, decidedID).Store(uint64(id))
	atomicAt(b, decided).Store(epoch)
}

// Decided reports whether the rank decided on an epoch, and gives the communicator's number.
func (b Board) Decided(epoch uint64) (id uint32, ok bool) {
	return uint32(atomicAt(b, decidedID).Load()), atomicAt(b, decided).Load() == epoch
}

// DecidedOn reports whether a decision names a rank.
func (b Board) DecidedOn(rank int) bool {
	return atomicAt(b, decidedSet+8*(rank/64)).Load()>>(rank%64)&1 != 0
}
