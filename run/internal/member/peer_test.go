package member_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/weft-fabric/weft/run/internal/member"
)

// The benchmarks of this file run both systems in real time, with real sockets on
// the loopback interface and as many nodes, let one go silent, and report how
// long the first and the last of the others take to notice, and what it costs.
//
//	go test ./run/internal/member -run '^$' -bench Peer -benchtime 1x
const peers = 32

// quiet is memberlist's own transport, counted, and deaf and mute once it is dead.
type quiet struct {
	*memberlist.NetTransport
	sent *atomic.Int64
	dead *atomic.Int64 // port of the dead node, 0 while all live
}

func (q *quiet) silenced(to string) bool {
	d := q.dead.Load()
	return d != 0 && (to == fmt.Sprintf("127.0.0.1:%d", d) || int64(q.GetAutoBindPort()) == d)
}

func (q *quiet) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	q.sent.Add(1)
	if q.silenced(a.Addr) {
		return time.Now(), nil
	}
	return q.NetTransport.WriteToAddress(b, a)
}

func (q *quiet) WriteTo(b []byte, addr string) (time.Time, error) {
	return q.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (q *quiet) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if q.silenced(a.Addr) {
		time.Sleep(timeout) // what a dead peer does
		return nil, fmt.Errorf("no answer from %s", a.Addr)
	}
	return q.NetTransport.DialAddressTimeout(a, timeout)
}

func (q *quiet) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return q.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// noticed is told of nodes that leave.
type noticed struct {
	mu    sync.Mutex
	times []time.Time
	done  chan struct{}
}

func (n *noticed) add() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.times = append(n.times, time.Now())
	if len(n.times) == peers-1 {
		close(n.done)
	}
}

func (n *noticed) NotifyJoin(*memberlist.Node)   {}
func (n *noticed) NotifyUpdate(*memberlist.Node) {}
func (n *noticed) NotifyLeave(*memberlist.Node)  { n.add() }

func (n *noticed) report(b *testing.B, death time.Time, sent int64, over time.Duration) {
	b.ReportMetric(float64(n.times[0].Sub(death).Milliseconds()), "ms-first")
	b.ReportMetric(float64(n.times[peers-2].Sub(death).Milliseconds()), "ms-all")
	b.ReportMetric(float64(sent)/over.Seconds()/peers, "msg/s/node")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkPeerMemberlist(b *testing.B) {
	for _, c := range []struct {
		name   string
		config func() *memberlist.Config
	}{{"lan", memberlist.DefaultLANConfig}, {"lan-every-100ms", func() *memberlist.Config {
		cfg := memberlist.DefaultLANConfig() // as many messages as member.Default sends
		cfg.ProbeInterval, cfg.ProbeTimeout = 100*time.Millisecond, 50*time.Millisecond
		return cfg
	}}} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				var sent, dead atomic.Int64
				seen := &noticed{done: make(chan struct{})}
				var lists []*memberlist.Memberlist
				for i := range peers {
					cfg := c.config()
					cfg.Name, cfg.BindAddr, cfg.BindPort, cfg.AdvertiseAddr = fmt.Sprint("n", i), "127.0.0.1", 0, "127.0.0.1"
					cfg.LogOutput, cfg.Events = io.Discard, seen
					t, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{"127.0.0.1"},
						Logger: log.New(io.Discard, "", 0)})
					if err != nil {
						b.Fatal(err)
					}
					cfg.BindPort = t.GetAutoBindPort()
					cfg.AdvertisePort = cfg.BindPort
					cfg.Transport = &quiet{t, &sent, &dead}
					m, err := memberlist.Create(cfg)
					if err != nil {
						b.Fatal(err)
					}
					if i > 0 {
						if _, err := m.Join([]string{lists[0].LocalNode().Address()}); err != nil {
							b.Fatal(err)
						}
					}
					lists = append(lists, m)
				}
				time.Sleep(2 * time.Second) // a steady state, to count messages in
				sent.Store(0)
				time.Sleep(2 * time.Second) // messages are counted for this long
				steady := sent.Load()
				death := time.Now()
				dead.Store(int64(lists[17].LocalNode().Port))
				<-seen.done
				seen.report(b, death, steady, 2*time.Second)
				for _, m := range lists {
					m.Shutdown()
				}
			}
		})
	}
}

// BenchmarkPeerMember drives machines as a shell would: a goroutine a node that
// waits for its socket or its timer.
func BenchmarkPeerMember(b *testing.B) {
	for _, c := range []struct {
		name   string
		config member.Config
	}{{"default", member.Default()}, {"lab", member.Lab()}} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				realTime(b, c.config)
			}
		})
	}
}

func realTime(b *testing.B, cfg member.Config) {
	first := &member.Epoch{Number: 1, Observers: cfg.Observers}
	var conns [peers]*net.UDPConn
	var addrs [peers]netip.AddrPort
	for i := range peers {
		first.Members = append(first.Members, member.Member{ID: member.ID(i), Life: 1})
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
		if err != nil {
			b.Fatal(err)
		}
		conns[i], addrs[i] = c, c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	var mu sync.Mutex // of the store
	store := first
	var sent, dead atomic.Int64
	dead.Store(-1)
	seen := &noticed{done: make(chan struct{})}
	stop := make(chan struct{})
	var wait sync.WaitGroup
	origin := time.Now()
	node := func(i int) {
		defer wait.Done()
		m, err := member.New(cfg, member.ID(i), 1, 1, time.Since(origin), nil)
		if err != nil {
			b.Error(err)
			return
		}
		m.Decided(time.Since(origin), first)
		if i == 0 {
			m.Lead(time.Since(origin), first)
		}
		told := false
		buf, out := make([]byte, 65536), []byte(nil)
		for {
			select {
			case <-stop:
				return
			default:
			}
			r := m.Ready()
			for _, o := range r.Messages {
				if sent.Add(1); dead.Load() != int64(i) && dead.Load() != int64(o.To) {
					out = o.Message.Append(out[:0])
					conns[i].WriteToUDPAddrPort(out, addrs[o.To])
				}
			}
			for _, e := range r.Events {
				if e.Kind == member.Died && int64(e.ID) == dead.Load() && !told && dead.Load() != int64(i) {
					told = true
					seen.add()
				}
			}
			p := r.Proposal
			read := r.Read
			m.Advance()
			if p != nil || read {
				mu.Lock()
				if p != nil && store.Number == p.Prev {
					store = p.Next
				}
				now := store
				mu.Unlock()
				m.Decided(time.Since(origin), now)
				continue
			}
			conns[i].SetReadDeadline(origin.Add(m.Next()))
			if n, err := conns[i].Read(buf); err == nil {
				if msg, err := member.Decode(buf[:n]); err == nil {
					m.Message(time.Since(origin), &msg)
				}
			} else {
				m.Tick(time.Since(origin))
			}
		}
	}
	for i := range peers {
		wait.Add(1)
		go node(i)
	}
	time.Sleep(time.Second) // a steady state, to count messages in
	sent.Store(0)
	time.Sleep(2 * time.Second) // messages are counted for this long
	steady := sent.Load()
	death := time.Now()
	dead.Store(17)
	<-seen.done
	seen.report(b, death, steady, 2*time.Second)
	close(stop)
	wait.Wait()
	for _, c := range conns {
		c.Close()
	}
}
