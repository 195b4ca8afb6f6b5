package comm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/ucx"
	"github.com/weft-fabric/weft/run/transport/wait"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// Config says who this rank is and how it reaches the others. FromEnv fills it
// from the variables that launchers set.
type Config struct {
	Rank, Size int    // RANK, WORLD_SIZE
	LocalRank  int    // LOCAL_RANK: among the ranks of this host
	Addr       string // MASTER_ADDR:MASTER_PORT, where rank 0 listens

	Token string // WEFT_TOKEN: the cluster's secret; may be empty on loopback addresses alone
	Epoch uint64 // WEFT_EPOCH: of an elastic job, whose epochs have different tokens; only errors name it. 0 for none
	// TLS, if set, encrypts connections, and both ends show certificates. WEFT_TLS=token makes them from the token,
	// WEFT_TLS=DIR takes ca.pem, cert.pem and key.pem of a folder: see auth.Certificates.
	TLS *tls.Config
	// Checksum says which messages over tcp have a checksum: "hosts" (or empty) those between hosts, "all", "none". With a token
	// it is keyed, so that messages of another connection do not fit. Only TLS protects against those who alter messages on
	// purpose. WEFT_CHECKSUM.
	Checksum string

	// Transport is what must be used: shm, tcp, mixed (shared memory between the ranks
	// of a host, tcp between hosts), ucx (what that library finds, or ucx:posix,cma for
	// some of its transports), or empty for the fastest of weft's own that reaches all
	// ranks. WEFT_TRANSPORT.
	Transport string
	// Host is the host that this rank says it is on; ranks that say the same share
	// memory if they can. Empty for the machine and its network namespace, so that
	// namespaces count as hosts. WEFT_HOST.
	Host string
	// Require is a transport that must be what is used; anything else is an
	// error rather than a slower run. ucx:rc requires that UCX carries messages over its
	// transport rc. WEFT_REQUIRE.
	Require string
	// Floor is the least rate, bytes a second one way between two ranks, that
	// the links must have shown when they were measured; 0 for none. WEFT_FLOOR.
	Floor unit.Rate

	Interfaces []string // WEFT_INTERFACES, comma separated: those that tcp uses, by name or by prefix such as 10.1.0.0/16; empty for the one that reaches the peers
	AllRails   bool     // WEFT_RAILS=all: every interface that is up
	Discover   bool     // WEFT_RAILS=discover: those that are nearest to the host's GPUs; all network cards where there is no GPU
	Streams    int      // WEFT_STREAMS: tcp connections for each pair of interfaces; 0 for the default

	// Outage is how long a rank of another host is waited for that no link reaches, while its process may still be there; what
	// was sent meanwhile is sent again. 0 means 30 seconds, less than 0 not at all. The time limit of operations goes on.
	// WEFT_OUTAGE, a time or none.
	Outage time.Duration

	// Congestion names the congestion control of tcp between hosts, such as cubic; empty for the system's. WEFT_CONGESTION.
	Congestion string

	// Slice is the time slice that the threads of this process ask the system for, from 100 us to 100 ms, so that a rank that is woken
	// beside busy processes runs soon. 0 means 100 us where the ranks of a machine outnumber its cores, and else what the system
	// gives; less than 0 always the latter. WEFT_SLICE, a time or none.
	Slice time.Duration

	// Timeout is how long an operation may take, from its call (or, behind
	// others, its turn) to its end, waiting for the slowest rank included, and how
	// long Join waits for all ranks if its context has no deadline. WEFT_TIMEOUT;
	// 2 minutes if zero.
	Timeout time.Duration
	// Quorum says which ranks Shrink may go on with: "majority", more than half of the ranks of the
	// communicator, or half of them with its rank 0, so that there are never two groups; "any", whoever
	// is left. "witness:HOST:PORT" is a majority, or half of the ranks with the vote of a witness (weft coord --witness,
	// weft run --witness) instead of that of rank 0: jobs on two hosts then outlive the loss of either. Empty is majority if the ranks
	// are on several hosts, which a broken network may part, or could not share what they decide, and any otherwise. WEFT_QUORUM.
	Quorum string
	// Canonical makes the bits of a sum depend on the ranks' numbers alone:
	// neither on transport, hosts, size, chunks nor algorithm (the canonical order of package sched). WEFT_CANONICAL=1.
	Canonical bool
	// Measure measures the links even if a cache knows them. WEFT_MEASURE=1.
	Measure bool
	// Links are those of an earlier communicator between the same hosts (Comm.Links),
	// to begin with if the cache does not know this number of ranks; nil for none.
	Links *Links
	// Explain is where the table of choices is written by rank 0. WEFT_EXPLAIN=1 means standard error.
	Explain io.Writer
	// Flight is how many operations the flight recorder keeps; 256 if zero.
	Flight int
	// FlightDir is where the flight recorder is written when an operation fails
	// for the first time: rank-N.json and rank-N.trace.json (WriteJSON,
	// WriteChrome), N being the rank in the world; empty for nowhere. WEFT_FLIGHT_DIR.
	FlightDir string
	// WatchDir is where the process tells of its operations twice a second while it
	// runs, in live-SPACE-PID.json (package lives), for weft agent to read; empty for nowhere. WEFT_WATCH.
	WatchDir string
	// Log hears of refused connections, outages, lost paths, what is back, and slower ways than usual (warnings), and of the choice of
	// transport (info); nil for silence. WEFT_LOG, off, warn or info, is where FromEnv lets it write to standard error: warn if it is
	// not set.
	Log *slog.Logger
	// Listener, on rank 0, is where it listens instead of at Addr.
	Listener net.Listener
}

