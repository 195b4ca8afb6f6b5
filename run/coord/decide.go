package coord

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Policy is what a decider goes by. It is the same for all that may decide a job.
type Policy struct {
	// Min and Max bound the number of members. The first epoch waits for Min.
	// Below it the job is asked to write a checkpoint and leave; a job whose ranks
	// are restarted one by one needs a Min below its usual number. Beyond Max
	// workers wait as spares, and are let in as others go.
	Min, Max int

	// Settle is how long to wait for another joiner once there are Min, or before
	// late ones are let in; 500 ms if 0. Max are not waited for, and neither is
	// anybody when a worker dies.
	Settle time.Duration

	// Return is how long ranks that died are waited for if fewer than Min are left, before the job is
	// asked to leave; 0 for not at all.
	Return time.Duration

	// MaxFailures within Window are borne; one more, and the job is asked to
	// leave. 0 of them is any number; a Window of 0 is 10 s.
	MaxFailures int
	Window      time.Duration

	// Name is who decides, as epochs tell it. A process that takes the lead
	// under the name of the one that holds it succeeds it at once instead of
	// waiting for the lease to end: give the name of a server that was started
	// again on its directory, and never one that two processes have.
	Name string

	// Together says that the program does not follow epochs and that its processes
	// are started together: a new process in an old place begins a new round, too.
	// Without it such a process takes up the rank that it had.
	Together bool
}

// batch is how long the decider listens for more once a worker has come or gone,
// so that the ranks of a host that fails go in one epoch.
const batch = 5 * time.Millisecond

// Check says what is wrong with a policy.
func (p *Policy) Check() error {
	_, err := p.config()
	return err
}

// config is the policy as the membership machine takes it. Zero fields keep the machine's defaults, apart from Min, Max
// and Return, which are taken as they are.
func (p *Policy) config() (member.Config, error) {
	cfg := member.Default()
	cfg.Min, cfg.Max, cfg.Return = p.Min, p.Max, p.Return
	if p.Settle > 0 {
		cfg.Gather = p.Settle
	}
	if p.MaxFailures > 0 {
		cfg.MaxFailures = p.MaxFailures
	}
	if p.Window > 0 {
		cfg.Window = p.Window
	}
	return cfg, cfg.Check()
}

// notice is what a decider tells a worker that it does not let in.
type notice struct {
	Life Life   `json:"life"`
	Why  string `json:"why"`
}

// decider is what a process holds while it leads.
type decider struct {
	c       *Client
	lead    *lead
	policy  Policy
	cfg     member.Config
	m       *member.Machine
	began   time.Time
	start   uint64 // epochs before the job was formed
	stored  *Epoch // the latest
	roster  roster
	workers map[member.ID]Worker
	ends    map[member.ID]string // of workers that are gone: how
	entered map[member.ID]Life   // asked to be let in on their behalf
	denied  map[member.ID]string // and why not
	told    map[member.ID]notice // in the store
	steps   map[member.ID]uint64
}

// Decide stands for the lead, holds it as long as its lease, and
// stands again, until the context ends. Any number of processes of a job may do
// so; one decides at a time, and what it decides is published by compare and set.
func (c *Client) Decide(ctx context.Context, p Policy) error {
	cfg, err := p.config()
	if err != nil {
		return fmt.Errorf("coord: policy: %w", err)
	}
	ctx, cancel := c.bind(ctx)
	defer cancel()
	for {
		o, err := c.campaign(ctx, p.Name)
		if err != nil {
			return err
		}
		d := &decider{c: c, lead: o, policy: p, cfg: cfg, began: time.Now()}
		err = d.hold(o.ctx)
		o.resign()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, ErrConflict) && o.ctx.Err() == nil {
			return err
		}
	}
}

