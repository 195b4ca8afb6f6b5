//go:build linux

package shm

import (
	"context"
	"net"
	"testing"
	"time"
)

// A connection is as it was once nothing is to end with the context any more, also where the context ended just before.
func TestNothingIsLeftOfAContext(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@weft-test-" + t.Name() + time.Now().String(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		over := endWith(ctx, conn)
		cancel()
		over()
		if _, _, err := conn.WriteMsgUnix([]byte{1}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer endWith(ctx, conn)()
	cancel()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a read goes on after the context has ended")
	}
}
