//go:build linux

package observe

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/internal/member"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("WEFT_TEST_OBSERVE"); role != "" {
		labMain(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen; it is no measure of speed.
const patience = 60 * time.Second

// crowd is a number of observers on loopback, all in this process.
type crowd struct {
	t     *testing.T
	hosts []Host
	all   []*Observer

	mu   sync.Mutex
	cond *sync.Cond
	told [][]Event
}

func socket(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newCrowd(t *testing.T, n int, cfg member.Config, ask func(context.Context) error) *crowd {
	t.Helper()
	c := &crowd{t: t, told: make([][]Event, n)}
	c.cond = sync.NewCond(&c.mu)
	for i := range n {
		conn := socket(t)
		id := member.ID(1000 + 7*i)
		o, err := Open(Config{ID: id, Secret: "secret", Conn: conn, Member: cfg, Ask: ask, Tell: func(e Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.told[i] = append(c.told[i], e)
			c.cond.Broadcast()
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { o.Close() })
		c.all = append(c.all, o)
		c.hosts = append(c.hosts, Host{id, conn.LocalAddr().(*net.UDPAddr).AddrPort()})
	}
	return c
}

func (c *crowd) update(number uint64, hosts []Host) {
	for _, o := range c.all {
		o.Update(number, hosts)
	}
}

// await waits until something holds of what was told.
func (c *crowd) await(what string, holds func() bool) {
	c.t.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.cond.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !holds() {
		if late {
			c.t.Fatalf("%s: not within %v; told so far: %v", what, patience, c.told)
		}
		c.cond.Wait()
	}
}

// heardAll waits until every observer has heard those that beat to it.
func (c *crowd) heardAll() {
	c.t.Helper()
	bounded.Until(c.t, patience, "observers that hear one another", func() bool {
		return !slices.ContainsFunc(c.all, func(o *Observer) bool { return o.Counters().Received < 8 })
	})
}

func (c *crowd) died(i int, id member.ID) (told, reported bool) {
	for _, e := range c.told[i] {
		if e.Kind == member.Died && e.ID == id {
			told, reported = true, reported || e.Report
		}
	}
	return told, reported
}

func answers(context.Context) error { return nil }

// One of twelve agents ends: all others hear of it, and only its observers report it.
func TestALostHostIsKnownToAll(t *testing.T) {
	c := newCrowd(t, 12, member.Hosts(), answers)
	c.update(3, c.hosts)
	c.heardAll()
	lost := c.hosts[5].ID
	c.all[5].Close()
	reports := 0
	c.await("all know", func() bool {
		reports = 0
		for i := range c.all {
			told, reported := c.died(i, lost)
			if i != 5 && !told {
				return false
			}
			if reported {
				reports++
			}
		}
		return reports > 0
	})
	e := &member.Epoch{}
	done := make(chan struct{})
	c.all[0].do(func() { e = c.all[0].m.Epoch(); close(done) })
	<-done
	observers := map[member.ID]bool{}
	for _, id := range e.ObserversOf(lost) {
		observers[id] = true
	}
	c.mu.Lock()
	for i, h := range c.hosts {
		if _, reported := c.died(i, lost); reported && !observers[h.ID] {
			t.Errorf("agent %d reports a host that it does not observe", i)
		}
	}
	c.mu.Unlock()
	// The next list is without it; nobody is lost in it.
	rest := append(append([]Host{}, c.hosts[:5]...), c.hosts[6:]...)
	c.update(4, rest)
}

// An agent that hears nobody reports nobody: the others are well, and it may be
// its own fault.
func TestAnAgentThatIsCutOffReportsNobody(t *testing.T) {
	c := newCrowd(t, 6, member.Hosts(), answers)
	c.update(1, c.hosts)
	c.heardAll()
	for _, o := range c.all[1:] {
		o.Close()
	}
	c.await("the others are lost to it", func() bool {
		told, _ := c.died(0, c.hosts[3].ID)
		return told
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.hosts[1:] {
		if _, reported := c.died(0, h.ID); reported {
			t.Errorf("it reports %d", h.ID)
		}
	}
}

// Hosts that were never heard are not reported: datagrams may be blocked on the way.
func TestAHostThatWasNeverHeardIsNotReported(t *testing.T) {
	c := newCrowd(t, 4, member.Hosts(), answers)
	silent := Host{5, netip.MustParseAddrPort("127.0.0.1:9")}
	c.update(1, append(append([]Host{}, c.hosts...), silent))
	c.await("it is lost", func() bool {
		for i := range c.all {
			if told, _ := c.died(i, silent.ID); told {
				return true
			}
		}
		return false
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	withheld := uint64(0)
	for i, o := range c.all {
		if _, reported := c.died(i, silent.ID); reported {
			t.Errorf("agent %d reports it", i)
		}
		withheld += o.Counters().Withheld
	}
	if withheld == 0 {
		t.Error("no agent counts a report that it withheld")
	}
}

// Noise, other jobs, repeated, redirected and outdated datagrams change nothing and
// are counted.
func TestStrangersAreCountedAndHarmless(t *testing.T) {
	c := newCrowd(t, 3, member.Hosts(), answers)
	c.update(1, c.hosts)
	c.heardAll()
	conn := socket(t)
	defer conn.Close()
	to := c.hosts[0]
	send := func(b []byte) {
		t.Helper()
		if _, err := conn.WriteToUDPAddrPort(b, to.Addr); err != nil {
			t.Fatal(err)
		}
	}
	slander := member.Message{Verb: member.Rumour, From: c.hosts[1].ID, Life: uint64(c.hosts[1].ID), EpochNumber: 1,
		Words: []member.Word{{ID: c.hosts[2].ID, State: member.Failed, Incarnation: member.Final}}}
	right, wrong := newSealer("secret"), newSealer("wrong")
	send([]byte("GET / HTTP/1.1\r\n\r\n"))
	send(nil)
	send(make([]byte, 9000))
	send(wrong.seal(nil, to.ID, 1<<40, &slander))         // another secret
	send(right.seal(nil, c.hosts[1].ID, 1<<40, &slander)) // for another receiver
	stale := right.seal(nil, to.ID, 1, &slander)          // a number that came before
	send(stale)
	stranger := slander
	stranger.From, stranger.Life = 77, 77
	send(right.seal(nil, to.ID, 1, &stranger)) // not in the list
	former := slander
	former.Life = 3
	send(right.seal(nil, to.ID, 1<<40, &former)) // another life of a member
	if !bounded.Holds(patience, func() bool {
		n := c.all[0].Counters()
		return n.Forged >= 5 && n.Repeated >= 1 && n.Unlisted >= 2
	}) {
		t.Fatalf("counted %+v; want 5 forged, 1 repeated, 2 unlisted", c.all[0].Counters())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.all {
		if told, _ := c.died(i, c.hosts[2].ID); told {
			t.Errorf("agent %d believes the slander", i)
		}
	}
}

// Two hosts with one id are left out, and the others go on.
func TestHostsWithOneIDAreLeftOut(t *testing.T) {
	c := newCrowd(t, 3, member.Hosts(), answers)
	twin := Host{77, netip.MustParseAddrPort("127.0.0.1:9")}
	c.update(1, append(append([]Host{}, c.hosts...), twin, twin))
	c.heardAll()
	done := make(chan int)
	c.all[0].do(func() { done <- len(c.all[0].m.Epoch().Members) })
	if n := <-done; n != 3 {
		t.Errorf("%d hosts are observed; want 3", n)
	}
}
