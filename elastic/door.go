package elastic

import (
	"net"
	"sync"
)

// door is the address at which a process is found as rank 0, for as long as it
// lives. Each epoch has its turn at it; between turns, those who come early wait
// in the listener's queue.
type door struct {
	ln    net.Listener
	conns chan net.Conn
	gone  chan struct{}
	once  sync.Once
	done  chan struct{}
}

func newDoor(addr string) (*door, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	d := &door{ln: ln, conns: make(chan net.Conn), gone: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(d.done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			select {
			case d.conns <- conn:
			case <-d.gone:
				conn.Close()
				return
			}
		}
	}()
	return d, nil
}

func (d *door) close() {
	d.once.Do(func() {
		close(d.gone)
		d.ln.Close()
		<-d.done
	})
}

// open begins an epoch's turn.
func (d *door) open() *turn {
	return &turn{door: d, retired: make(chan struct{}), closed: make(chan struct{})}
}

// turn is a net.Listener for the time in which an epoch's ranks meet.
type turn struct {
	door            *door
	retired, closed chan struct{}
	one, two        sync.Once
}

// retire ends the turn: who comes now comes for the next one. The listener stays
// open, as its owner closes it in its own time.
func (t *turn) retire() { t.one.Do(func() { close(t.retired) }) }

// Accept gives the next connection of the turn; after it there is none.
func (t *turn) Accept() (net.Conn, error) {
	select {
	case <-t.retired:
	case <-t.closed:
	case <-t.door.gone:
	default:
		select {
		case conn := <-t.door.conns:
			return conn, nil
		case <-t.retired:
		case <-t.closed:
			return nil, net.ErrClosed
		case <-t.door.gone:
			return nil, net.ErrClosed
		}
	}
	select {
	case <-t.closed:
	case <-t.door.gone:
	}
	return nil, net.ErrClosed
}

// Close ends the turn for good; the door stays.
func (t *turn) Close() error {
	t.two.Do(func() { close(t.closed) })
	return nil
}

// Addr is the door's.
func (t *turn) Addr() net.Addr { return t.door.ln.Addr() }