// FromEnv reads the environment that weft run, torchrun and their like set: RANK,
// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, and the WEFT_ variables that the
// fields of Config name. Without RANK and WORLD_SIZE it reads what srun, mpirun (Open MPI, and MPICH's Hydra, which it
// asks) and an Indexed Job of Kubernetes leave. Without any of them this process is a world of its own.
//
// It is an error if variables contradict one another, if a WEFT_ variable or its value is not
// known, or if several processes were plainly started and something is missing to bring them together: each of them
// would be alone. Each thing that is wrong is a *SettingError (errors.As), all of them joined.
func FromEnv() (Config, error) { return FromEnviron(os.Environ()) }

// FromEnviron is FromEnv of variables that are given, each as NAME=value. Of two with one name the last one counts.
func FromEnviron(environ []string) (Config, error) {
	e := newEnv(environ)
	c := e.settings()
	e.identity(&c)
	return c, e.err()
}

// SettingsFromEnv is FromEnv without who this rank is and where it meets the others,
// for programs that learn that in another way.
func SettingsFromEnv() (Config, error) { return SettingsFromEnviron(os.Environ()) }

// SettingsFromEnviron is SettingsFromEnv of variables that are given, each as NAME=value.
func SettingsFromEnviron(environ []string) (Config, error) {
	e := newEnv(environ)
	c := e.settings()
	return c, e.err()
}

// CheckEnviron says what is wrong with the WEFT_ variables among those given, each as NAME=value, for programs that start ranks:
// as *SettingErrors, as FromEnv would. here says that ranks see this host's files; without it folders are not looked at.
func CheckEnviron(environ []string, here bool) error {
	e := newEnv(environ)
	if !here {
		delete(e.values, "WEFT_TLS")
	}
	c := e.settings()
	if here && len(e.errs) == 0 {
		if err := c.folders(); err != nil {
			e.errs = append(e.errs, err)
		}
	}
	return e.err()
}

// SettingError is a setting that cannot be used: a variable of the environment, or the field of Config that it fills in.
type SettingError struct {
	Name  string // of the variable
	Value string // empty if it is missing, or not known as a variable
	Err   error  // the whole sentence: name, value, what is known
}

func (e *SettingError) Error() string { return e.Err.Error() }
func (e *SettingError) Unwrap() error { return e.Err }

// outage is how long a rank is waited for that no link reaches.
func (c *Config) outage() time.Duration {
	if c.Outage == 0 {
		return wire.OutageTime
	}
	return max(c.Outage, 0)
}

// witnessed begins a quorum with a witness, whose address follows.
const witnessed = "witness:"

