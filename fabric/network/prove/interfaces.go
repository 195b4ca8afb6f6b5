package prove

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// interfaces reads the ports of a Linux switch that ifupdown configures.
func (n *Net) interfaces(name string, data []byte) error {
	f := ifaceFile{d: n.device(name, true)}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		w := strings.Fields(line)
		if len(w) == 0 || w[0][0] == '#' {
			continue
		}
		known, err := f.line(w)
		if err != nil {
			return fmt.Errorf("line %d: %q: %w", number, strings.TrimSpace(line), err)
		}
		if !known {
			n.Unread = append(n.Unread, fmt.Sprintf("%s interfaces line %d: %s", name, number, strings.TrimSpace(line)))
		}
	}
	return nil
}

type ifaceFile struct {
	d    *Device
	port *Port
}

// line reads one line; known says whether the model uses it, or whether it changes nothing.
func (f *ifaceFile) line(w []string) (known bool, err error) {
	switch {
	case w[0] == "auto" || w[0] == "allow-hotplug":
		return true, nil
	case len(w) < 2:
		return false, nil
	case w[0] == "iface":
		f.port = f.d.port(w[1])
		return len(w) == 2 || slices.Contains([]string{"static", "manual", "loopback"}, w[len(w)-1]), nil
	case f.port == nil:
		return false, nil
	}
	return f.option(w[0], w[len(w)-1])
}

// option reads what an interface has.
func (f *ifaceFile) option(name, value string) (known bool, err error) {
	switch name {
	case "address":
		return true, f.address(value)
	case "mtu":
		f.port.MTU, err = strconv.Atoi(value)
		return true, err
	case "hwaddress":
		f.port.Local, err = linkLocal(value)
		return true, err
	}
	return false, nil
}

// address adds an address with its length; one of a link is what neighbours know the port by.
func (f *ifaceFile) address(text string) error {
	a, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return fmt.Errorf("%w; write ADDRESS/LENGTH", err)
	case a.Addr().Is6() && a.Addr().IsLinkLocalUnicast():
		f.port.Local = a.Addr()
		return nil
	}
	return f.port.address(text)
}

// linkLocal is the address that the kernel makes of a hardware address.
func linkLocal(text string) (netip.Addr, error) {
	m, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(m) != 6 {
		return netip.Addr{}, fmt.Errorf("%q is no hardware address of six bytes", text)
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]}), nil
}
