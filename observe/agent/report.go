package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/observe/internal/health"
	"github.com/weft-fabric/weft/observe/watch"
)

// Send gives a report to a server.
type Send func(ctx context.Context, r *watch.Report) (watch.Answer, error)

// HTTP sends reports to a server of weft watch. The client brings the certificates.
func HTTP(client *http.Client, url string) Send {
	return func(ctx context.Context, r *watch.Report) (a watch.Answer, err error) {
		b, err := json.Marshal(r)
		if err != nil {
			return a, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/report", bytes.NewReader(b))
		if err != nil {
			return a, err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			if strings.Contains(err.Error(), "certificate") || strings.Contains(err.Error(), "unknown authority") ||
				strings.Contains(err.Error(), "server gave HTTP response to HTTPS") {
				err = fmt.Errorf("%w; set WEFT_TOKEN to the server's secret", err)
			}
			return a, err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
		if err != nil {
			return a, err
		}
		if err := json.Unmarshal(text, &a); err != nil {
			return a, fmt.Errorf("%s is not a weft watch server: it answered %.80q", url, text)
		}
		if a.Error != "" {
			return a, errors.New(a.Error)
		}
		return a, nil
	}
}

// Ranks gives a report of the ranks of this host, which comes so much late.
func (a *Agent) Ranks(now time.Time, late time.Duration) *watch.Report {
	boot := a.Last().Boot // before beat is locked: Sample locks it last
	a.beat.Lock()
	defer a.beat.Unlock()
	r := &watch.Report{Host: a.c.Host, Boot: boot, At: float64(now.UnixNano()) / 1e9, Every: a.c.Pulse.Seconds(), HasRanks: true,
		Load: a.load(late)}
	if r.Load.Starved() {
		a.pulse.hungry = now
	}
	r.Ranks, r.Dumps, r.Launches = a.pulse.ranks(&a.c)
	return r
}

// taken forgets what a server has: the first n lines of launchers.
func (a *Agent) taken(n int) {
	a.beat.Lock()
	defer a.beat.Unlock()
	a.pulse.launches = a.pulse.launches[min(n, len(a.pulse.launches)):]
}

// Counters gives a report of what was sampled last. With names, the names of the series
// are in it.
func (a *Agent) Counters(now time.Time, names bool) *watch.Report {
	s := a.Last()
	c := &watch.Counters{Facts: facts(&s)}
	h := sha256.New()
	var list []string
	a.page(now).Series(func(n, series string, v float64) {
		if math.IsNaN(v) || math.IsInf(v, 0) || strings.HasSuffix(n, "_info") || n == "weft_health_state" {
			return
		}
		name := own.ReplaceAllString(series, "")
		list = append(list, name)
		c.Values = append(c.Values, v)
		io.WriteString(h, name+"\n")
	})
	c.Schema = hex.EncodeToString(h.Sum(nil)[:8])
	if names {
		c.Names = list
	}
	c.Checks = len(s.States)
	for _, x := range s.States {
		if x.State > health.Good {
			c.States = append(c.States, x)
		}
	}
	for _, p := range s.Ports {
		c.Ports = append(c.Ports, watch.Port{Device: p.Device, Port: p.Port, Active: p.StateID == 4, Gbps: p.Rate,
			Tx: 4 * float64(p.Counters["port_xmit_data"]), Rx: 4 * float64(p.Counters["port_rcv_data"]),
			Wait: float64(p.Counters["port_xmit_wait"])})
	}
	return &watch.Report{Host: a.c.Host, Boot: s.Boot, At: float64(now.UnixNano()) / 1e9, Every: min(a.c.Pulse, a.c.Interval).Seconds(),
		Counters: c}
}

// own are labels that differ from host to host: without them hosts of one make have the
// same names.
var own = regexp.MustCompile(`,?(?:UUID|hostname|modelName)="[^"]*"`)

// facts are what should not change unnoticed.
func facts(s *Snapshot) map[string]string {
	f := map[string]string{"weft agent": runtime.Version() + " " + runtime.GOARCH}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		f["kernel"] = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/driver/nvidia/version"); err == nil {
		line, _, _ := strings.Cut(string(b), "\n")
		f["nvidia driver"] = strings.Join(strings.Fields(line), " ")
	}
	f["gpus"] = strconv.Itoa(len(s.GPUs))
	for _, p := range s.Ports {
		f["rate of "+p.Device+"/"+p.Port] = fmt.Sprintf("%g Gb/s", p.Rate)
		f["state of "+p.Device+"/"+p.Port] = strconv.Itoa(p.StateID)
	}
	for _, p := range s.PCI {
		if p.WidthMax > 0 && p.WidthMax < 64 {
			f["pcie width of "+p.Addr] = fmt.Sprintf("x%g of x%g", p.Width, p.WidthMax)
		}
	}
	for _, g := range s.GPUs {
		f["gpu "+strconv.Itoa(g.Index)] = g.Name + " " + g.UUID
	}
	for k, v := range s.Firmware {
		f["firmware of "+k] = v
	}
	return f
}

// load is how busy the host is: how late the agent came itself, and the kernel's pressure stall information.
func (a *Agent) load(late time.Duration) *watch.Load {
	l := &watch.Load{Lag: max(0, late.Seconds())}
	for name, to := range map[string]*float64{"cpu": &l.CPU, "memory": &l.Memory, "io": &l.IO} {
		b, _ := os.ReadFile(a.path("proc/pressure/" + name))
		if _, rest, ok := strings.Cut(string(b), "some avg10="); ok { // kernels without it say nothing
			*to = number(rest) / 100
		}
	}
	return l
}

// send sends a report. A server that does not know the names of the counters refuses them; they are said again at once, with
// names, which is noted for reports after this one.
func (a *Agent) send(ctx context.Context, now time.Time, r *watch.Report, names *bool) (answer watch.Answer, err error) {
	limit, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err = a.c.Send(limit, r)
	if err == nil && answer.Names {
		*names = true
		r.Counters = a.Counters(now, true).Counters
		answer, err = a.c.Send(limit, r)
	}
	return answer, err
}

// notReached logs an error, unless it is that the agent itself is ending.
func (a *Agent) notReached(ctx context.Context, err error) {
	if ctx.Err() == nil {
		a.c.Log.Warn("the server of weft watch is not reached; tried again", "error", err)
	}
}

// slower is the time between reports that a busy server asks for, at most a minute, if it is longer than the agent's own.
func slower(pulse, asked time.Duration) time.Duration {
	if asked > pulse {
		return min(asked, time.Minute)
	}
	return pulse
}

// tell sends reports until the context ends: ranks every pulse, counters when they were
// sampled. What cannot be sent is not kept: the next report has the newer figures, and
// operations of ranks that were not told of are missing in what the server knows.
func (a *Agent) tell(ctx context.Context) {
	names, lost, sampled := true, 0, 0.0
	due := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := time.Now()
		r := a.Ranks(now, now.Sub(due))
		if at := a.Last().At; at != sampled && at != 0 {
			c := a.Counters(now, names)
			r.Counters, sampled = c.Counters, at
		}
		answer, err := a.send(ctx, now, r, &names)
		switch {
		case err != nil:
			if lost++; lost == 1 {
				a.notReached(ctx, err)
			}
		case lost > 0:
			a.taken(len(r.Launches))
			a.c.Log.Info("the server of weft watch is reached again", "reports lost", lost)
			lost, names = 0, true // it may be another one
		default:
			a.taken(len(r.Launches))
			names = answer.Names
		}
		pulse := a.c.Pulse
		if err == nil {
			pulse = slower(pulse, time.Duration(answer.Pulse*float64(time.Second)))
		}
		due = time.Now().Add(pulse)
		timer.Reset(pulse)
	}
}
