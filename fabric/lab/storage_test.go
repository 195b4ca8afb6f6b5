//go:build linux

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/check"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/model/cluster"
	"golang.org/x/sys/unix"
)

// storagePlan is examples/storage.yaml with four hosts, two at each pair of leaves.
func storagePlan(t *testing.T) *network.Plan {
	t.Helper()
	data, err := os.ReadFile("../../examples/storage.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("n[0-7]", "n[0-3]", "pod: 4", "pod: 2", "down: 4", "down: 2", "count: 2", "count: 1", "up: 2", "up: 1",
		"name: storage\n", "name: small\n").Replace(string(data))
	c, err := cluster.Parse("storage.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("storage.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestStorageCarriesPackets: real packets cross the storage network of a lab between all
// NICs of all hosts, at its MTU, and none gets from it into the backend; the model of the
// emitted files says the same, and net check finds nothing.
func TestStorageCarriesPackets(t *testing.T) {
	if testing.Short() {
		t.Skip("brings routers up")
	}
	p := storagePlan(t)
	spec, err := NewSpec(p, fmt.Sprintf("storage-%d", os.Getpid()), Options{Routing: "frr", Setup: "networkd"})
	if err != nil {
		t.Fatal(err)
	}
	i := bring(t, spec)
	model := modelOf(t, p)
	pairs, lost := model.Reach(p.Intent.Storage.Prefix)
	if pairs != 48 || len(lost) > 0 {
		t.Errorf("the model loses %d of %d pairs: %v", len(lost), pairs, lost)
	}
	for k := range p.Hosts {
		echo(t, i, p.Hosts[k].Name)
	}
	for a := range p.Hosts {
		for b := range p.Hosts {
			for _, x := range storageOf(&p.Hosts[a]) {
				for _, y := range storageOf(&p.Hosts[b]) {
					if a == b {
						continue
					}
					if err := transfer(i, p.Hosts[a].Name, "", x.Addr.Addr(), y.Addr.Addr(), time.Minute); err != nil {
						t.Errorf("%s %s to %s: %v", p.Hosts[a].Name, x.Addr.Addr(), y.Addr.Addr(), err)
					}
				}
			}
		}
	}
	t.Run("isolation", func(t *testing.T) { testIsolation(t, p, i) })
	settled(t, i, p, 60*time.Second, func(found []check.Finding) error { // without lldpd, whose neighbours come slowly
		return nothing(slices.DeleteFunc(found, func(f check.Finding) bool { return strings.Contains(f.String(), "lldp.json") }))
	})
	// With one NIC gone the other carries on: nothing ties them together.
	n0, n3 := storageOf(&p.Hosts[0]), storageOf(&p.Hosts[3])
	if out, err := i.Run("n0", "ip", "link", "set", n0[0].Name, "down"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := transfer(i, "n0", "", n0[1].Addr.Addr(), n3[1].Addr.Addr(), time.Minute); err != nil {
		t.Errorf("without %s: %v", n0[0].Name, err)
	}
}

// servedPort is where every host of the lab echoes what it is sent.
const servedPort = 7000

// echo echoes TCP on all addresses of a host until the test ends.
func echo(t *testing.T, i *Info, host string) {
	t.Helper()
	var l net.Listener
	err := i.within(host, func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", servedPort))
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", host, err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// transfer sends 256 KiB between two addresses and back, by a device where one is named.
// Segments fill the links' MTU of 9,000 bytes, so a link that carries less would lose them.
func transfer(i *Info, host, device string, src, dst netip.Addr, limit time.Duration) error {
	var c net.Conn
	d := net.Dialer{Timeout: limit, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(src, 0)),
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			if device != "" {
				if e := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) }); e != nil {
					return e
				}
			}
			return err
		}}
	err := i.within(host, func() (err error) {
		c, err = d.Dial("tcp4", netip.AddrPortFrom(dst, servedPort).String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	data := make([]byte, 256<<10)
	for k := range data {
		data[k] = byte(k * 7)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- err
	}()
	back := make([]byte, len(data))
	if _, err := io.ReadFull(c, back); err != nil {
		return err
	}
	if !bytes.Equal(back, data) {
		return errors.New("other bytes came back")
	}
	return <-sent
}

// testIsolation: switches of one network have no route into the other, and a packet that a
// host sends out of a storage NIC to a backend address is lost.
func testIsolation(t *testing.T, p *network.Plan, i *Info) {
	n3 := p.Host("n3")
	storage, backend := n3.First(network.Storage).Addr.Addr(), n3.First(network.Backend).Addr.Addr()
	for k := range p.Switches {
		sw := &p.Switches[k]
		own, other := backend, storage
		if sw.Role == network.Storage {
			own, other = storage, backend
		}
		if out, err := i.Run(sw.Name, "ip", "route", "get", own.String()); err != nil {
			t.Errorf("%s has no route to %s: %s", sw.Name, own, out)
		}
		if out, err := i.Run(sw.Name, "ip", "route", "get", other.String()); err == nil {
			t.Errorf("%s is of %s and has a route to %s: %s", sw.Name, sw.Role, other, out)
		}
	}
	if err := transfer(i, "n0", "stor0", p.Host("n0").First(network.Storage).Addr.Addr(), backend, time.Second); err == nil {
		t.Errorf("what left by stor0 reached %s of the backend", backend)
	}
}

func storageOf(h *network.Host) (list []*network.Interface) {
	for j := range h.Interfaces {
		if h.Interfaces[j].Role == network.Storage {
			list = append(list, &h.Interfaces[j])
		}
	}
	return list
}

// modelOf reads the files back that are emitted for a plan.
func modelOf(t *testing.T, p *network.Plan) *prove.Net {
	t.Helper()
	n, err := prove.Load(filesOf(t, p))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