// hold decides until the lead is lost.
func (d *decider) hold(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	news := make(chan []change)
	done := make(chan error, 1)
	go func() {
		done <- d.c.follow(ctx, "worker/", func(n []change) bool {
			select {
			case news <- n:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()
	defer func() {
		cancel()
		<-done
	}()
	d.roster, d.workers, d.ends = roster{}, map[member.ID]Worker{}, map[member.ID]string{}
	d.told = map[member.ID]notice{}
	select {
	case n := <-news: // all that are registered
		d.apply(n)
	case err := <-done:
		done <- err
		return err
	}
	var err error
	if d.stored, err = d.c.Latest(ctx); err != nil {
		return err
	}
	if err := d.begin(d.stored != nil && !d.anyAlive()); err != nil {
		return err
	}
	if err := d.sweepNotices(ctx); err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if d.stored != nil && d.stored.Number > d.start && d.stored.Halt != member.NoReason && !d.anyAlive() {
			if err := d.begin(true); err != nil { // all have left; whoever comes forms the job anew
				return err
			}
		}
		if err := d.settle(ctx); err != nil {
			return err
		}
		timer.Reset(min(max(d.m.Next()-d.now(), time.Millisecond), time.Hour))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-done:
			done <- err
			return err
		case <-timer.C:
			d.m.Tick(d.now())
		case n := <-news:
			d.apply(n)
			d.listen(ctx, news)
		}
	}
}

// listen takes what else comes within a batch.
func (d *decider) listen(ctx context.Context, news <-chan []change) {
	t := time.NewTimer(batch)
	defer t.Stop()
	for {
		select {
		case n := <-news:
			d.apply(n)
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (d *decider) now() member.Time { return time.Since(d.began) }

// begin makes a machine for the job as the store has it, or for one that is
// formed anew.
func (d *decider) begin(anew bool) (err error) {
	var e *member.Epoch
	d.start = 0
	switch {
	case d.stored == nil:
	case anew:
		d.start = d.stored.Number
	default:
		d.start = d.stored.Start
		e = d.stored.shifted(d.start)
	}
	d.entered, d.denied, d.steps = map[member.ID]Life{}, map[member.ID]string{}, map[member.ID]uint64{}
	if d.m, err = member.New(d.cfg, outside, 1, uint64(newLife()), d.now(), nil); err != nil {
		return fmt.Errorf("coord: policy: %w", err)
	}
	d.m.Lead(d.now(), e)
	return nil
}

// anyAlive reports whether a member of the latest epoch is still registered. Those
// that recover have no state of the job to go on from.
func (d *decider) anyAlive() bool {
	for _, w := range d.workers {
		if _, ok := d.stored.Rank(w.ID, w.Life); ok && w.State != Dead {
			return true
		}
	}
	return false
}

// apply takes news of workers.
func (d *decider) apply(news []change) {
	for _, n := range news {
		for _, e := range d.roster.apply(n) {
			w := e.Worker
			switch e.Word {
			case Left, Expired:
				delete(d.workers, w.ID)
				switch {
				case w.State == Dead:
					d.ends[w.ID] = "died: " + w.Why
				case e.Word == Expired:
					d.ends[w.ID] = "was silent until its lease ended"
				default:
					d.ends[w.ID] = strings.TrimSuffix("left: "+w.Why, ": ")
				}
			case Died:
				d.workers[w.ID] = w
				d.ends[w.ID] = "died: " + w.Why
			default:
				d.workers[w.ID] = w
				delete(d.ends, w.ID)
				if w.State == Leaving {
					d.ends[w.ID] = strings.TrimSuffix("left: "+w.Why, ": ")
				}
			}
		}
	}
}

// feed brings the machine what the store says of workers.
func (d *decider) feed() {
	now := d.now()
	tell := func(verb member.Verb, w Worker) {
		msg := member.Message{Verb: verb, From: w.ID, Life: uint64(w.Life), Subject: w.ID, SubjectLife: uint64(w.Life), Step: w.Step,
			Age: time.Duration(w.Pace)}
		if e := d.m.Epoch(); e != nil {
			msg.EpochNumber = e.Number
		}
		d.m.Message(now, &msg)
	}
	listed := map[member.ID]member.Member{}
	if e := d.m.Epoch(); e != nil {
		for _, s := range e.Members {
			listed[s.ID] = s
			if w, ok := d.workers[s.ID]; !ok || w.State == Dead || uint64(w.Life) != s.Life {
				d.m.Exited(now, s.ID, s.Life)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(d.entered)) {
		life := d.entered[id]
		w, ok := d.workers[id]
		if !ok || w.Life != life || w.State == Dead || w.State == Leaving {
			d.m.Withdraw(now, id, uint64(life))
			delete(d.entered, id)
		}
	}
	clear(d.denied)
	for _, id := range slices.Sorted(maps.Keys(d.workers)) {
		w := d.workers[id]
		if w.Step > d.steps[id] {
			d.steps[id] = w.Step
			tell(member.Pace, w)
		}
		s, ok := listed[id]
		switch {
		case w.State == Dead:
		case !ok || s.Life != uint64(w.Life):
			if w.State != Leaving {
				d.entered[id] = w.Life
				tell(member.Enter, w)
			}
		case w.State == Leaving:
			tell(member.Exit, w)
		case w.State == Ready && s.Recovering:
			tell(member.Caught, w)
		}
	}
}

// settle publishes what the machine proposes until it proposes nothing more.
func (d *decider) settle(ctx context.Context) error {
	for {
		d.feed()
		// What was proposed after the first of several inputs is proposed again with
		// all of them.
		d.m.Decided(d.now(), d.m.Epoch())
		r := d.m.Ready()
		for _, m := range r.Messages {
			if m.Message.Verb == member.Deny {
				d.denied[m.To] = m.Message.Reason.String()
			}
		}
		p := r.Proposal
		d.m.Advance()
		why := ""
		if p == nil {
			if why = d.fault(); why == "" {
				return d.notify(ctx)
			}
			next := d.stored.shifted(d.start)
			next.Number, next.AfterStep = next.Number+1, 0
			p = &member.Proposal{Next: next}
		}
		e := d.record(p)
		if why != "" {
			e.Reason, e.Round = why+"; all ranks are started again", e.Number
			e.Restarts++
		}
		held, err := d.c.publish(ctx, e, d.lead.cond)
		if err != nil {
			return err // with ErrConflict the lead is taken anew, from what the store holds
		}
		d.stored = &held
		d.m.Decided(d.now(), p.Next)
		for _, s := range p.Next.Members {
			delete(d.entered, s.ID)
		}
	}
}

// fault says which member's process failed in the round under way, "" for none.
func (d *decider) fault() string {
	if d.stored == nil || d.stored.Halt != member.NoReason || d.stored.Number <= d.start {
		return ""
	}
	for _, s := range d.stored.Members {
		if w := d.workers[s.ID]; w.Life == s.Life && w.Fault != "" && w.Round == d.stored.Round {
			return w.Fault
		}
	}
	return ""
}

// sameMembers reports whether two epochs have the same members in the same ranks:
// the same processes if lives count, the same ids otherwise.
func sameMembers(a, b []Seat, lives bool) bool {
	return slices.EqualFunc(a, b, func(x, y Seat) bool { return x.ID == y.ID && (!lives || x.Life == y.Life) })
}

// record is a proposal as the store gets it.
func (d *decider) record(p *member.Proposal) Epoch {
	var secret [16]byte
	rand.Read(secret[:])
	e := Epoch{Number: d.start + p.Next.Number, Start: d.start, Members: []Seat{}, After: p.Next.AfterStep, Halt: p.Next.Halt,
		Token: hex.EncodeToString(secret[:]), Decider: d.policy.Name}
	before := map[member.ID]member.Member{}
	if old := d.m.Epoch(); old != nil {
		for _, s := range old.Members {
			before[s.ID] = s
		}
	}
	var gone, came []string
	for _, s := range p.Next.Members {
		w := d.workers[s.ID]
		seat := Seat{Seat: member.Seat{ID: s.ID, Life: Life(s.Life)}, Host: w.Host, Address: w.Address, Node: w.Node, Agent: w.Agent}
		if s.Recovering {
			e.Recovering = append(e.Recovering, seat)
		} else {
			e.Members = append(e.Members, seat)
		}
		old, had := before[s.ID]
		switch {
		case had && old.Life == s.Life && old.Recovering && !s.Recovering:
			came = append(came, fmt.Sprintf("worker %d has caught up", s.ID))
		case !had || old.Life != s.Life:
			came = append(came, fmt.Sprintf("worker %d joined", s.ID))
		}
		if had && old.Life == s.Life {
			delete(before, s.ID)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		how, ok := d.ends[id]
		if !ok { // it went before this process led
			how = "was replaced by a new process"
			if _, ok := d.workers[id]; !ok {
				how = "is gone"
			}
		}
		gone = append(gone, fmt.Sprintf("worker %d %s", id, how))
	}
	if len(e.Members) > 0 {
		e.Master = e.Members[0].Address
	}
	for _, w := range d.workers {
		e.Step = max(e.Step, w.Step)
	}
	if e.Round = e.Number; d.stored != nil && d.stored.Number > d.start {
		e.Restarts = d.stored.Restarts
		if sameMembers(e.Members, d.stored.Members, d.policy.Together) {
			e.Round = d.stored.Round
		}
	}
	why := append(gone, came...)
	if e.Number == d.start+1 {
		why = []string{fmt.Sprintf("formed of %d", len(e.Members))}
	}
	if len(why) > 8 {
		why = append(why[:8], fmt.Sprintf("and %d more", len(why)-8))
	}
	if e.Halt != member.NoReason {
		why = append([]string{"stop with a checkpoint: " + e.Halt.String()}, why...)
	}
	e.Reason = strings.Join(why, "; ")
	return e
}

func noticeKey(id member.ID) string { return fmt.Sprintf("notice/%08x", uint32(id)) }

// notify tells workers that wait why they do, and those that no longer do.
func (d *decider) notify(ctx context.Context) error {
	want := map[member.ID]notice{}
	for id, why := range d.denied {
		if w, ok := d.workers[id]; ok {
			want[id] = notice{w.Life, why}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if d.told[id] == want[id] {
			continue
		}
		b, err := json.Marshal(want[id])
		if err != nil {
			return err
		}
		if err := d.lead.put(ctx, noticeKey(id), string(b)); err != nil {
			return err
		}
		d.told[id] = want[id]
	}
	for _, id := range slices.Sorted(maps.Keys(d.told)) {
		if _, ok := want[id]; !ok {
			if err := d.lead.put(ctx, noticeKey(id), ""); err != nil {
				return err
			}
			delete(d.told, id)
		}
	}
	return nil
}

// sweepNotices takes note of what an earlier decider has told.
func (d *decider) sweepNotices(ctx context.Context) error {
	kvs, err := d.c.list(ctx, "notice/")
	if err != nil {
		return err
	}
	for _, kv := range kvs {
		var id uint32
		var n notice
		if _, err := fmt.Sscanf(kv.key, "%08x", &id); err == nil {
			if json.Unmarshal(kv.value, &n) == nil {
				d.told[member.ID(id)] = n
			}
		}
	}
	return nil
}
