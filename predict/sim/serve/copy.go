package serve

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// serving is one copy of a model at work on its requests, step by step.
type serving struct {
	e        *Engine
	reqs     []Request
	users    int     // of a closed loop; 0 where requests come at their own times
	capacity float64 // bytes of KV caches
	done     func(start, first, end, transfer float64, r Request)
	res      *Result

	now     float64
	next    int       // the first request that nobody has sent yet
	starts  []float64 // when requests were sent
	due     []float64 // when those of users reach the queue
	asked   []int     // requests of users that are on their way
	queue   []int
	away    *rand.Rand
	run     []running
	used    float64
	loading float64 // seconds in which cached tokens come from their tier
	since   int     // decode steps since the engine looked for new requests
	waited  int     // steps that prompts have waited for others
}

// serve runs one copy.
func (e *Engine) serve(reqs []Request, users int, capacity float64, done func(start, first, end, transfer float64, r Request),
	res *Result) {
	s := &serving{e: e, reqs: reqs, users: users, capacity: capacity, done: done, res: res,
		starts: make([]float64, len(reqs)), due: make([]float64, len(reqs)), away: rand.New(rand.NewPCG(7, 7))}
	for ; s.next < min(users, len(reqs)); s.next++ {
		s.queue = append(s.queue, s.next)
	}
	for s.next < len(reqs) || len(s.queue)+len(s.asked)+len(s.run) > 0 {
		s.arrive()
		s.admit()
		if len(s.run) == 0 {
			if !s.wait() {
				return
			}
			continue
		}
		w := s.work()
		step := max(e.Step(w), s.loading) // blocks come layer by layer, while it computes
		s.loading = 0
		res.spent.add(e, w, step)
		n := s.alike(w, step)
		s.now += step * float64(n)
		s.since += n
		s.waited += n
		if w.Prompt > 0 {
			s.since = math.MaxInt / 2
		}
		res.spent.repeat(e, w, step, n-1)
		s.finish(w, n)
	}
}

// arrive takes what has come into the queue, if the engine looks for it now.
func (s *serving) arrive() {
	if len(s.run) > 0 && s.since < s.e.Habits.Poll {
		return
	}
	s.since = 0
	for s.users == 0 && s.next < len(s.reqs) && s.reqs[s.next].At+s.e.turn() <= s.now {
		s.starts[s.next] = s.reqs[s.next].At
		s.queue = append(s.queue, s.next)
		s.next++
	}
	slices.SortFunc(s.asked, func(a, b int) int { return cmp.Compare(s.due[a], s.due[b]) })
	for len(s.asked) > 0 && s.due[s.asked[0]] <= s.now {
		s.queue = append(s.queue, s.asked[0])
		s.asked = s.asked[1:]
	}
}

// waitsForSpace is the limit of a run whose requests waited for others' caches to be freed.
const waitsForSpace = "KV cache: requests wait for space"

// full reports whether a copy runs as many requests as it may, which then is what limits it, unless space in the KV cache does.
func (e *Engine) full(running int, res *Result) bool {
	if e.Most == 0 || running < e.Most {
		return false
	}
	if res.Limit == "" {
		res.Limit = fmt.Sprintf("requests wait: a copy runs at most %d at once", e.Most)
	}
	return true
}

// admit starts requests as long as the KV cache has space for them.
func (s *serving) admit() {
	for len(s.queue) > 0 {
		if s.e.full(len(s.run), s.res) {
			return
		}
		i := s.queue[0]
		need := s.e.Holds(s.reqs[i].Input + s.reqs[i].Output)
		if s.used+need > s.capacity {
			s.res.Limit = waitsForSpace
			return
		}
		s.used += need
		s.queue = s.queue[1:]
		left := s.e.fresh(s.reqs[i])
		old := s.reqs[i].Input - left
		s.loading += s.e.load(old)
		s.run = append(s.run, running{r: i, ctx: old, left: s.reqs[i].Output, prompt: left})
	}
}

// wait passes the time to the next request, and reports whether there is one.
func (s *serving) wait() bool {
	at := s.soonest()
	if math.IsInf(at, 1) {
		return false
	}
	s.now = max(s.now, at)
	return true
}

