package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
)

// Line is where a connection leads and how its ends prove themselves.
type Line struct {
	net.Dialer
	Network string // tcp if empty
	Addr    string
	TLS     *tls.Config // nil for none
	Token   string
}

// Connect makes a connection on which both ends have proven themselves, and gives its secret. It ends with ctx.
func (l *Line) Connect(ctx context.Context, h Hello) (net.Conn, Secret, error) {
	network := l.Network
	if network == "" {
		network = "tcp"
	}
	raw, err := l.DialContext(ctx, network, l.Addr)
	if err != nil {
		return nil, Secret{}, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	conn, secret, err := l.greet(ctx, raw, h)
	if !stop() && (err == nil || errors.Is(err, net.ErrClosed)) { // it took too long, or nobody waits for it any more
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		return nil, Secret{}, err
	}
	return conn, secret, nil
}

func (l *Line) greet(ctx context.Context, raw net.Conn, h Hello) (net.Conn, Secret, error) {
	host, _, _ := net.SplitHostPort(l.Addr)
	conn, err := Client(ctx, raw, l.TLS, host)
	if err != nil {
		return nil, Secret{}, err
	}
	secret, err := Dial(conn, l.Token, h)
	return conn, secret, err
}
