package infer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weft-fabric/weft/move/openai"
)

// Reply is an answer and how it came to be.
type Reply struct {
	ID        int           `json:"id"`
	State     string        `json:"state"` // waiting, prefill, decode, done, failed
	Mode      Mode          `json:"mode"`
	Prompt    int           `json:"prompt_tokens"`
	Tokens    []Token       `json:"-"`
	Count     int           `json:"tokens"`
	First     time.Duration `json:"ttft_ns"` // to the first token
	Each      time.Duration `json:"tpot_ns"` // between tokens, on average
	Compute   time.Duration `json:"prefill_ns"`
	Exposed   time.Duration `json:"exposed_ns"` // of the transfer, after computing
	Bytes     int64         `json:"kv_bytes"`
	Path      string        `json:"path,omitempty"`
	Shared    int           `json:"shared_blocks"` // that came from the cache service
	Waited    time.Duration `json:"waited_ns"`     // of decode, for layers after the first
	Again     bool          `json:"recomputed"`
	Attempts  int           `json:"attempts"` // on decode workers
	Prefills  int           `json:"prefills"`
	PrefillAt string        `json:"prefill_worker,omitempty"`
	DecodeAt  string        `json:"decode_worker,omitempty"`
	Blocks    []string      `json:"blocks"` // names of the prompt's blocks of 16 tokens, shortened
	Where     string        `json:"where"`  // they are
	Error     string        `json:"error,omitempty"`
	Asked     time.Time     `json:"asked"`
}

// attempt is one try of a request on a decode worker.
type attempt struct {
	events chan told
	decode *process
	prefil *process
}

type told struct {
	from *process
	event
}

const (
	maxAttempts = 20
	maxOrders   = 1024 // that wait for one worker
)

// Question is a prompt and what is wanted of its answer.
type Question struct {
	Prompt   []byte
	Count    int // tokens of the answer, at most
	Mode     Mode
	Sampling openai.Sampling // the zero value takes the best token each time
	Top      int             // log probabilities for Each: -1 for none, n for the token's and the n likeliest
	// Each, if set, gets every token once, in order, whichever workers die on the way. False ends the answer.
	Each func(t Token, scores []Score) bool
}

// Ask answers a prompt with count tokens, each the best one.
func (c *Cluster) Ask(ctx context.Context, prompt []byte, count int, mode Mode) (*Reply, error) {
	return c.Answer(ctx, Question{Prompt: prompt, Count: count, Mode: mode, Top: -1})
}

// enlist gives a question its number and a place in the list that pages show, which holds the last 200 at most.
func (c *Cluster) enlist(r *Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	r.ID = c.asked
	if c.requests = append(c.requests, r); len(c.requests) > 200 {
		c.requests = slices.Delete(c.requests, 0, 100)
	}
}

// Answer answers a question.
func (c *Cluster) Answer(ctx context.Context, q Question) (*Reply, error) {
	prompt, count, mode := q.Prompt, q.Count, q.Mode
	if err := c.o.Model.check(prompt, count); err != nil {
		return nil, err
	}
	if !slices.Contains(Modes, mode) {
		return nil, fmt.Errorf("infer: mode %q; known: %v", mode, Modes)
	}
	if c.o.Prefill == 0 {
		mode = Recompute
	}
	hashes, err := c.o.Model.hashes(prompt)
	if err != nil {
		return nil, err
	}
	r := &Reply{State: "waiting", Mode: mode, Prompt: len(prompt), Asked: time.Now(), Where: "nowhere yet", Blocks: []string{}}
	for _, h := range hashes {
		r.Blocks = append(r.Blocks, h.String()[:8])
	}
	c.enlist(r)
	var last time.Time
	for try := range maxAttempts {
		done, err := c.attempt(ctx, r, q, &last)
		if done {
			return r, nil
		}
		if len(r.Tokens) == count { // it died after the last token, before it could report the end
			c.note(func() { r.State, r.Where = "done", "freed" })
			return r, nil
		}
		if ctx.Err() != nil || try == maxAttempts-1 {
			c.note(func() { r.State, r.Error, r.Where = "failed", err.Error(), "freed" })
			return r, fmt.Errorf("infer: request %d: %w", r.ID, err)
		}
	}
	panic("not reached")
}