// elsewhere are the WEFT_ variables that other packages read. Those of benchmarks
// and tests begin with WEFT_BENCH_ and WEFT_TEST_.
var elsewhere = []string{"WEFT_READ_TOKEN", "WEFT_AGENT_FD", "WEFT_CKPT", "WEFT_COORD_PASSWORD", "WEFT_CUDA", "WEFT_CUDA_SUMS",
	"WEFT_HOST_ADDR", "WEFT_JOB", "WEFT_KV", "WEFT_KV_TLS", "WEFT_LIBRARY", "WEFT_NCCL_PROFILE", "WEFT_NCCL_TABLE", "WEFT_NIXL",
	"WEFT_PROGRAM", "WEFT_SLOT", "WEFT_TRAIN", "WEFT_VERSITYGW", "WEFT_XFER_LISTEN", "WEFT_XFER_TIMEOUT"}

// env is an environment that is being read.
type env struct {
	values map[string]string
	read   []string // names that were asked for
	errs   []error
}

func newEnv(environ []string) *env {
	e := &env{values: map[string]string{}}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		e.values[name] = value
	}
	return e
}

func (e *env) get(name string) string {
	e.read = append(e.read, name)
	return e.values[name]
}

// wrong notes what is wrong with a variable.
func (e *env) wrong(name, format string, args ...any) {
	e.errs = append(e.errs, &SettingError{name, e.values[name], fmt.Errorf(format, args...)})
}

// badly notes what is wrong with the value of a variable.
func (e *env) badly(name string, err error) {
	if err != nil {
		e.wrong(name, "%s=%q %w", name, e.values[name], err)
	}
}

// number is a variable from 0 to most; def if it is not set.
func (e *env) number(name string, def, most int) int {
	s := e.get(name)
	if s == "" {
		return def
	}
	v, err := strconv.Atoi(s)
	switch {
	case err != nil:
		e.wrong(name, "%s=%q is not a number", name, s)
	case v < 0:
		e.wrong(name, "%s=%q is below 0", name, s)
	case v > most:
		e.wrong(name, "%s=%q is above %d", name, s, most)
	}
	return v
}

// flag is a variable that is on or off.
func (e *env) flag(name string) bool {
	switch s := e.get(name); s {
	case "", "0", "false":
		return false
	case "1", "true":
		return true
	default:
		e.wrong(name, "%s=%q is none of 1, true, 0, false", name, s)
		return false
	}
}

// settings reads how ranks work together.
func (e *env) settings() (c Config) {
	c.Token, c.Transport, c.Require = e.get("WEFT_TOKEN"), e.get("WEFT_TRANSPORT"), e.get("WEFT_REQUIRE")
	e.badly("WEFT_TRANSPORT", checkWay(c.Transport))
	e.badly("WEFT_REQUIRE", checkWay(c.Require))
	if c.Transport != "" && c.Require != "" && transportKind(c.Transport) != transportKind(c.Require) {
		e.wrong("WEFT_REQUIRE", "WEFT_TRANSPORT=%s and WEFT_REQUIRE=%s contradict one another: leave one of them out", c.Transport, c.Require)
	}
	c.Epoch, c.Host = uint64(e.number("WEFT_EPOCH", 0, math.MaxInt)), e.get("WEFT_HOST")
	e.network(&c)
	e.limits(&c)
	c.Quorum = e.get("WEFT_QUORUM")
	e.badly("WEFT_QUORUM", checkQuorum(c.Quorum))
	c.Log = e.logger()
	if s := e.get("WEFT_TLS"); s != "" && s != "0" && s != "none" {
		t, err := auth.Certificates(s, c.Token)
		if err != nil {
			e.wrong("WEFT_TLS", "WEFT_TLS=%q: %w", s, err)
		}
		c.TLS = t
	}
	c.Canonical, c.Measure = e.flag("WEFT_CANONICAL"), e.flag("WEFT_MEASURE")
	if e.flag("WEFT_EXPLAIN") {
		c.Explain = os.Stderr
	}
	c.Flight, c.FlightDir = e.number("WEFT_FLIGHT", 0, mostFlight), e.get("WEFT_FLIGHT_DIR")
	c.WatchDir = e.get("WEFT_WATCH")
	return c
}

