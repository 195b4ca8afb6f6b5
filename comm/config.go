package comm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/cost"
	"github.com/weft-fabric/weft/transport/wait"
	"github.com/weft-fabric/weft/unit"
)

// Config says who this rank is and how it reaches the others. FromEnv fills it
// from the variables that launchers set.
type Config struct {
	Rank, Size int    // RANK, WORLD_SIZE
	LocalRank  int    // LOCAL_RANK: among the ranks of this host
	Addr       string // MASTER_ADDR:MASTER_PORT, where rank 0 listens

	Token string      // WEFT_TOKEN: the cluster's secret; may be empty on loopback addresses alone
	TLS   *tls.Config // if set, connections are TLS and both ends show certificates

	// Transport is what must be used: shm, tcp, or empty for the fastest that
	// reaches all ranks. WEFT_TRANSPORT.
	Transport string
	// Require is a transport that must be what is used; anything else is an
	// error rather than a slower run. WEFT_REQUIRE.
	Require string
	// Floor is the least rate, bytes a second one way between two ranks, that
	// the links must have shown when they were measured; 0 for none. WEFT_FLOOR.
	Floor unit.Rate

	Interfaces []string // WEFT_INTERFACES, comma separated: those that tcp uses, by name or by prefix such as 10.1.0.0/16; empty for the one that reaches the peers
	AllRails   bool     // WEFT_RAILS=all: every interface that is up
	Streams    int      // WEFT_STREAMS: tcp connections for each pair of interfaces; 0 for the default

	// Timeout is how long an operation may take, from its call (or, behind
	// others, its turn) to its end, waiting for the slowest rank included, and how
	// long Join waits for all ranks if its context has no deadline. WEFT_TIMEOUT;
	// 2 minutes if zero.
	Timeout time.Duration
	// Canonical makes the bits of a sum depend on the ranks' numbers alone:
	// neither on size, chunks nor algorithm. WEFT_CANONICAL=1.
	Canonical bool
	// Measure measures the links even if a cache knows them. WEFT_MEASURE=1.
	Measure bool
	// Links are those of an earlier communicator between the same hosts (Comm.Links),
	// to begin with if the cache does not know this number of ranks; nil for none.
	Links *cost.Links
	// Explain is where the table of choices is written by rank 0. WEFT_EXPLAIN=1 means standard error.
	Explain io.Writer
	// Flight is how many operations the flight recorder keeps; 256 if zero.
	Flight int
	// FlightDir is where the flight recorder is written when an operation fails
	// for the first time: rank-N.json and rank-N.trace.json (WriteJSON,
	// WriteChrome), N being the rank in the world; empty for nowhere. WEFT_FLIGHT_DIR.
	FlightDir string
	// Log hears of refused connections, lost paths and the choice of transport; nil for silence.
	Log *slog.Logger
	// Listener, on rank 0, is where it listens instead of at Addr.
	Listener net.Listener

	err error
}

// FromEnv reads the environment that torchrun, weft run and their like set. What
// is wrong with it is told by Join.
func FromEnv() Config { return fromEnv(os.Getenv) }

func fromEnv(get func(string) string) Config {
	var c Config
	var errs []error
	number := func(name string, def int) int {
		s := get(name)
		if s == "" {
			return def
		}
		v, err := strconv.Atoi(s)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s=%q is not a number", name, s))
		case v < 0:
			errs = append(errs, fmt.Errorf("%s=%q is below 0", name, s))
		}
		return v
	}
	c.Rank, c.Size = number("RANK", 0), number("WORLD_SIZE", 1)
	c.LocalRank = number("LOCAL_RANK", 0)
	addr, port := get("MASTER_ADDR"), get("MASTER_PORT")
	switch {
	case addr != "" && port != "":
		c.Addr = net.JoinHostPort(strings.Trim(addr, "[]"), port) // brackets are usual around IPv6 addresses
	case c.Size > 1:
		errs = append(errs, fmt.Errorf("MASTER_ADDR=%q MASTER_PORT=%q: both are needed with WORLD_SIZE=%d; `weft run -n %d -- COMMAND` sets them", addr, port, c.Size, c.Size))
	}
	c.Token, c.Transport, c.Require = get("WEFT_TOKEN"), get("WEFT_TRANSPORT"), get("WEFT_REQUIRE")
	if s := get("WEFT_INTERFACES"); s != "" {
		c.Interfaces = strings.Split(s, ",")
	}
	switch s := get("WEFT_RAILS"); s {
	case "", "one":
	case "all":
		c.AllRails = true
	default:
		errs = append(errs, fmt.Errorf("WEFT_RAILS=%q is none of one, all", s))
	}
	c.Streams = number("WEFT_STREAMS", 0)
	if s := get("WEFT_TIMEOUT"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			errs = append(errs, fmt.Errorf("WEFT_TIMEOUT=%q is not a time such as 30s or 2m", s))
		}
		c.Timeout = d
	}
	if s := get("WEFT_FLOOR"); s != "" {
		r, err := unit.ParseRate(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("WEFT_FLOOR: %w", err))
		}
		c.Floor = r
	}
	c.Canonical, c.Measure = isSet(get("WEFT_CANONICAL")), isSet(get("WEFT_MEASURE"))
	if isSet(get("WEFT_EXPLAIN")) {
		c.Explain = os.Stderr
	}
	c.Flight, c.FlightDir = number("WEFT_FLIGHT", 0), get("WEFT_FLIGHT_DIR")
	c.err = errors.Join(errs...)
	return c
}

func isSet(s string) bool { return s != "" && s != "0" && s != "false" }

// complete fills in defaults and says what is wrong.
func (c *Config) complete() error {
	if c.err != nil {
		return c.err
	}
	if c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size {
		return fmt.Errorf("rank %d of %d: a rank is a number from 0 to WORLD_SIZE-1", c.Rank, c.Size)
	}
	for _, x := range []struct{ name, value string }{{"transport (WEFT_TRANSPORT)", c.Transport}, {"required transport (WEFT_REQUIRE)", c.Require}} {
		switch x.value {
		case "", "shm", "tcp", "mem":
		default:
			return fmt.Errorf("%s %q is none of shm, tcp", x.name, x.value)
		}
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	if c.Flight == 0 {
		c.Flight = 256
	}
	if c.FlightDir != "" {
		if err := os.MkdirAll(c.FlightDir, 0o755); err != nil {
			return fmt.Errorf("directory of the flight recorder (WEFT_FLIGHT_DIR): %w", err) // at a failure it would be too late to say so
		}
	}
	if c.Timeout < wait.Slice {
		return fmt.Errorf("time limit %s is too short: waits are looked after every %s", c.Timeout, wait.Slice)
	}
	return nil
}
