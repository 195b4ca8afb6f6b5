package place

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Ports. EtcdPort is etcd's for clients, CoordPort is the one that torchrun's
// rendezvous has if nothing else is said.
const (
	EtcdPort  = 2379
	CoordPort = 29400
)

// parseAddresses reads host:port, several with commas between them; one without
// a port has the given one. IPv6 addresses stand in brackets.
func parseAddresses(s string, port int) ([]string, error) {
	if strings.TrimSpace(s) == "" {
		return nil, errors.New("no address; want host:port")
	}
	var list []string
	for a := range strings.SplitSeq(s, ",") {
		host, digits, err := cutPort(strings.TrimSpace(a))
		if err != nil {
			return nil, err
		}
		n := port
		if digits != "" {
			if n, err = strconv.Atoi(digits); err != nil || n < 0 || n > 65535 || digits[0] == '+' {
				return nil, fmt.Errorf("port %s of %s; want 0 to 65535", quoted(digits), quoted(a))
			}
		}
		list = append(list, join(host, n))
	}
	return list, nil
}

// cutBrackets cuts [IPv6 address][:port].
func cutBrackets(a string) (host, port string, err error) {
	host, after, closed := strings.Cut(a[1:], "]")
	if !closed || after != "" && (after[0] != ':' || after == ":") {
		return "", "", fmt.Errorf("%s; want an IPv6 address like [fd00::1]:%d", quoted(a), CoordPort)
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() {
		return "", "", fmt.Errorf("%s in brackets is no IPv6 address; want one like [fd00::1]:%d", quoted(host), CoordPort)
	}
	return host, strings.TrimPrefix(after, ":"), checkHost(host)
}

// cutPort cuts host[:port] and checks the host.
func cutPort(a string) (host, port string, err error) {
	if strings.Contains(a, "://") {
		return "", "", fmt.Errorf("%s has a scheme; want host:port alone", quoted(a))
	}
	host = a
	if strings.HasPrefix(a, "[") {
		return cutBrackets(a)
	}
	if i := strings.IndexByte(a, ':'); i >= 0 {
		if strings.Count(a, ":") > 1 {
			return "", "", fmt.Errorf("%s has several colons; put an IPv6 address in brackets, like [fd00::1]:%d", quoted(a), CoordPort)
		}
		if host, port = a[:i], a[i+1:]; port == "" {
			return "", "", fmt.Errorf("%s ends before its port; want host:port", quoted(a))
		}
	}
	return host, port, checkHost(host)
}

// checkHost accepts a host's name, or an address of version 4 or 6.
func checkHost(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" {
			return fmt.Errorf("%s has a zone, which is known to one host alone; want an address without", quoted(host))
		}
		return nil
	}
	bad := strings.ContainsFunc(host, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	})
	if host == "" || len(host) > 253 || bad || host[0] == '.' || host[0] == '-' {
		return fmt.Errorf("%s is not a host name or address; names have letters, digits, dots and dashes", quoted(host))
	}
	return nil
}

// join is host:port, with brackets where the host needs them.
func join(host string, port int) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}

// split undoes join.
func split(addr string) (host string, port int) {
	i := strings.LastIndexByte(addr, ':')
	port, _ = strconv.Atoi(addr[i+1:])
	return strings.Trim(addr[:i], "[]"), port
}

// loopback says whether a host is reached from itself alone.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || strings.EqualFold(host, "localhost")
}

// listen is the address to listen on where a coordinator is reached at another.
// A name may not be this host's own, as that of a service is not, so that
// everything but loopback is every address of this host.
func listen(host string, port int) string {
	ip, err := netip.ParseAddr(host)
	v6 := err == nil && ip.Is6() && !ip.Is4In6()
	switch {
	case loopback(host) && v6:
		return join("::1", port)
	case loopback(host):
		return join("127.0.0.1", port)
	case v6:
		return join("::", port)
	}
	return join("0.0.0.0", port)
}
