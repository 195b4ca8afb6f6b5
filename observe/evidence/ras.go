package evidence

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// NCCL's RAS listens on localhost:28028 of every host, often on ::1 alone. All
// processes of a user share the port, and the kernel picks one for each connection.
//
// A query can kill the job it asks: NCCL 2.24 to 2.26 crash when asked while a
// communicator is made, and versions before 2.29.2 overrun memory when a rank is
// missing. So the version is found out first, by a command that only 2.29.2 and
// later know and that collects nothing. Older ones are asked only by force.

const (
	rasPort    = "28028"
	rasTimeout = 10 * time.Second // that RAS may take to collect
	rasMargin  = 8 * time.Second
	maxRAS     = 512 << 20
)

// AskRAS gets a report in JSON, or in text from old versions by force.
func AskRAS(ctx context.Context, addr string, force bool) ([]byte, error) {
	addr = rasAddress(addr)
	if !force {
		ok, err := rasIsSafe(ctx, addr)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil,
				fmt.Errorf("RAS at %s is of NCCL before 2.29.2: a query can crash the job; ask it with --force-ras when the job is already judged hung",
					addr)
		}
	}
	c, err := dialRAS(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.ask(fmt.Sprintf("TIMEOUT %d", int(rasTimeout.Seconds()))); err != nil {
		return nil, err
	}
	answer, err := c.ask("SET FORMAT json")
	if err != nil {
		return nil, err
	}
	if answer != "OK" && !force {
		return nil, fmt.Errorf("RAS at %s has no JSON form (%q): NCCL before 2.28.7; ask it with --force-ras when the job is already judged hung",
			addr, answer)
	}
	c.SetDeadline(time.Now().Add(rasTimeout + 5*time.Second + rasMargin))
	if _, err := fmt.Fprint(c, "VERBOSE STATUS\n"); err != nil {
		return nil, fmt.Errorf("RAS at %s: %w", addr, err)
	}
	return readRAS(c.r, addr)
}

// rasAddress adds what is missing to an address: this host, and the port that NCCL listens on by default.
func rasAddress(addr string) string {
	addr = cmp.Or(addr, "localhost")
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return net.JoinHostPort(strings.Trim(addr, "[]"), rasPort)
	}
	return addr
}

// readRAS reads a report to its end. A part of one is worth having, so an error counts only if nothing came.
func readRAS(r io.Reader, addr string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxRAS))
	if err == nil || len(b) > 0 {
		return b, nil
	}
	if timedOut(err) {
		return nil, fmt.Errorf("RAS at %s took the question and did not answer within %s", addr, rasTimeout+5*time.Second+rasMargin)
	}
	return nil, fmt.Errorf("RAS at %s: %w", addr, err)
}

// rasIsSafe asks for monitoring mode, which 2.29.2 and later have, and hangs up.
func rasIsSafe(ctx context.Context, addr string) (bool, error) {
	c, err := dialRAS(ctx, addr)
	if err != nil {
		return false, err
	}
	defer c.Close()
	answer, err := c.ask("MONITOR lifecycle")
	if err != nil {
		return false, err
	}
	return answer == "OK", nil
}

type rasConn struct {
	net.Conn
	r    *bufio.Reader
	addr string
}

// dialRAS connects and agrees on the protocol.
func dialRAS(ctx context.Context, addr string) (*rasConn, error) {
	host, port, _ := net.SplitHostPort(addr)
	tries := []string{addr}
	if host == "localhost" {
		tries = []string{net.JoinHostPort("::1", port), net.JoinHostPort("127.0.0.1", port)}
	}
	var errs []error
	for _, a := range tries {
		d := net.Dialer{Timeout: 5 * time.Second}
		conn, err := d.DialContext(ctx, "tcp", a)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c := &rasConn{Conn: conn, r: bufio.NewReaderSize(conn, 64<<10), addr: a}
		answer, err := c.ask("CLIENT PROTOCOL 2")
		if err != nil {
			conn.Close()
			return nil, err
		}
		if !strings.HasPrefix(answer, "SERVER PROTOCOL ") {
			conn.Close()
			return nil, fmt.Errorf("%s is no RAS server: it answered %q", a, short(answer))
		}
		return c, nil
	}
	return nil, fmt.Errorf("no RAS server at %s: %w", addr, errors.Join(errs...))
}

// ask sends one line and reads one line, both within five seconds.
func (c *rasConn) ask(line string) (string, error) {
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintf(c, "%s\n", line); err != nil {
		return "", fmt.Errorf("RAS at %s: %w", c.addr, err)
	}
	var b []byte
	for len(b) < 1024 { // an answer is shorter than that
		x, err := c.r.ReadByte()
		if err != nil {
			if timedOut(err) {
				return "", fmt.Errorf("RAS at %s does not answer to %q within 5 s", c.addr, line)
			}
			return "", fmt.Errorf("RAS at %s after %q: %w", c.addr, line, err)
		}
		if x == '\n' {
			return strings.TrimSpace(string(b)), nil
		}
		b = append(b, x)
	}
	return "", fmt.Errorf("%s is no RAS server: it answered %q", c.addr, short(string(b)))
}

func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func short(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}
