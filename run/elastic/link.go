package elastic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Kind says what a Word is about.
type Kind string

// What a process tells its launcher.
const (
	Hello  Kind = "hello"  // it follows epochs; Addr is where it is found as rank 0
	Beat   Kind = "beat"   // it lives
	Knew   Kind = "knew"   // it has been told of an epoch without one of those it works with
	Formed Kind = "formed" // it is at work in an epoch
	Failed Kind = "failed" // what it did in an epoch failed; Blame says who is at fault if it is known
	Stuck  Kind = "stuck"  // nothing has followed from that
	Leave  Kind = "leave"  // it wants to leave
	Ended  Kind = "ended"  // it has done what there was to do; Epoch is that of the job's last step, if it took that
	Broken Kind = "broken" // the job cannot go on, whoever does it; Text says why
	Report Kind = "report" // of the program, in Name and Data
)

// What a launcher tells a process.
const (
	Assign Kind = "assign" // Place is the latest epoch
	Stop   Kind = "stop"   // all ranks are to stop after the same step
)

// Word is a line between a process and its launcher, in JSON.
type Word struct {
	Kind  Kind            `json:"kind"`
	Epoch uint64          `json:"epoch,omitempty"`
	At    time.Time       `json:"at,omitzero"`
	Addr  string          `json:"addr,omitempty"`
	Text  string          `json:"text,omitempty"`
	Blame []Seat          `json:"blame,omitempty"`
	Step  int             `json:"step,omitempty"`
	Pace  time.Duration   `json:"pace_ns,omitempty"`
	Name  string          `json:"name,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`
	Place *Epoch          `json:"place,omitempty"`
}

// What a launcher sets in the environment of a process: the descriptor of the
// connection with it, and the address from which others reach the process.
const (
	EnvAgent = "WEFT_AGENT_FD"
	EnvHost  = "WEFT_HOST_ADDR"
)

// Pulse is the time between two signs of life of a process.
const Pulse = 100 * time.Millisecond

// maxWord is the longest line in bytes. An epoch of 10,000 members has 400 KB.
const maxWord = 4 << 20

// ErrAgent is the error of a process whose launcher is gone.
var ErrAgent = errors.New("the launcher (weft run or weft up) that started this process is gone")

// Link is a process's connection with the launcher that started it.
type Link struct {
	conn     net.Conn
	listener *listener

	out   sync.Mutex // over writing
	mu    sync.Mutex // over what follows
	last  *Epoch     // the latest that was told
	stop  bool
	err   error
	final uint64        // the epoch in which the last step was taken; 0 if this process did not take it
	news  chan struct{} // closed and replaced when any of these changes
	done  chan struct{} // closed by Close
	wg    sync.WaitGroup
}

// Connect takes up the connection with the launcher that started this process, and
// says that it follows epochs.
func Connect() (*Link, error) {
	text := os.Getenv(EnvAgent)
	if text == "" {
		return nil, fmt.Errorf("%s is not set: this program is started by `weft run --follow -- PROGRAM` or `weft up`", EnvAgent)
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q is not a descriptor", EnvAgent, text)
	}
	f := os.NewFile(uintptr(fd), "agent")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("the launcher's descriptor %d: %w", fd, err)
	}
	host := os.Getenv(EnvHost)
	if host == "" {
		host = "127.0.0.1"
	}
	return connect(conn, host)
}

func connect(conn net.Conn, host string) (*Link, error) {
	d, err := listen(net.JoinHostPort(host, "0"))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("where other ranks find this one: %w", err)
	}
	l := &Link{conn: conn, listener: d, news: make(chan struct{}), done: make(chan struct{})}
	l.wg.Add(2)
	go l.read()
	go l.beat()
	l.send(Word{Kind: Hello, Addr: d.ln.Addr().String(), At: time.Now()})
	return l, nil
}

// Close lets go of the launcher. What Run returned is told to it: nil that this
// process has done its work, a *Fatal that nobody can.
func (l *Link) Close(err error) {
	var f *Fatal
	switch {
	case err == nil:
		l.send(Word{Kind: Ended, At: time.Now(), Epoch: l.final})
	case errors.As(err, &f):
		l.send(Word{Kind: Broken, At: time.Now(), Text: err.Error()})
	}
	close(l.done)
	l.conn.Close()
	l.listener.close()
	l.wg.Wait()
}

// Report sends the launcher something of the program's own.
func (l *Link) Report(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("report %s: %w", name, err)
	}
	l.send(Word{Kind: Report, At: time.Now(), Name: name, Data: data})
	return nil
}

