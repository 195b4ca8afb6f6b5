// Package launch starts a run's ranks as processes on this host, or on others through a
// remote shell, and cleans up after them.
//
//	Spec      what to start: how many, which command, where
//	Run       starts all of them and waits; one that fails ends the rest
//	Process   one rank: a process group of its own, started, signalled, waited for
//	Port      a port number reserved for rank 0
//	Failure   which rank failed first, how, and the tail of its stderr
//
// A rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT) and WEFT_TOKEN, the run's secret by which ranks recognise
// each other.
package launch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// MaxRanks is the largest number of ranks of one run: each costs three
// descriptors and two threads of the launcher.
const MaxRanks = 4096

// Grace is how long ranks have to end after SIGTERM unless Spec says otherwise.
const Grace = 5 * time.Second

// Spec is what to start. The zero value of every field but N and Command is usable.
type Spec struct {
	N       int                 // ranks, at least 1
	Command []string            // the program and its arguments, the same for every rank
	Env     []string            // NAME=VALUE beside this process's own environment; these win
	HostEnv map[string][]string // more of it for the ranks of a host, by its name
	Dir     string              // where ranks start; "" is the current folder

	// Hosts are where ranks run, in blocks: with 5 ranks on a and b, a has 0 and
	// 1. Nil is this host. Remote says how the others are reached.
	Hosts  []string
	Remote Remote

	Addr  string // MASTER_ADDR; "" is the first host, or 127.0.0.1 without hosts
	Port  int    // MASTER_PORT; 0 is a free one, held until the run ends
	Token string // WEFT_TOKEN; "" is 128 random bits

	// Stdout and Stderr take whole lines, each in one Write; nil drops them.
	// With Prefix a line begins with its rank in brackets. Capture, where set,
	// gives the writer of a rank's standard output, without prefix.
	Stdout, Stderr io.Writer
	Prefix         bool
	Capture        func(rank int) io.Writer

	// Signals that arrive are handed on to every rank. The first SIGINT, SIGTERM or
	// SIGHUP also starts the grace, the second ends it.
	Signals <-chan os.Signal

	// Grace is how long ranks have between SIGTERM and SIGKILL; 0 is the
	// package's Grace, below 0 none.
	Grace time.Duration

	// KeepGoing lets the other ranks run on when one fails: they may finish without it. The run has failed only if no rank
	// ended with 0. Failed, where set, hears of every rank that fails meanwhile, and how many still run.
	KeepGoing bool
	Failed    func(e Exit, left int)

	// Started, where set, hears of every rank once it runs.
	Started func(*Process)
}

// Result is how a run ended.
type Result struct {
	Exits []Exit   // by rank; ranks that were never started have Pid 0
	Cause *Failure // the first failure; nil if every rank ended with 0
}

// Code is what a launcher should exit with: the code of the rank that failed
// first, 128 and the signal if one ended it, 0 without a failure.
func (r Result) Code() int {
	if r.Cause == nil {
		return 0
	}
	return r.Cause.Exit.Status()
}

// checkAddr is nil for an address or a name that rank 0 may listen at; the port is told apart.
func checkAddr(addr string) error {
	if _, err := netip.ParseAddr(addr); err == nil || !strings.ContainsAny(addr, ":/[] \t") {
		return nil
	}
	return fmt.Errorf("launch: MASTER_ADDR %q is neither an address nor a name of a host; want one without a port, like 10.0.0.1 or n0", addr)
}

