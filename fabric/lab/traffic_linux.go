package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Traffic sends bytes between all addresses of two hosts on one network, over TCP, and verifies them: first all connections
// at once, to see who reaches whom, then those that came about one after another, to see how fast each is.
func (i *Info) Traffic(c TrafficConfig) ([]Transfer, error) {
	list := i.Spec.transfers()
	if len(list) == 0 {
		return nil, fmt.Errorf("lab %s has no two hosts on one network; start it with hosts", i.Spec.Name)
	}
	port := map[string]int{}
	for _, host := range i.Spec.Hosts() {
		l, err := i.sink(host)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", host, err)
		}
		defer l.Close()
		port[host] = l.Addr().(*net.TCPAddr).Port
	}
	leaks, err := i.strays(list)
	if err != nil {
		return nil, err
	}
	conns := make([]net.Conn, len(list))
	var group sync.WaitGroup
	turns := make(chan struct{}, 64)
	for k := range list {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			conns[k] = i.connect(&list[k], port[list[k].To], c)
		})
	}
	group.Wait()
	leaks()
	for k := range list {
		if conns[k] == nil {
			continue
		}
		if err := list[k].send(conns[k], c); err != nil {
			list[k].Error = err.Error()
		}
		conns[k].Close()
	}
	return list, nil
}

// connect opens a connection; without one it notes why.
func (i *Info) connect(t *Transfer, port int, c TrafficConfig) (conn net.Conn) {
	limit := c.Limit
	if !t.Wanted && c.Apart > 0 {
		limit = c.Apart
	}
	d := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(t.Source)}}
	err := i.within(t.From, func() (err error) {
		conn, err = d.Dial("tcp4", net.JoinHostPort(t.Target, fmt.Sprint(port)))
		return err
	})
	if err != nil {
		t.Error = err.Error()
		return nil
	}
	return conn
}

// strays sends a packet for each pair of two tenants. A connection needs both ways, and says nothing of one that leads only there.
// What it returns notes those that arrived so far.
func (i *Info) strays(list []Transfer) (note func(), err error) {
	at := map[string]*net.UDPConn{}
	note = func() {
		for _, c := range at {
			leaked(c, list)
		}
	}
	for k := range list {
		t := &list[k]
		if t.Wanted {
			continue
		}
		if at[t.To] == nil {
			if at[t.To], err = i.udp(t.To, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
				note()
				return nil, fmt.Errorf("%s: %w", t.To, err)
			}
		}
		to := netip.AddrPortFrom(netip.MustParseAddr(t.Target), uint16(at[t.To].LocalAddr().(*net.UDPAddr).Port))
		from, err := i.udp(t.From, netip.AddrPortFrom(netip.MustParseAddr(t.Source), 0))
		if err != nil {
			note()
			return nil, fmt.Errorf("%s: %w", t.From, err)
		}
		_, _ = from.WriteToUDPAddrPort(binary.AppendUvarint(nil, uint64(k)), to) // without a route it is not sent
		from.Close()
	}
	return note, nil
}

// leaked notes the packets that a host got, and closes its socket.
func leaked(c *net.UDPConn, list []Transfer) {
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	buf := make([]byte, 16)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if k, ok := binary.Uvarint(buf[:n]); ok > 0 && k < uint64(len(list)) {
			list[k].Leaked = true
		}
	}
}

// sink takes bytes on all addresses of a host, and answers each connection with their hash.
func (i *Info) sink(host string) (l net.Listener, err error) {
	err = i.within(host, func() (err error) {
		l, err = net.Listen("tcp4", "0.0.0.0:0")
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				h := fnv.New64a()
				if _, err := io.Copy(h, c); err == nil {
					_ = binary.Write(c, binary.BigEndian, h.Sum64())
				}
			}()
		}
	}()
	return l, nil
}

// send sends and waits for the hash of what arrived.
func (t *Transfer) send(c net.Conn, cfg TrafficConfig) error {
	if err := c.SetDeadline(time.Now().Add(cfg.Limit)); err != nil {
		return err
	}
	block := make([]byte, 64<<10)
	for k := range block {
		block[k] = byte(k*7 + len(t.Source))
	}
	h := fnv.New64a()
	began := time.Now()
	for t.Bytes < cfg.Bytes {
		part := block[:min(int64(len(block)), cfg.Bytes-t.Bytes)]
		h.Write(part)
		n, err := c.Write(part)
		t.Bytes += int64(n)
		if err != nil {
			return err
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	var got uint64
	if err := binary.Read(c, binary.BigEndian, &got); err != nil {
		return err
	}
	t.Rate = float64(t.Bytes) / time.Since(began).Seconds()
	if got != h.Sum64() {
		return errors.New("other bytes arrived")
	}
	return nil
}
