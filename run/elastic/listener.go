package elastic

import (
	"net"
	"sync"
)

// listener is the address at which a process is found as rank 0, for as long as it
// lives. Each epoch has its turn at it; between turns, ranks that connect early wait
// in the queue of the socket.
type listener struct {
	ln    net.Listener
	conns chan net.Conn
	gone  chan struct{}
	once  sync.Once
	done  chan struct{}
}

// listen accepts connections in the background and hands them over one at a time. A connection that nobody takes is
// closed when the listener is.
func listen(addr string) (*listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &listener{ln: ln, conns: make(chan net.Conn), gone: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			select {
			case l.conns <- conn:
			case <-l.gone:
				conn.Close()
				return
			}
		}
	}()
	return l, nil
}

func (l *listener) close() {
	l.once.Do(func() {
		close(l.gone)
		l.ln.Close()
		<-l.done
	})
}

// open begins an epoch's turn.
func (l *listener) open() *turn {
	return &turn{of: l, retired: make(chan struct{}), closed: make(chan struct{})}
}

// turn is a net.Listener for the time in which an epoch's ranks meet.
type turn struct {
	of              *listener
	retired, closed chan struct{}
	one, two        sync.Once
}

// retire ends the turn: a connection that comes now is for the next one. The turn stays
// open until its owner closes it.
func (t *turn) retire() { t.one.Do(func() { close(t.retired) }) }

// Accept gives the next connection of the turn; after it there is none.
func (t *turn) Accept() (net.Conn, error) {
	select {
	case <-t.retired:
	case <-t.closed:
	case <-t.of.gone:
	default:
		select {
		case conn := <-t.of.conns:
			return conn, nil
		case <-t.retired:
		case <-t.closed:
			return nil, net.ErrClosed
		case <-t.of.gone:
			return nil, net.ErrClosed
		}
	}
	select {
	case <-t.closed:
	case <-t.of.gone:
	}
	return nil, net.ErrClosed
}

// Close ends the turn for good; the listener stays.
func (t *turn) Close() error {
	t.two.Do(func() { close(t.closed) })
	return nil
}

// Addr is the address of the listener.
func (t *turn) Addr() net.Addr { return t.of.ln.Addr() }