// network reads which interfaces tcp uses, and how.
func (e *env) network(c *Config) {
	if s := e.get("WEFT_INTERFACES"); s != "" {
		c.Interfaces = strings.Split(s, ",")
		e.badly("WEFT_INTERFACES", checkInterfaces(c.Interfaces))
	}
	switch s := e.get("WEFT_RAILS"); s {
	case "", "one":
	case "all":
		c.AllRails = true
	case "discover":
		c.AllRails, c.Discover = true, true
	default:
		e.wrong("WEFT_RAILS", "WEFT_RAILS=%q is none of one, all, discover", s)
	}
	if c.AllRails && len(c.Interfaces) > 0 {
		e.wrong("WEFT_RAILS", "WEFT_RAILS=%s and WEFT_INTERFACES=%s contradict one another: leave one of them out",
			e.get("WEFT_RAILS"), strings.Join(c.Interfaces, ","))
	}
	c.Streams = e.number("WEFT_STREAMS", 0, mostStreams)
	c.Congestion = e.get("WEFT_CONGESTION")
	e.badly("WEFT_CONGESTION", checkCongestion(c.Congestion))
	c.Checksum = e.get("WEFT_CHECKSUM")
	e.badly("WEFT_CHECKSUM", checkChecksum(c.Checksum))
}

// limits reads how long things may take and how slow links may be.
func (e *env) limits(c *Config) {
	if s := e.get("WEFT_TIMEOUT"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			e.wrong("WEFT_TIMEOUT", "WEFT_TIMEOUT=%q is not a time such as 30s or 2m", s)
		} else {
			e.badly("WEFT_TIMEOUT", checkTimeout(d))
		}
		c.Timeout = d
	}
	if s := e.get("WEFT_FLOOR"); s != "" {
		r, err := unit.ParseRate(s)
		if err != nil || r < 0 {
			e.wrong("WEFT_FLOOR", "WEFT_FLOOR=%q is not a rate such as 5GB/s or 40Gb/s", s)
		}
		c.Floor = r
	}
	c.Outage = e.timeOrNone("WEFT_OUTAGE", "30s")
	c.Slice = e.timeOrNone("WEFT_SLICE", "100us")
	e.badly("WEFT_SLICE", checkSlice(c.Slice))
}

// timeOrNone is a variable with a time; none is -1.
func (e *env) timeOrNone(name, such string) time.Duration {
	switch s := e.get(name); s {
	case "":
		return 0
	case "none", "0":
		return -1
	default:
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			e.wrong(name, "%s=%q is neither a time such as %s nor none", name, s, such)
			return 0
		}
		return d
	}
}

// logger reads what is logged, to standard error; nil for nothing.
func (e *env) logger() *slog.Logger {
	switch s := e.get("WEFT_LOG"); s {
	case "off":
	case "", "warn":
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	case "info":
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	default:
		e.wrong("WEFT_LOG", "WEFT_LOG=%q is none of off, warn, info", s)
	}
	return nil
}

// identity reads who this rank is and where rank 0 listens.
func (e *env) identity(c *Config) {
	rank, size := e.get("RANK"), e.get("WORLD_SIZE")
	if rank == "" && (size == "" || e.get("JOB_COMPLETION_INDEX") != "") {
		e.launched(c)
		return
	}
	c.Rank, c.Size = e.number("RANK", 0, math.MaxInt32), e.number("WORLD_SIZE", 1, math.MaxInt32)
	c.LocalRank = e.number("LOCAL_RANK", 0, math.MaxInt32)
	switch {
	case size == "":
		e.wrong("WORLD_SIZE", "RANK=%s is set and WORLD_SIZE is not: set both, or neither for a world of one", rank)
	case rank == "" && c.Size > 1:
		e.wrong("RANK", "WORLD_SIZE=%s is set and RANK is not: set both, or neither for a world of one", size)
	case len(e.errs) == 0 && c.Rank >= c.Size:
		e.wrong("RANK", "RANK=%d of WORLD_SIZE=%d: ranks are numbers from 0 to WORLD_SIZE-1", c.Rank, c.Size)
	}
	if n := e.number("LOCAL_WORLD_SIZE", 0, math.MaxInt32); n > 0 && c.LocalRank >= n {
		e.wrong("LOCAL_RANK", "LOCAL_RANK=%d of LOCAL_WORLD_SIZE=%d: local ranks are numbers from 0 to LOCAL_WORLD_SIZE-1", c.LocalRank, n)
	}
	addr, port := e.get("MASTER_ADDR"), e.get("MASTER_PORT")
	switch {
	case addr != "" && port != "":
		e.number("MASTER_PORT", 0, math.MaxUint16)
		c.Addr = net.JoinHostPort(strings.Trim(addr, "[]"), port) // brackets are usual around IPv6 addresses
	case c.Size > 1:
		e.wrong("MASTER_ADDR", "MASTER_ADDR=%q MASTER_PORT=%q: both are needed with WORLD_SIZE=%d; `weft run -n %d -- COMMAND` sets them",
			addr, port, c.Size, c.Size)
	}
}

