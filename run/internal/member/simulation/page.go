package simulation

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Case is a world worth a line of the page.
type Case struct {
	Name     string
	Settings Settings
}

// steady kills some neighbouring ranks at a time, again and again at random instants, and
// lets them join anew once they have been noticed.
func steady(n int, cfg member.Config, length, gap time.Duration, hosts int) Settings {
	s := Settings{Ranks: n, Seed: 1, Member: cfg, Network: Datacenter(), Length: length, Outside: true, CatchUp: 500 * time.Millisecond}
	w := World{rng: uint64(n)}
	for at := time.Second; at < length-5*time.Second; at += gap {
		f := Fault{At: at + time.Duration(w.random()*float64(gap)/2), What: Kill}
		first := int(w.bits()%uint64(n/hosts)) * hosts
		for r := first; r < first+hosts; r++ {
			f.Ranks = append(f.Ranks, r)
		}
		s.Faults = append(s.Faults, f, Fault{At: f.At + 3*time.Second, What: Join, Ranks: f.Ranks})
	}
	return s
}

// alter changes a world.
func alter(s Settings, f func(*Settings)) Settings {
	f(&s)
	return s
}

// Cases are the worlds of the page.
func Cases() []Case {
	var list []Case
	for _, n := range []int{8, 64, 512} {
		list = append(list, Case{fmt.Sprintf("%d hosts, one dies every 4 s", n), steady(n, member.Hosts(), 60*time.Second, 4*time.Second, 1)})
	}
	big := func() Settings { return steady(10_000, member.Hosts(), 20*time.Second, 2*time.Second, 8) }
	pauses := func(s *Settings) {
		w := World{rng: 7}
		for at := time.Second; at < s.Length-3*time.Second; at += 100 * time.Millisecond {
			s.Faults = append(s.Faults, Fault{At: at, What: Pause, For: time.Duration(100+w.bits()%200) * time.Millisecond,
				Ranks: []int{int(w.bits() % uint64(s.Ranks))}})
		}
	}
	list = append(list,
		Case{"512 hosts, the same, 10% loss", alter(steady(512, member.Hosts(), 60*time.Second, 4*time.Second, 1),
			func(s *Settings) { s.Network.Loss = 0.1 })},
		Case{"512 hosts, the same, one stops for 0.1 to 0.3 s ten times a second",
			alter(steady(512, member.Hosts(), 30*time.Second, 4*time.Second, 1), pauses)},
		Case{"512 hosts, Lab", steady(512, member.Lab(), 20*time.Second, 4*time.Second, 1)},
		Case{"10,000 hosts, 8 die every 2 s", big()},
		Case{"10,000 hosts, the same, 1% loss", alter(big(), func(s *Settings) { s.Network.Loss = 0.01 })},
		Case{"10,000 hosts, the same, 5% loss", alter(big(), func(s *Settings) { s.Network.Loss = 0.05 })},
		Case{"10,000 hosts, the same, 10% loss", alter(big(), func(s *Settings) { s.Network.Loss = 0.1 })},
		Case{"10,000 hosts, the same, 20 ms one way", alter(big(), func(s *Settings) { s.Network.Latency = 20 * time.Millisecond })},
		Case{"10,000 hosts, the same, one stops for 0.1 to 0.3 s ten times a second", alter(big(), pauses)},
		Case{"10,000 hosts, a leaf with 64 dies", alter(big(), func(s *Settings) {
			f := Fault{At: 2 * time.Second, What: Kill}
			for r := 1024; r < 1088; r++ {
				f.Ranks = append(f.Ranks, r)
			}
			s.Faults, s.Length = []Fault{f}, 8*time.Second
		})},
		Case{"10,000 hosts, 1,000 are cut off for 5 s", alter(big(), func(s *Settings) {
			f := Fault{At: 2 * time.Second, What: Cut, For: 5 * time.Second}
			for r := range 1000 {
				f.Ranks = append(f.Ranks, 3000+r)
			}
			s.Faults, s.Length = []Fault{f}, 12*time.Second
		})},
	)
	return list
}

