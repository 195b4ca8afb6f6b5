package ring

import (
	"testing"
	"unsafe"
)

// What layout.go says about shared memory.
func TestLayoutIsAsDocumented(t *testing.T) {
	var (
		h head
		n noteRing
		p portHead
		c callSlot
		m memberWord
		w way
		s slot
	)
	for _, x := range []struct {
		what      string
		got, want uintptr
	}{
		{"head: bell", unsafe.Offsetof(h.bell), 64}, {"head: directory", unsafe.Offsetof(h.directory), 128}, {"head", unsafe.Sizeof(h), 8320},
		{"bucket", unsafe.Sizeof(h.directory[0]), 16}, {"notices: taken", unsafe.Offsetof(n.taken), 64},
		{"notices", unsafe.Sizeof(n), 128 + 64*4},
		{"port: rank", unsafe.Offsetof(p.rank), 12}, {"port: next", unsafe.Offsetof(p.next), 16}, {"port: latest", unsafe.Offsetof(p.latest), 24},
		{"port: calls", unsafe.Offsetof(p.calls), 64}, {"call: tag", unsafe.Offsetof(c.tag), 8}, {"call", unsafe.Sizeof(c), 64},
		{"calls", uintptr(len(p.calls)), 8},
		{"member", unsafe.Sizeof(m), 16}, {"member: state", unsafe.Offsetof(m.state), 8},
		{"way: channel", unsafe.Offsetof(w.channel), 8}, {"way: asleep", unsafe.Offsetof(w.asleep), 64},
		{"way: taken", unsafe.Offsetof(w.taken), 128},
		{"way: staged", unsafe.Offsetof(w.staged), 192}, {"way: slots", unsafe.Offsetof(w.slots), 256}, {"slots", uintptr(len(w.slots)), 8},
		{"slot", unsafe.Sizeof(s), 8320}, {"slot: kind", unsafe.Offsetof(s.kind), 12}, {"slot: tag", unsafe.Offsetof(s.tag), 16},
		{"slot: form", unsafe.Offsetof(s.form), 24},
		{"slot: epoch", unsafe.Offsetof(s.epoch), 32}, {"slot: data", unsafe.Offsetof(s.data), 40}, {"data", unsafe.Sizeof(s.data), 8248},
		{"slot: claim", unsafe.Offsetof(s.claim), 8288},
		{"slot: where", unsafe.Offsetof(s.where), 8296}, {"slot: stage", unsafe.Offsetof(s.stage), 8304},
		{"slot: base", unsafe.Offsetof(s.base), 8312},
	} {
		if x.got != x.want {
			t.Errorf("%s: %d, the page says %d; change both, and the version of the shared-memory handshake", x.what, x.got, x.want)
		}
	}
}