// err is everything that is wrong, unknown variables included.
func (e *env) err() error {
	names := slices.Sorted(maps.Keys(e.values))
	for _, name := range names {
		if !strings.HasPrefix(name, "WEFT_") || strings.HasPrefix(name, "WEFT_BENCH_") || strings.HasPrefix(name, "WEFT_TEST_") ||
			slices.Contains(elsewhere, name) || slices.Contains(e.read, name) {
			continue
		}
		var known []string
		for _, k := range e.read {
			if strings.HasPrefix(k, "WEFT_") {
				known = append(known, k)
			}
		}
		slices.Sort(known)
		meant := ""
		if near := spell.Nearest(name, append(slices.Clone(known), elsewhere...)); near != "" {
			meant = " (did you mean " + near + "?)"
		}
		// The value may be a secret: it is not told.
		e.errs = append(e.errs, &SettingError{name, "",
			fmt.Errorf("%s is not a weft variable%s; ranks read %s", name, meant, strings.Join(known, ", "))})
	}
	return errors.Join(e.errs...)
}

// transportKind is a transport without what it is told to use.
func transportKind(name string) string {
	kind, _, _ := strings.Cut(name, ":")
	return kind
}

// CheckTransport says what is wrong with the name of a transport, as the end of a sentence that begins with it; empty and mem are
// names, too.
func CheckTransport(name string) error {
	kind, list, named := strings.Cut(name, ":")
	switch kind {
	case "", "shm", "tcp", "mixed", "mem", "ucx":
	default:
		return errors.New("is none of shm, tcp, mixed, ucx")
	}
	if named && (kind != "ucx" || slices.Contains(strings.Split(list, ","), "")) {
		return errors.New("has something behind its colon that is no list of transports of UCX, as in ucx:rc or ucx:posix,cma")
	}
	return nil
}

// CheckNamed says which of the transports of UCX that a name has behind its colon is none, anywhere.
func CheckNamed(name string) error {
	if kind, list, named := strings.Cut(name, ":"); named && kind == "ucx" {
		return ucx.Check(strings.Split(list, ","))
	}
	return nil
}