// Row is a case's line.
func Row(c Case) (string, error) {
	r, err := Run(c.Settings)
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.Name, err)
	}
	ms := func(d time.Duration) string {
		if d == 0 {
			return "-"
		}
		return fmt.Sprint(d.Milliseconds())
	}
	three := func(list []time.Duration) string {
		return ms(Quantile(list, 0.5)) + " / " + ms(Quantile(list, 0.99)) + " / " + ms(Quantile(list, 1))
	}
	return fmt.Sprintf("| %s | %d | %s | %s | %.0f / %.0f | %d | %d | %.1f | %.0f | %.0f | %.0f |\n",
		c.Name, r.Deaths, three(r.Detected), three(r.Known),
		r.PerHour(r.Suspected), r.PerHour(r.Failed), r.Excused, r.Epochs, r.Sent, r.SentBytes, r.BusiestMessages, r.BusiestBytes), nil
}

// Page is docs/reference/tables/membership.md with the rows given.
func Page(rows []string) string {
	d, l := member.Default(), member.Hosts()
	lab := member.Lab()
	var b strings.Builder
	b.WriteString(`# Membership measured

Made by:

    go test ./run/internal/member/simulation -run Page -update

Without -update the test compares the rows below 10,000 hosts. [Explanation](../../explanation/membership.md).

## Settings

`)
	fmt.Fprintf(&b, "| | Default | Hosts | Lab |\n|---|---|---|---|\n")
	fmt.Fprintf(&b, "| interval, timeout, observers | %v, %v, %d | %v, %v, %d | %v, %v, %d |\n",
		d.Interval, d.Timeout, d.Observers, l.Interval, l.Timeout, l.Observers, lab.Interval, lab.Timeout, lab.Observers)
	rate := func(c member.Config) float64 { return float64(c.Observers) / c.Interval.Seconds() }
	fmt.Fprintf(&b, "| messages a host sends per second, K/Interval | %.0f | %.0f | %.0f |\n", rate(d), rate(l), rate(lab))
	fmt.Fprintf(&b, "| silent to failed, at least 2 Timeout - Interval | %v | %v | %v |\n",
		2*d.Timeout-d.Interval, 2*l.Timeout-l.Interval, 2*lab.Timeout-lab.Interval)
	fmt.Fprintf(&b, "| and at most 2 Timeout + Interval/2 | %v | %v | %v |\n\n", d.Bound(), l.Bound(), lab.Bound())
	b.WriteString(`## Simulated

Milliseconds from a loss that nobody sees to the first host that calls it failed, and to the last living host that knows:
p50 / p99 / most. False alarms per hour in the whole job: suspected / failed, of hosts that live, run and are reached.
Excused are those that are called failed while stopped or cut off for more than two timeouts, from either side of a cut. Messages and bytes per
second: of a host on average, sent, and of the busiest, sent and received; with the headers of UDP and IPv4 and without the
26 bytes of sequence and MAC. The network: 50 us and an exponential 50 us more one way, one message in 1,000 20 ms late, one in 10,000 lost where nothing else
is said, clocks up to 50 ppm off, the store 2 ms away. Here epochs are passed on between hosts, too, which launchers leave to
the coordinator.

| world | deaths | failed, ms | known to all, ms | false / h | excused | epochs | msg/s | B/s | busiest msg/s | busiest B/s |
|---|---|---|---|---|---|---|---|---|---|---|
`)
	for _, r := range rows {
		b.WriteString(r)
	}
	b.WriteString(measured)
	b.WriteString(`
## Compared with others

memberlist (SWIM with Lifeguard) probes a random member each interval. A dead one is first probed after a time whose 99th
percentile is 4.6 intervals, and then suspected for ` + "`SuspicionMult * max(1, log10 n) * ProbeInterval`" + `, up to six times that
without confirmations. With its LAN defaults (1 s, 4):

| n | suspicion, least / most | first probe p99 |
|---|---|---|
`)
	for _, n := range []int{32, 1000, 10_000} {
		least := suspicion(4, n, time.Second)
		fmt.Fprintf(&b, "| %d | %v / %v | 4.6s |\n", n, least.Round(100*time.Millisecond), (6 * least).Round(100*time.Millisecond))
	}
	b.WriteString(`
Measured in real time with 32 nodes and sockets on one machine (16 cores, 2026-11-15), ` + "`go test ./run/internal/member -run '^$' -bench Peer -benchtime 1x`" + `:

| | first notices, ms | last notices, ms | messages per second and node |
|---|---|---|---|
| memberlist v0.6.0, LAN defaults | 7,992 | 8,218 | 2 |
| memberlist v0.6.0, probing every 100 ms | 800 | 984 | 20 |
| member, Default | 1,358 | 1,358 | 20 |
| member, Lab | 146 | 147 | 200 |

For the same number of messages memberlist is faster with 32 nodes, and then also calls a process failed that is stopped
for 0.8 s, where Default allows 1.3 s. Its time grows with log n (1.6 s of suspicion at the least with 10,000) and has no
bound. NCCL's RAS calls a peer dead after 60 s, torchft after 5 s.
`)
	return b.String()
}