// Progress says that a step is done and how long it took.
func (l *Link) Progress(step int, took time.Duration) {
	l.send(Word{Kind: Beat, Step: step, Pace: took})
}

// Final reports whether this process took the job's last step with the others: all of
// them have stopped after the same one.
func (l *Link) Final() bool { return l.final > 0 }

// Err says why there is no launcher any more, nil if there is one.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// send writes a line. A launcher that is gone is found out by reading.
func (l *Link) send(w Word) {
	line, err := json.Marshal(w)
	if err != nil {
		panic(err) // words hold nothing that JSON has not
	}
	l.out.Lock()
	defer l.out.Unlock()
	_, _ = l.conn.Write(append(line, '\n'))
}

func (l *Link) beat() {
	defer l.wg.Done()
	tick := time.NewTicker(Pulse)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.send(Word{Kind: Beat})
		case <-l.done:
			return
		}
	}
}

// read takes the agent's words until the connection ends. A place older than the last one is ignored. If a new place
// lacks members of the last, the agent learns when the rank knew.
func (l *Link) read() {
	defer l.wg.Done()
	err := Lines(l.conn, func(w Word) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch w.Kind {
		case Assign:
			if w.Place == nil || l.last != nil && w.Place.Number < l.last.Number {
				return
			}
			lost := l.last != nil && w.Place.without(l.last)
			if l.last = w.Place; lost {
				defer l.send(Word{Kind: Knew, Epoch: w.Place.Number, At: time.Now()})
			}
		case Stop:
			l.stop = true
		default:
			return
		}
		l.changed()
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err = ErrAgent; err != nil {
		l.err = fmt.Errorf("%w: %w", ErrAgent, err)
	}
	l.changed()
}

// Lines hands every line of a connection to take, until its end.
func Lines(conn net.Conn, take func(Word)) error {
	in := bufio.NewScanner(conn)
	in.Buffer(make([]byte, 64<<10), maxWord)
	for in.Scan() {
		var w Word
		if err := json.Unmarshal(in.Bytes(), &w); err != nil {
			return fmt.Errorf("a line that is none of ours: %w", err)
		}
		take(w)
	}
	return in.Err()
}

// wake has those that wait look again.
func (l *Link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed()
}

// changed wakes those that wait for news; the caller holds mu.
func (l *Link) changed() {
	close(l.news)
	l.news = make(chan struct{})
}

// until waits for cond, which is called with mu held, or for ctx.
func (l *Link) until(ctx context.Context, cond func() bool) bool {
	for {
		l.mu.Lock()
		met, news := cond(), l.news
		l.mu.Unlock()
		if met {
			return true
		}
		select {
		case <-news:
		case <-ctx.Done():
			return false
		}
	}
}

// await gives the first epoch after one in which this process has a rank; nil if
// it is to stop, or has left as ctx asked for. One that has worked in a seat stops only
// when it has lost the seat: until then nobody has finished without it, and the others
// may need what it holds.
func (l *Link) await(ctx context.Context, after uint64, worked Seat) *Epoch {
	var e *Epoch
	l.until(context.Background(), func() bool {
		if l.err != nil || l.stop && worked == (Seat{}) {
			return true
		}
		if l.last == nil || l.last.Number <= after {
			return ctx.Err() != nil && l.last == nil // it was never let in
		}
		if l.stop && !slices.Contains(l.last.Members, worked) {
			return true
		}
		if l.last.Rank < 0 {
			return l.stop || ctx.Err() != nil
		}
		e = l.last
		return true
	})
	return e
}

// during gives a context that ends with the launcher, or when a later epoch than e is
// told of which ends is true.
func (l *Link) during(e *Epoch, ends func(next *Epoch) bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		if !l.until(ctx, func() bool { return l.err != nil || l.last.Number > e.Number && ends(l.last) }) {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err != nil {
			cancel(l.err)
			return
		}
		cancel(fmt.Errorf("epoch %d: %s", l.last.Number, l.last.Reason))
	}()
	return ctx, func() { cancel(nil) }
}

// later waits for a later epoch, for the launcher's end, or for the word to stop
// where this process has not worked yet; false if ctx ended first.
func (l *Link) later(ctx context.Context, number uint64, worked bool) bool {
	return l.until(ctx, func() bool { return l.err != nil || l.stop && !worked || l.last.Number > number })
}

// latest is the number of the latest epoch if it has other members than e, else e's.
func (l *Link) latest(e *Epoch) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if same(l.last, e) {
		return e.Number
	}
	return l.last.Number
}

func (l *Link) stopped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stop
}