// complete fills in defaults and says what is wrong.
func (c *Config) complete() error {
	if c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size {
		return fmt.Errorf("rank %d of %d: a rank is a number from 0 to WORLD_SIZE-1", c.Rank, c.Size)
	}
	for _, x := range []struct {
		what, name, value string
		err               error
	}{
		{"transport", "WEFT_TRANSPORT", c.Transport, CheckTransport(c.Transport)},
		{"required transport", "WEFT_REQUIRE", c.Require, CheckTransport(c.Require)},
		{"interfaces", "WEFT_INTERFACES", strings.Join(c.Interfaces, ","), checkInterfaces(c.Interfaces)},
		{"checksums", "WEFT_CHECKSUM", c.Checksum, checkChecksum(c.Checksum)},
		{"congestion control", "WEFT_CONGESTION", c.Congestion, checkCongestion(c.Congestion)},
		{"time slice", "WEFT_SLICE", c.Slice.String(), checkSlice(c.Slice)},
		{"quorum", "WEFT_QUORUM", c.Quorum, checkQuorum(c.Quorum)},
		{"streams", "WEFT_STREAMS", strconv.Itoa(c.Streams), checkNumber(c.Streams, mostStreams)},
		{"operations of the flight recorder", "WEFT_FLIGHT", strconv.Itoa(c.Flight), checkNumber(c.Flight, mostFlight)},
	} {
		if x.err != nil {
			return &SettingError{x.name, x.value, fmt.Errorf("%s (%s) %q %w", x.what, x.name, x.value, x.err)}
		}
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	if err := checkTimeout(c.Timeout); err != nil {
		return &SettingError{"WEFT_TIMEOUT", c.Timeout.String(), fmt.Errorf("time limit (WEFT_TIMEOUT) %s %w", c.Timeout, err)}
	}
	if c.Flight == 0 {
		c.Flight = 256
	}
	return c.folders()
}

// folders makes the directories in which a rank leaves files: when there is something to write it would be too late to say that it cannot.
func (c *Config) folders() error {
	for _, x := range []struct{ what, name, dir string }{{"directory of the flight recorder", "WEFT_FLIGHT_DIR", c.FlightDir},
		{"directory for agents", "WEFT_WATCH", c.WatchDir}} {
		if x.dir == "" {
			continue
		}
		if err := os.MkdirAll(x.dir, 0o755); err != nil {
			return &SettingError{x.name, x.dir, fmt.Errorf("%s (%s) %q: %w", x.what, x.name, x.dir, err)}
		}
	}
	return nil
}

const (
	mostStreams = 64      // for each pair of interfaces; more cost files and bring nothing
	mostFlight  = 1 << 20 // operations, some hundred bytes each
)

func checkNumber(n, most int) error {
	if n < 0 || n > most {
		return fmt.Errorf("is not from 0 to %d", most)
	}
	return nil
}

// checkWay is CheckTransport for processes, which do not share goroutines.
func checkWay(name string) error {
	if name == "mem" {
		return errors.New("is for ranks that are goroutines of one process; want shm, tcp, mixed or ucx")
	}
	if err := CheckTransport(name); err != nil {
		return err
	}
	if err := CheckNamed(name); err != nil {
		return fmt.Errorf("is not known: %w", err)
	}
	return nil
}

// checkInterfaces checks names of interfaces and prefixes of networks. Its errors are the end of a sentence that begins
// with the variable.
func checkInterfaces(list []string) error {
	for i, s := range list {
		if slices.Contains(list[:i], s) {
			return fmt.Errorf("names %q twice: leave one out", s)
		}
		if s == "" || s != strings.TrimSpace(s) {
			return fmt.Errorf("contains %q; want interface names or prefixes separated by commas without spaces, such as eth0,10.1.0.0/16", s)
		}
		if strings.Contains(s, "/") {
			if _, err := netip.ParsePrefix(s); err != nil {
				return fmt.Errorf("contains %q, which is not a prefix such as 10.1.0.0/16", s)
			}
		}
	}
	return nil
}

func checkCongestion(s string) error {
	if s == "" {
		return nil
	}
	return wire.CheckCongestion(s)
}

func checkChecksum(s string) error {
	if _, known := checksums[s]; !known {
		return errors.New("is none of hosts, all, none")
	}
	return nil
}

func checkQuorum(s string) error {
	if at, ok := strings.CutPrefix(s, witnessed); ok {
		if _, _, err := net.SplitHostPort(at); err != nil {
			return fmt.Errorf("names no witness, as in witness:10.0.0.9:2381: %w", err)
		}
	} else if s != "" && s != "majority" && s != "any" {
		return errors.New("is none of majority, any, witness:HOST:PORT")
	}
	return nil
}

// leastSlice and mostSlice are what Linux allows.
const (
	leastSlice = 100 * time.Microsecond
	mostSlice  = 100 * time.Millisecond
)

func checkSlice(d time.Duration) error {
	if d > 0 && (d < leastSlice || d > mostSlice) {
		return fmt.Errorf("is not from %s to %s", leastSlice, mostSlice)
	}
	return nil
}

func checkTimeout(d time.Duration) error {
	if d < wait.Slice {
		return fmt.Errorf("is too short: waits are looked after every %s", wait.Slice)
	}
	return nil
}
