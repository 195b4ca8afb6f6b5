package member

import (
	"fmt"
	"time"
)

// MaxObservers bounds Config.Observers.
const MaxObservers = 8

// Config is the same on all ranks of a job.
type Config struct {
	// Interval is the time between two beats of a member to each of its observers.
	// Cost: Observers/Interval messages a second sent and as many received.
	Interval time.Duration

	// Timeout is the silence after which a member is suspect; after two it is
	// failed. Silence counts from the last sign of life, so that a member that
	// dies at once after a beat is failed 2*Timeout later and one that dies just
	// before the next beat 2*Timeout-Interval later. A pause of a process (a
	// debugger, a garbage collection, a stopped virtual machine) longer than
	// 2*Timeout is a failure by this definition.
	Timeout time.Duration

	// Observers is how many members watch each one, at most MaxObservers. With
	// loss p on the network the chance that all of them miss all beats of two
	// timeouts is p^(Observers*2*Timeout/Interval), before any ping.
	Observers int

	// Settle is how long the leader waits for other suspects to be cleared or to
	// fail, once one has failed, so that a host's ranks go in one epoch. The ranks
	// of a host beat at different times, hence at least Interval. Without suspects
	// it does not wait.
	Settle time.Duration

	// Batch is the most rumours in one message, of up to 11 bytes each, and
	// Flush the least time between two messages of rumours to one member: a
	// failure of 1,000 ranks at once costs each rank Observers/Flush messages a
	// second and no more.
	Batch int
	Flush time.Duration

	// Stretch is how far an observer that has reason to doubt itself stretches
	// its own timeouts, in quarters: it woke late, it was suspected wrongly, or
	// others still hear what it does not. 4 is twice the timeout. Observers that
	// are well are not held up by it.
	Stretch int

	// Min and Max bound the number of members. Below Min the job is asked to
	// leave cleanly with a checkpoint; beyond Max joining is refused.
	Min, Max int

	// Return is how long the leader waits for processes to come back if fewer than
	// Min active members would be left, but some are, before it asks the job to leave.
	// Processes that join count. 0 does not wait.
	Return time.Duration

	// MaxFailures within Window are borne; one more, and the job is asked to leave.
	MaxFailures int
	Window      time.Duration

	// Gather is how long the leader waits for another joiner before it forms the
	// first epoch of at least Min members, or admits late ones. Max members are
	// not waited for.
	Gather time.Duration

	// Orphan is how long a rank that is cut off, or that sees half of the members
	// or more failed without a new epoch, goes on before it is asked to leave.
	// The store may be away for any time while the members see one another.
	Orphan time.Duration

	// Retry is the time after which an unanswered proposal, join or fetch is sent again.
	Retry time.Duration
}

// Default is for jobs on real hosts of any number.
//
//	silent host failed in    1.3 to 1.6 s
//	a rank sends             20 messages and about 760 bytes a second with UDP and IPv4 headers
func Default() Config {
	return Config{
		Interval: 200 * time.Millisecond, Timeout: 750 * time.Millisecond, Observers: 4,
		Settle: 200 * time.Millisecond, Batch: 100, Flush: 10 * time.Millisecond, Stretch: 4,
		Min: 1, Max: 1 << 20, MaxFailures: 1 << 20, Window: 10 * time.Second,
		Gather: 500 * time.Millisecond, Orphan: 10 * time.Second, Retry: 500 * time.Millisecond,
	}
}

// Lab is for ranks of one machine or one rack that nothing pauses: ten times as
// fast as Default, ten times the messages.
//
//	silent rank failed in    0.13 to 0.16 s
//	a rank sends             200 messages and about 7.6 kB a second
func Lab() Config {
	c := Default()
	c.Interval, c.Timeout = 20*time.Millisecond, 75*time.Millisecond
	c.Settle, c.Flush = 20*time.Millisecond, time.Millisecond
	c.Gather, c.Orphan, c.Retry = 100*time.Millisecond, 2*time.Second, 100*time.Millisecond
	return c
}

// Hosts is for the launchers of hosts, one a host, which do little else: a lost host
// is known to all within 0.7 s, whatever the number of hosts. A host on which
// nothing runs for half a second is lost by this definition.
//
//	silent host failed in    0.5 to 0.65 s
//	a host sends             40 messages a second
func Hosts() Config {
	c := Default()
	c.Interval, c.Timeout = 100*time.Millisecond, 300*time.Millisecond
	c.Settle, c.Retry = 100*time.Millisecond, 250*time.Millisecond
	return c
}

// Check says what is wrong with a configuration.
func (c *Config) Check() error {
	switch {
	case c.Interval <= 0:
		return fmt.Errorf("member: interval %v; it must be above 0", c.Interval)
	case c.Timeout < 2*c.Interval:
		return fmt.Errorf("member: timeout %v is less than two intervals of %v; one lost beat would make a suspect", c.Timeout, c.Interval)
	case c.Observers < 1 || c.Observers > MaxObservers:
		return fmt.Errorf("member: %d observers; from 1 to %d are possible", c.Observers, MaxObservers)
	case c.Min < 1 || c.Max < c.Min:
		return fmt.Errorf("member: from %d to %d members; at least 1, and the most not below the least", c.Min, c.Max)
	case c.Batch < 1 || c.Batch > maxList:
		return fmt.Errorf("member: %d rumours in a message; from 1 to %d are possible", c.Batch, maxList)
	case c.Stretch < 0 || c.MaxFailures < 0:
		return fmt.Errorf("member: stretch %d, failures %d; neither may be below 0", c.Stretch, c.MaxFailures)
	case c.Flush <= 0 || c.Retry <= 0 || c.Orphan <= 0 || c.Settle < 0 || c.Gather < 0 || c.Window <= 0:
		return fmt.Errorf("member: flush %v, retry %v, orphan %v and window %v must be above 0, settle %v and gather %v not below",
			c.Flush, c.Retry, c.Orphan, c.Window, c.Settle, c.Gather)
	}
	return nil
}

// Bound is the longest time from a member's last sign of life to the first
// observer's verdict, if an observer is alive and well: two timeouts and the
// half interval in which it may have to wait for another's word.
func (c *Config) Bound() time.Duration { return 2*c.Timeout + c.Interval/2 }