// Run starts the ranks and returns once all have ended and their output is
// written. The error is a *Failure if a rank failed, ctx's if that ended the
// run, or says what could not be started; whichever it is, no rank is left.
func Run(ctx context.Context, spec Spec) (Result, error) {
	if err := spec.check(); err != nil {
		return Result{}, err
	}
	places, err := spec.places()
	if err != nil {
		return Result{}, err
	}
	addr, port := spec.Addr, spec.Port
	if err := checkAddr(addr); err != nil {
		return Result{}, err
	}
	if addr == "" {
		addr = "127.0.0.1"
		if len(spec.Hosts) > 0 {
			addr = spec.Hosts[0]
		}
	}
	if port == 0 {
		held, err := HoldPort()
		if err != nil {
			return Result{}, fmt.Errorf("launch: no port for MASTER_PORT: %w", err)
		}
		defer held.Release()
		port = held.Number
	}
	token := spec.Token
	if token == "" {
		if token, err = NewToken(); err != nil {
			return Result{}, err
		}
	}
	out := newOutput(&spec)
	run := &run{spec: &spec, exits: make(chan *Process, spec.N), procs: make([]*Process, 0, spec.N)}
	for _, p := range places {
		plain := slices.Concat(p.env(spec.N, addr, port, token), spec.Env, spec.HostEnv[p.host])
		command, env, stdin := spec.Remote.wrap(p.host, spec.Command, plain, token)
		var remote []string
		if env == nil {
			remote = plain
		}
		stdout, stderr := out.writers(p.rank)
		proc, err := Start(Command{
			Rank: p.rank, Host: p.host, Args: command, Env: env, Dir: spec.Dir,
			Stdin: stdin, Stdout: stdout, Stderr: stderr, remote: remote,
		}, run.exits)
		if err != nil {
			run.stop(nil)
			run.drain()
			return run.result(), fmt.Errorf("launch: rank %d: %w", p.rank, err)
		}
		run.procs = append(run.procs, proc)
		if spec.Started != nil {
			spec.Started(proc)
		}
	}
	res, err := run.wait(ctx)
	told := err
	if err == nil && run.asked != nil { // ranks that end well when they are asked to have still not finished
		told = context.Canceled
	}
	Over(run.procs[0].watch, run.procs[0].record.Job, told)
	return res, err
}

// check refuses what could not be started. Whether hosts can be reached, and whether the command exists there, shows
// only when it starts.
func (s *Spec) check() error {
	switch {
	case s.N < 1 || s.N > MaxRanks:
		return fmt.Errorf("launch: %d ranks; want 1 to %d", s.N, MaxRanks)
	case len(s.Command) == 0:
		return errors.New("launch: no command; want a program and its arguments")
	case len(s.Hosts) > s.N:
		return fmt.Errorf("launch: %d hosts for %d ranks; give at least one rank for each", len(s.Hosts), s.N)
	case s.Port < 0 || s.Port > 65535:
		return fmt.Errorf("launch: MASTER_PORT %d; want 1 to 65535, or 0 for a free one", s.Port)
	}
	if s.Dir != "" && len(s.Hosts) == 0 {
		if _, err := os.Stat(s.Dir); err != nil {
			return fmt.Errorf("launch: folder to start in: %w", err)
		}
	}
	return nil
}

// place is where a rank stands.
type place struct {
	rank, local, locals int
	host                string
}

// places deals the ranks to the hosts in blocks that differ by at most one.
func (s *Spec) places() ([]place, error) {
	hosts := s.Hosts
	if len(hosts) == 0 {
		hosts = []string{""}
	} else if err := s.Remote.check(); err != nil {
		return nil, err
	}
	var list []place
	for h, host := range hosts {
		first, next := h*s.N/len(hosts), (h+1)*s.N/len(hosts)
		for r := first; r < next; r++ {
			list = append(list, place{rank: r, local: r - first, locals: next - first, host: host})
		}
	}
	return list, nil
}

// env is the environment of a rank, without the parent's.
func (p place) env(n int, addr string, port int, token string) []string {
	return []string{
		"RANK=" + strconv.Itoa(p.rank),
		"WORLD_SIZE=" + strconv.Itoa(n),
		"LOCAL_RANK=" + strconv.Itoa(p.local),
		"LOCAL_WORLD_SIZE=" + strconv.Itoa(p.locals),
		"MASTER_ADDR=" + addr,
		"MASTER_PORT=" + strconv.Itoa(port),
		"WEFT_TOKEN=" + token,
	}
}