func (c *Cluster) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// attempt tries a request on one decode worker, with what is left of it.
func (c *Cluster) attempt(ctx context.Context, r *Reply, q Question, last *time.Time) (bool, error) {
	text := slices.Clone(q.Prompt)
	for _, t := range r.Tokens {
		text = append(text, t.Token)
	}
	d, err := c.pick(ctx, Decode)
	if err != nil {
		return false, err
	}
	a := &attempt{events: make(chan told, 2*q.Count+4*maxAttempts+64), decode: d}
	c.mu.Lock()
	c.next++
	id := c.next
	c.attempts[id] = a
	r.Attempts++
	r.State, r.DecodeAt = "waiting", d.name
	c.mu.Unlock()
	defer c.note(func() {
		delete(c.attempts, id)
		d.load--
		if a.prefil != nil {
			a.prefil.load--
		}
	})
	c.order(d, order{Do: "expect", ID: id, Prompt: text, Count: q.Count - len(r.Tokens), Mode: r.Mode, Sampling: q.Sampling, Top: q.Top})
	var target []byte
	landed := false
	prefill := func() error {
		p, err := c.pick(ctx, Prefill)
		if err != nil {
			return err
		}
		c.note(func() {
			if a.prefil != nil {
				a.prefil.load--
			}
			a.prefil = p
			r.Prefills++
			r.State, r.PrefillAt, r.Where = "prefill", p.name, p.name
		})
		c.order(p, order{Do: "prefill", ID: id, Prompt: text, Mode: r.Mode, Target: target})
		return nil
	}
	quiet := time.NewTimer(c.o.Silence)
	defer quiet.Stop()
	for {
		var e told
		select {
		case e = <-a.events:
			if e.from == d {
				quiet.Reset(c.o.Silence)
			}
		case <-quiet.C:
			c.note(func() { d.silent = true })
			c.order(d, order{Do: "drop", ID: id})
			c.o.Log.Warn("a decode worker says nothing; its request goes to another", "worker", d.name, "request", r.ID, "for", c.o.Silence)
			return false, fmt.Errorf("decode worker %s has been silent for %s", d.name, c.o.Silence)
		case <-ctx.Done():
			c.order(d, order{Do: "drop", ID: id})
			return false, ctx.Err()
		}
		switch {
		case e.Event == "expecting":
			if target = e.Target; r.Mode != Recompute && len(text) > 1 {
				if err := prefill(); err != nil {
					return false, err
				}
			}
		case e.Event == "prefilled":
			landed = true
			c.note(func() {
				e.from.done++
				r.Compute, r.Exposed, r.Bytes, r.Path, r.Shared, r.Where = e.Compute, e.Exposed, e.Bytes, e.Path, e.Shared, d.name
			})
		case e.Event == "token":
			now := time.Now()
			c.note(func() {
				if len(r.Tokens) == 0 {
					r.First = now.Sub(r.Asked)
				} else {
					n := time.Duration(len(r.Tokens))
					r.Each = (r.Each*(n-1) + now.Sub(*last)) / n
				}
				*last = now
				r.Tokens = append(r.Tokens, e.Token)
				r.Count, r.State, r.Where = len(r.Tokens), "decode", d.name
			})
			if q.Each != nil && !q.Each(e.Token, e.Scores) {
				c.order(d, order{Do: "drop", ID: id})
				c.note(func() { r.State, r.Where = "done", "freed" })
				return true, nil
			}
			quiet.Reset(c.o.Silence) // a slow reader is not the worker's silence
		case e.Event == "done":
			c.note(func() {
				e.from.done++
				r.State, r.Waited, r.Again, r.Where = "done", e.Waited, r.Again || e.Again, "freed"
			})
			// What the prefill worker has to say of its transfer comes a little later, or not at all.
			if r.Mode != Recompute && !landed && !e.Again && len(text) > 1 {
				c.await(ctx, a, r, d)
			}
			return true, nil
		case e.from == d: // failed or gone
			return false, fmt.Errorf("decode worker %s: %s", d.name, e.Error)
		case e.from == a.prefil && !landed:
			c.o.Log.Info("a prompt is read again", "request", r.ID, "worker", e.from.name, "why", e.Error)
			if r.Prefills >= maxAttempts {
				return false, fmt.Errorf("prefill worker %s: %s", e.from.name, e.Error)
			}
			if err := prefill(); err != nil {
				return false, err
			}
		}
	}
}

// await takes the figures of a prefill that ended after its answer did. They are late as a layer may be.
func (c *Cluster) await(ctx context.Context, a *attempt, r *Reply, d *process) {
	t := time.NewTimer(c.o.Patience)
	defer t.Stop()
	for {
		select {
		case e := <-a.events:
			if e.Event == "prefilled" {
				c.note(func() {
					e.from.done++
					r.Compute, r.Exposed, r.Bytes, r.Path, r.Shared = e.Compute, e.Exposed, e.Bytes, e.Path, e.Shared
				})
			}
			if e.Event == "prefilled" || e.Event == "failed" || e.Event == "gone" && e.from != d {
				return
			}
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
