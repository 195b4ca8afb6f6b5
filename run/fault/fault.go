// Package fault breaks running processes on purpose, for drills: it throttles the
// connections between two of them from outside, and hands orders to programs that take
// them, such as to be slow or to hang.
package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Orders are what a program that takes part in drills obeys: a file in a folder, named
// after its number, whose text says what to do.
//
//	slow 30ms     wait so long before every step
//	hang          do not take the next step
//	mismatch      call another operation than the others
//	eat 100000000 take 100,000,000 bytes of memory and keep them
//	write 1000000 write a checkpoint of 1,000,000 bytes
//	exit 3        end with an error
type Orders struct {
	dir string
	id  int
	at  time.Time
	now Order
}

// Order is one; the zero Order is none.
type Order struct {
	What  string
	Time  time.Duration
	Bytes int64
}

// Take makes the orders of a program; without a folder there are none.
func Take(dir string, id int) *Orders { return &Orders{dir: dir, id: id} }

func path(dir string, id int) string { return filepath.Join(dir, "order-"+strconv.Itoa(id)) }

// Give writes an order; "" takes it back.
func Give(dir string, id int, text string) error {
	if text == "" {
		return os.Remove(path(dir, id))
	}
	tmp := path(dir, id) + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path(dir, id))
}

// Now is the order that holds.
func (o *Orders) Now() Order {
	if o.dir == "" {
		return Order{}
	}
	st, err := os.Stat(path(o.dir, o.id))
	if err != nil {
		o.now, o.at = Order{}, time.Time{}
		return o.now
	}
	if !st.ModTime().Equal(o.at) {
		b, err := os.ReadFile(path(o.dir, o.id))
		if err != nil {
			return o.now
		}
		o.at = st.ModTime()
		o.now, _ = parse(string(b)) // Give wrote it; what it did not write is no order
	}
	return o.now
}

// parse reads an order: what to do, and a time (slow) or a number of bytes (all others). An empty text is the zero
// order.
func parse(text string) (o Order, err error) {
	f := strings.Fields(text)
	if len(f) == 0 {
		return o, nil
	}
	o.What = f[0]
	if len(f) > 1 && o.What == "slow" {
		o.Time, err = time.ParseDuration(f[1])
	} else if len(f) > 1 {
		o.Bytes, err = strconv.ParseInt(f[1], 10, 64)
	}
	if err != nil {
		return Order{}, fmt.Errorf("order %q: %w", text, err)
	}
	return o, nil
}