// soonest is when the next request reaches the queue.
func (s *serving) soonest() float64 {
	switch {
	case len(s.asked) > 0:
		return s.due[s.asked[0]]
	case s.users == 0 && s.next < len(s.reqs):
		return s.reqs[s.next].At + s.e.turn()
	}
	return math.Inf(1)
}

// work is what the next step does. It takes prompts up to the engine's chunk.
func (s *serving) work() Work {
	var w Work
	e := s.e
	groups := e.groups()
	if e.Habits.Shared {
		groups = 1
	}
	budget := e.Chunk * e.Layout.PP * groups // of prompt tokens and new ones together, as engines count; stages have a chunk each under way
	for k := range s.run {
		if s.run[k].prompt == 0 {
			w.Decode++
			w.Context += s.run[k].ctx
		}
	}
	if !e.Habits.PromptsFirst {
		budget = max(budget-w.Decode, 1)
	}
	if s.gathers(w.Decode) {
		budget = 0
	}
	for k := range s.run {
		x := &s.run[k]
		if x.prompt == 0 || budget <= 0 {
			continue
		}
		take := min(x.prompt, budget, e.Chunk*e.Layout.PP)
		if e.Habits.Whole && take < x.prompt && w.Prompt > 0 {
			break // it waits for a step that has space for all of it
		}
		budget -= take
		w.Prompts++
		w.Prompt += take
		w.Before += x.ctx
		x.prompt -= take
		x.ctx += take
	}
	if w.Decode > 0 {
		w.Context /= w.Decode
	}
	if w.Prompts > 0 && e.Habits.PromptsFirst {
		w.Decode, w.Context = 0, 0
	}
	if w.Prompts > 0 {
		w.Before /= w.Prompts
	}
	return w.inStages(e.Layout.PP, e.Chunk)
}

// gathers reports whether prompts still wait for others to run with.
func (s *serving) gathers(decode int) bool {
	tokens, prompts := 0, 0
	for k := range s.run {
		tokens += s.run[k].prompt
		prompts += min(s.run[k].prompt, 1)
	}
	if prompts == 0 {
		s.waited = 0
	}
	h, groups := s.e.Habits, s.e.groups()
	enough := prompts >= groups // each has one
	if groups == 1 {
		enough = float64(tokens+decode) >= h.Enough*float64(s.e.Chunk)
	}
	return prompts > 0 && decode > 0 && s.waited < h.Wait && !enough
}

// alike is how many steps are taken at once: as long as nothing changes, they are alike.
func (s *serving) alike(w Work, step float64) int {
	if w.Prompt > 0 {
		return 1
	}
	n := 16
	for k := range s.run {
		n = min(n, int(float64(s.run[k].left)/s.e.gain()))
		if s.run[k].prompt > 0 { // it waits, and not for long
			n = 1
		}
	}
	if p := s.e.Habits.Poll; p > 0 {
		n = min(n, max(p-s.since, 1))
	} else if at := s.soonest(); !math.IsInf(at, 1) {
		n = min(n, int((max(at, s.now+step)-s.now)/step))
	}
	return max(n, 1)
}

// finish gives tokens to the requests that had a part in n steps, and lets users ask again.
func (s *serving) finish(w Work, n int) {
	gain := s.e.gain()
	for k := 0; k < len(s.run); {
		x := &s.run[k]
		if x.prompt > 0 || x.first > 0 && w.Decode == 0 {
			k++
			continue
		}
		if x.first == 0 { // its prompt is done: the first token
			x.first = s.now
			x.left--
		} else {
			x.advance(n, gain)
		}
		if x.left > 0 {
			k++
			continue
		}
		r := s.reqs[x.r]
		s.done(s.starts[x.r], x.first, s.now, 0, r)
		s.used -= s.e.Holds(r.Input + r.Output)
		if s.users > 0 && s.next < len(s.reqs) { // the user asks again
			s.starts[s.next] = s.now
			s.due[s.next] = s.now + s.e.turn()*(.5+s.away.Float64())
			s.asked = append(s.asked, s.next)
			s.next++
		}
		s.run = slices.Delete(s.run, k, k+1)
	}
}
