//go:build linux

package wire

import "sync/atomic"

// Room is a sender that waits for room at a rank.
type Room struct {
	Rank int
	Made *atomic.Bool
	w    *Waiter // nil while it does not sleep
}

// Give tells the sender that there is room.
func (r *Room) Give() {
	r.Made.Store(true)
	r.w.Wake()
}

// SetWaiter notes whom to wake when there is room.
func SetWaiter(list []Room, made *atomic.Bool, w *Waiter) {
	for i := range list {
		if list[i].Made == made {
			list[i].w = w
		}
	}
}