// suspicion is memberlist's formula.
func suspicion(mult, n int, interval time.Duration) time.Duration {
	scale := max(1, math.Log10(float64(n)))
	return time.Duration(float64(mult) * scale * float64(interval))
}

// measured is what the lab of run/elastic/internal/observe printed; see its lab_test.go.
const measured = `
## Measured

Hosts are network namespaces on one bridge, one launcher each, on a machine with two cores (2026-11-16; ` + "`run/elastic/internal/observe/lab_test.go`" + ` has
the commands). Ten losses per row. Killed: the launcher's process or socket is gone. Cut off: its link is down. Loss: nftables
drops that share of packets at every host, of datagrams and of etcd's connections alike. By mistake: living hosts that
anybody calls lost.

| launchers | fault | first knows, p50 / p99 | all know, p50 / p99 | by mistake |
|---|---|---|---|---|
| 200 that observe | killed | 567 / 596 ms | 578 / 605 ms | 0 |
| 200 that observe | cut off | 546 / 589 ms | 554 / 597 ms | 0 |
| 200 that observe | killed, 1% loss | 585 / 597 ms | 593 / 605 ms | 0 |
| 200 that observe | killed, 5% loss | 540 / 585 ms | 547 / 594 ms | 0 |
| 200 that observe | killed, 10% loss | 578 / 596 ms | 586 / 602 ms | 0 |
| 60 that observe | killed | 564 / 608 ms | 603 / 653 ms | 1 |
| 60 that observe | cut off | 557 / 594 ms | 575 / 623 ms | 0 |
| 60 that observe | killed, 1% loss | 576 / 714 ms | 584 / 735 ms | 0 |
| 60 that observe | killed, 5% loss | 585 / 594 ms | 592 / 605 ms | 0 |
| 60 that observe | killed, 10% loss | 586 / 594 ms | 590 / 597 ms | 0 |
| 59 with leases of 1 s | killed | 1,186 / 1,239 ms | 1,198 / 1,251 ms | 0 |
| 59 with leases of 1 s | cut off | 1,186 / 1,189 ms | 1,196 / 1,213 ms | 0 |
| 59 with leases of 1 s | killed, 1% loss | 1,189 / 1,192 ms | 1,200 / 1,348 ms | 0 |
| 59 with leases of 1 s | killed, 5% loss | 1,161 / 1,278 ms | 1,268 / 1,602 ms | 1 |
| 59 with leases of 1 s | killed, 10% loss | 1,115 / 1,192 ms | 1,212 / 1,333 ms | 1 |

The 200 are in one process, each with a socket in its own namespace, in the scheduler's real-time class (` + "`chrt -r 1`" + `),
because the machine was busy. The 60 and the 59 are processes of their own without it.

Without faults a launcher sends 40 datagrams and 1,360 bytes per second (without headers) and takes 0.16% of a processor where
all are in one process, 0.8% as a process of its own. A launcher with a lease takes 0.15%, and its etcd 1.4 ms of a processor
per second and worker: 14 processors for 10,000 of them, by extrapolation. Leases of 10 s take a tenth of that.
A loss costs etcd one read and one write from each of the four observers.

Starved launchers notice late rather than wrongly: the same 200 without the real-time class, on cores that others kept busy,
all knew after 0.7 to 6.2 s (median; 10.7 s at most), and in three runs one living host was called lost. 200 launchers as
processes of their own were not measured: the kernel's table of neighbours, which all namespaces share, was too small.

Delay on the network is simulated only: the machine's kernel has no netem.
`