// NewToken is a fresh secret for a run.
func NewToken() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("launch: no random token: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// run is what goes on after the ranks have been started.
type run struct {
	spec  *Spec
	procs []*Process
	exits chan *Process // each process once, as it ends
	ended int
	asked os.Signal // what asked the ranks to end: a forwarded signal
	grace *time.Timer
	cause *Failure
}

// wait sees the ranks to their end: a failure, a signal or ctx starts the grace
// of those that still run.
func (r *run) wait(ctx context.Context) (Result, error) {
	stopped := ctx.Done()
	signals := r.spec.Signals
	for r.ended < len(r.procs) {
		select {
		case p := <-r.exits:
			r.ended++
			e := p.Exit()
			if !e.OK() && r.cause == nil {
				r.cause = &Failure{Exit: r.culprit(e), Ranks: r.spec.N, Asked: r.asked}
				if !r.spec.KeepGoing {
					r.stop(syscall.SIGTERM)
				}
			}
			if !e.OK() && r.spec.KeepGoing && r.spec.Failed != nil {
				r.spec.Failed(e, len(r.procs)-r.ended)
			}
		case s := <-signals:
			sig, ok := s.(syscall.Signal)
			if !ok {
				continue
			}
			if ends := sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP; ends && r.asked != nil {
				r.signal(syscall.SIGKILL)
			} else if r.signal(sig); ends {
				r.asked = sig
				r.startGrace()
			}
		case <-stopped:
			stopped = nil
			r.stop(syscall.SIGTERM)
		case <-r.graceOver():
			r.signal(syscall.SIGKILL)
		}
	}
	r.drain()
	res := r.result()
	switch {
	case ctx.Err() != nil:
		return res, fmt.Errorf("launch: run of %d ranks ended: %w", r.spec.N, context.Cause(ctx))
	case r.cause != nil && !(r.spec.KeepGoing && r.asked == nil &&
		slices.ContainsFunc(res.Exits, func(e Exit) bool { return e.Pid != 0 && e.OK() })):
		return res, r.cause
	}
	return res, nil
}

// culprit decides who failed first among those who are dead when the first
// death is noticed. A rank that a signal ended did not do so because of another,
// so it comes before ranks that gave up; among equals the one noticed first.
func (r *run) culprit(first Exit) Exit {
	if first.Signal != 0 {
		return first
	}
	for _, p := range r.procs {
		if e, ended := p.peek(); ended && e.Signal != 0 {
			e.Stderr = p.Exit().Stderr
			return e
		}
	}
	return first
}

// stop asks what still runs to end and starts its grace; a nil signal leaves none.
func (r *run) stop(sig os.Signal) {
	if sig == nil || r.spec.Grace < 0 {
		r.signal(syscall.SIGKILL)
		return
	}
	r.signal(sig.(syscall.Signal))
	r.startGrace()
}

func (r *run) startGrace() {
	if r.grace == nil {
		d := r.spec.Grace
		if d == 0 {
			d = Grace
		}
		r.grace = time.NewTimer(d)
	}
}

func (r *run) graceOver() <-chan time.Time {
	if r.grace == nil {
		return nil
	}
	return r.grace.C
}

func (r *run) signal(sig syscall.Signal) {
	for _, p := range r.procs {
		p.Signal(sig)
	}
}

// drain waits until every process is reaped and its output written.
func (r *run) drain() {
	if r.grace != nil {
		r.grace.Stop()
	}
	for _, p := range r.procs {
		p.Wait()
	}
}

func (r *run) result() Result {
	res := Result{Exits: make([]Exit, r.spec.N), Cause: r.cause}
	for i := range res.Exits {
		res.Exits[i].Rank = i
	}
	for _, p := range r.procs {
		res.Exits[p.Rank] = p.Exit()
	}
	if res.Cause != nil {
		res.Cause.Exit.Stderr = res.Exits[res.Cause.Exit.Rank].Stderr
	}
	return res
}
