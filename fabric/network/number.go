package network

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// at gives the address at an offset of a prefix, invalid where the prefix ends.
func at(p netip.Prefix, offset int) netip.Addr {
	if offset < 0 || offset >= size(p) {
		return netip.Addr{}
	}
	base := p.Addr().As4()
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], binary.BigEndian.Uint32(base[:])+uint32(offset))
	return netip.AddrFrom4(out)
}

// size is how many addresses a prefix has.
func size(p netip.Prefix) int { return 1 << (32 - p.Bits()) }

// cut gives part i of n equal parts of a prefix; n is rounded up to a power of
// two. The part is invalid where the prefix is too small.
func cut(p netip.Prefix, i, n int) netip.Prefix {
	more := bits.Len(uint(n - 1))
	if p.Bits()+more > 32 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(at(p, i<<(32-p.Bits()-more)), p.Bits()+more)
}

// A /24 of a plan holds 240 hosts: .0 to .9 and .250 to .255 are for others.
const perBlock, firstOfBlock = 240, 10

// hostOffset is where host i stands in a prefix of the front end, of storage or
// of management: x.x.1.10 is the first in a prefix of more than a /24, x.x.x.10
// in a smaller one.
func hostOffset(p netip.Prefix, i int) int {
	if p.Bits() >= 24 {
		return firstOfBlock + i
	}
	return (1+i/perBlock)*256 + firstOfBlock + i%perBlock
}

// hostRoom says how many hosts such a prefix holds.
func hostRoom(p netip.Prefix) int {
	if p.Bits() >= 24 {
		return max(0, size(p)-1-firstOfBlock)
	}
	blocks := size(p)/256 - 1
	if blocks == 255 { // the last block of a /16 is for switches
		blocks = 254
	}
	return blocks * perBlock
}

// grow gives the longest prefix length, at most p's, with which fits holds.
func grow(p netip.Prefix, fits func(netip.Prefix) bool) (bits int, ok bool) {
	for b := p.Bits(); b >= 8; b-- {
		wider, err := p.Addr().Prefix(b)
		if err == nil && fits(wider) {
			return b, true
		}
	}
	return 0, false
}

// whole is an address with the length of its network.
func whole(a netip.Addr, p netip.Prefix) netip.Prefix { return netip.PrefixFrom(a, p.Bits()) }
