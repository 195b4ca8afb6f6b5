package coord

import (
	"context"
	"encoding/json"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Standing is where a worker stands.
type Standing string

// The standings.
const (
	Waiting    Standing = "waiting"    // no epoch lists it yet
	Spare      Standing = "spare"      // it is not let in; Place.Why says why, usually that there are enough
	Recovering Standing = "recovering" // to be brought up to date by the members; then CaughtUp
	Active     Standing = "active"     // trains with Place.Rank in Place.Epoch
	Evicted    Standing = "evicted"    // the latest epoch is without it, and the one before was not
	Halted     Standing = "halted"     // it was active: write a checkpoint and leave
)

// Place is a worker's standing and the epoch that gave it.
type Place struct {
	Standing Standing
	Epoch    Epoch // the latest; number 0 if there is none
	Rank     int   // if active, and when halted as a member; -1 otherwise
	Why      string
}

// Places tells the worker's place, and each that follows, until the context ends;
// then the channel is closed. An active worker is told every epoch.
func (r *Registration) Places(ctx context.Context) <-chan Place {
	out := make(chan Place)
	c := r.c
	c.tasks.Add(1)
	go func() {
		defer c.tasks.Done()
		defer close(out)
		ctx, cancel := c.bind(ctx)
		defer cancel()
		epochs := c.WatchEpochs(ctx)
		notices := make(chan notice)
		c.tasks.Add(1)
		go func() {
			defer c.tasks.Done()
			c.follow(ctx, noticeKey(r.Worker().ID), func(news []change) bool {
				var said notice
				for _, n := range news {
					if n.key == "" {
						said = notice{}
						json.Unmarshal(n.value, &said) // a removed one says nothing
					}
				}
				select {
				case notices <- said:
					return true
				case <-ctx.Done():
					return false
				}
			})
		}()
		var e Epoch
		var said notice
		var last Place
		var was Standing // in the latest epoch that listed it
		for {
			select {
			case next, ok := <-epochs:
				if !ok {
					return
				}
				e = next
			case said = <-notices:
			case <-ctx.Done():
				return
			}
			p := r.place(e, said, was)
			switch p.Standing {
			case Active, Recovering:
				was = p.Standing
			case Waiting, Evicted, Spare:
				was = ""
			}
			if p.Standing == last.Standing && p.Epoch.Number == last.Epoch.Number && p.Why == last.Why {
				continue
			}
			if p.Standing == Waiting && last.Standing == Waiting {
				continue
			}
			last = p
			select {
			case out <- p:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// place is the standing of the present life in an epoch. After its lease ended a
// worker has another one, and the epochs of the former are over.
func (r *Registration) place(e Epoch, said notice, was Standing) Place {
	r.mu.Lock()
	id, life := r.w.ID, r.w.Life
	r.mu.Unlock()
	p := Place{Standing: Waiting, Epoch: e, Rank: -1}
	rank, active := e.Rank(id, life)
	switch in := e.Lists(id, life); {
	case e.Halt != member.NoReason && (active || was == Active):
		p.Standing, p.Rank, p.Why = Halted, rank, e.Reason
	case e.Halt != member.NoReason: // it has nothing to save, and waits for the job to be formed anew
		p.Why = e.Reason
	case active:
		p.Standing, p.Rank, p.Why = Active, rank, e.Reason
	case in:
		p.Standing, p.Why = Recovering, e.Reason
	case was != "":
		p.Standing, p.Why = Evicted, e.Reason
	case said.Life == life:
		p.Standing, p.Why = Spare, said.Why
	}
	return p
}
