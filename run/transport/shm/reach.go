//go:build linux

package shm

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"time"

	"github.com/weft-fabric/weft/run/transport"
)

// Reach finds out which ranks can share memory, by trying it. claims[r] is the host
// that rank r says it is on, from 0. Every rank connects to the first one of its
// claimed host, over the sockets by which memory is passed. A rank that cannot, as it
// is in another network namespace or of another user, counts as a host of its own.
//
// All ranks must call it at once. They return the same: the hosts, numbered as they
// come, and for each rank why it cannot share memory with those it claimed to be with;
// empty for those that can.
func Reach(ctx context.Context, rank int, claims []int, gather transport.Gather) (hosts []int, why []string, err error) {
	name := "weft-" + rand.Text()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + name, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf("shm: listen for the other ranks: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			m := &met{conn: conn, pidfd: -1}
			if m.credentials() == nil {
				_, _ = conn.Write([]byte{1})
			}
			conn.Close()
		}
	}()
	defer func() {
		l.Close()
		<-done
	}()
	names, err := gather(ctx, []byte(name))
	if err != nil {
		return nil, nil, fmt.Errorf("shm: rank %d finds the others: %w", rank, err)
	}
	if len(names) != len(claims) {
		return nil, nil, fmt.Errorf("shm: the gather gave %d names for %d ranks", len(names), len(claims))
	}
	said := ""
	for r, h := range claims {
		if h == claims[rank] {
			if err := try(ctx, string(names[r])); r != rank && err != nil {
				said = fmt.Sprintf("it cannot reach rank %d: %v", r, err)
			}
			break // the first of the host
		}
	}
	all, err := gather(ctx, []byte(said))
	if err != nil {
		return nil, nil, fmt.Errorf("shm: rank %d did not learn which ranks the others reach: %w", rank, err)
	}
	if len(all) != len(claims) {
		return nil, nil, fmt.Errorf("shm: the gather gave %d answers for %d ranks", len(all), len(claims))
	}
	first := map[int]int{} // the number of a claimed host
	n := 0
	for r, h := range claims {
		why = append(why, string(all[r]))
		if at, seen := first[h]; seen && len(all[r]) == 0 {
			hosts = append(hosts, at)
			continue
		}
		if len(all[r]) == 0 {
			first[h] = n
		}
		hosts = append(hosts, n)
		n++
	}
	return hosts, why, nil
}

// try connects to a rank and waits for its word.
func try(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", "@"+name)
	if err != nil {
		return fmt.Errorf("another network namespace or host (%w)", err)
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	m := &met{conn: c.(*net.UnixConn), pidfd: -1}
	if err := m.credentials(); err != nil {
		return err
	}
	if n, err := c.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("it turned this one away, as of another user (%w)", err)
	}
	return nil
}
