package kv

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
)

// TraceBlock is the number of tokens of a block in Mooncake's traces.
const TraceBlock = 512

// Request is a line of a trace.
type Request struct {
	At     float64 // seconds
	Input  int     // tokens
	Output int
	IDs    []int64 // of the input's blocks: requests share the ids of what they share
}

type line struct {
	At     *float64 `json:"timestamp"` // milliseconds
	Input  int      `json:"input_length"`
	Output int      `json:"output_length"`
	IDs    []int64  `json:"hash_ids"`
}

// ReadTrace reads Mooncake's traces: lines of JSON with timestamp (milliseconds), input_length, output_length and
// hash_ids, one for each 512 tokens of the input.
func ReadTrace(r io.Reader) ([]Request, error) {
	var out []Request
	s := bufio.NewScanner(r)
	s.Buffer(nil, 64<<20)
	for n := 1; s.Scan(); n++ {
		text := bytes.TrimSpace(s.Bytes())
		if len(text) == 0 {
			continue
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case l.At == nil || l.Input < 1 || l.Output < 0 || math.IsNaN(*l.At):
			return nil, fmt.Errorf("line %d: want timestamp, input_length and output_length", n)
		case len(l.IDs) == 0:
			return nil, fmt.Errorf("line %d: no hash_ids: this trace does not say what requests share", n)
		case len(l.IDs) > l.Input:
			return nil, fmt.Errorf("line %d: %d hash_ids for %d tokens", n, len(l.IDs), l.Input)
		}
		if len(out) > 0 && *l.At/1e3 < out[len(out)-1].At {
			return nil, fmt.Errorf("line %d: timestamp %g is before the line above", n, *l.At)
		}
		out = append(out, Request{*l.At / 1e3, l.Input, l.Output, l.IDs})
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", len(out)+1, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no request in the trace")
	}
	return out, nil
}

// WriteTrace writes what ReadTrace reads.
func WriteTrace(w io.Writer, list []Request) error {
	b := bufio.NewWriter(w)
	for _, r := range list {
		ms := math.Round(r.At * 1e3)
		text, err := json.Marshal(line{&ms, r.Input, r.Output, r.IDs})
		if err != nil {
			return err
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.Flush()
}

// Path gives the hashes of a request's blocks. Ids are chained, so that an id means the same only behind the same ids.
func (r Request) Path() []Hash {
	out := make([]Hash, len(r.IDs))
	var b [40]byte
	for i, id := range r.IDs {
		binary.BigEndian.PutUint64(b[32:], uint64(id))
		out[i] = sha256.Sum256(b[:])
		copy(b[:], out[i][:])
	}
	return out
}

// Shape is what a generated trace looks like: conversations that begin with one of a few prompts of the
// application, go on for some turns, and bring everything before along with each.
type Shape struct {
	Requests int
	Rate     float64 // conversations that begin a second
	Prompts  int     // of applications; the k-th is used in proportion to 1/k
	Prompt   int     // tokens of such a prompt, on average
	User     int     // tokens that a turn adds, on average
	Answer   int     // tokens of an answer, on average
	Turns    float64 // of a conversation, on average
	Think    float64 // seconds between turns, on average
}

// Conversation has the means of Mooncake's public conversation trace: 12 k tokens in and 350 out a request.
func Conversation() Shape {
	return Shape{Requests: 12000, Rate: 1, Prompts: 40, Prompt: 3000, User: 2400, Answer: 350, Turns: 4, Think: 60}
}

// Check reports what is wrong with a shape.
func (s Shape) Check() error {
	if s.Requests < 1 || s.Requests > 10_000_000 || !(s.Rate > 0 && s.Rate <= 1e9) || s.Prompts < 1 || s.Prompt < 0 || s.User < 1 ||
		s.Answer < 1 || !(s.Turns >= 1 && s.Turns <= 1e6) || !(s.Think >= 0 && s.Think <= 1e9) {
		return fmt.Errorf("kv: a trace of %d requests, %g conversations/s, %d prompts of %d tokens, %d tokens a turn, %d an answer, %g turns, %g s between: all are positive",
			s.Requests, s.Rate, s.Prompts, s.Prompt, s.User, s.Answer, s.Turns, s.Think)
	}
	return nil
}

// Generate makes a trace. The same seed gives the same trace.
func Generate(s Shape, seed uint64) ([]Request, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, 0x6b76))
	size := func(mean int) int { // long tails, as prompts have
		return max(1, int(float64(mean)*math.Exp(r.NormFloat64()-0.5)))
	}
	var next int64
	fresh := func() int64 { next++; return next - 1 }
	type talk struct {
		at     float64
		blocks []int64 // whole ones
		tokens int
		left   int
	}
	prompts := make([]talk, s.Prompts)
	var weights []float64
	sum := 0.0
	for i := range prompts {
		if s.Prompt > 0 {
			prompts[i].tokens = size(s.Prompt)
		}
		for range prompts[i].tokens / TraceBlock {
			prompts[i].blocks = append(prompts[i].blocks, fresh())
		}
		sum += 1 / float64(i+1)
		weights = append(weights, sum)
	}
	var out []Request
	var open []talk // those with a turn to come, as a heap by time
	begin := r.ExpFloat64() / s.Rate
	for len(out) < s.Requests {
		var t talk
		if len(open) > 0 && open[0].at <= begin {
			t = open[0]
			last := len(open) - 1
			open[0] = open[last]
			open = open[:last]
			for i := 0; ; {
				c := 2*i + 1
				if c+1 < last && open[c+1].at < open[c].at {
					c++
				}
				if c >= last || open[i].at <= open[c].at {
					break
				}
				open[i], open[c] = open[c], open[i]
				i = c
			}
		} else {
			pick, k := r.Float64()*sum, 0
			for weights[k] < pick {
				k++
			}
			t = talk{at: begin, tokens: prompts[k].tokens, blocks: append([]int64(nil), prompts[k].blocks...), left: 1}
			for r.Float64() > 1/s.Turns {
				t.left++
			}
			begin += r.ExpFloat64() / s.Rate
		}
		t.tokens += size(s.User)
		for len(t.blocks) < t.tokens/TraceBlock {
			t.blocks = append(t.blocks, fresh())
		}
		q := Request{At: t.at, Input: t.tokens, Output: size(s.Answer), IDs: append([]int64(nil), t.blocks...)}
		if t.tokens%TraceBlock > 0 {
			q.IDs = append(q.IDs, fresh()) // the last block is not whole and is nobody else's
		}
		out = append(out, q)
		if t.left--; t.left > 0 {
			t.tokens += q.Output
			t.at += s.Think * r.ExpFloat64()
			open = append(open, t)
			for i := len(open) - 1; i > 0 && open[i].at < open[(i-1)/2].at; i = (i - 1) / 2 {
				open[i], open[(i-1)/2] = open[(i-1)/2], open[i]
			}
		}
	}
	return out, nil
}

// Result is how a trace went.
type Result struct {
	Requests int     `json:"requests"`
	Blocks   int     `json:"blocks"`   // asked for
	Hits     int     `json:"hits"`     // blocks found
	Rate     float64 `json:"hit_rate"` // hits of blocks
	ByTier   []int   `json:"hits_by_tier"`
	Puts     []int   `json:"written_by_tier"` // blocks
	Gone     []int   `json:"evicted_by_tier"`
	Whole    int     `json:"whole"`         // requests with every block found
	Compute  float64 `json:"compute_s"`     // without a cache
	Saved    float64 `json:"saved_s"`       // of that
	Share    float64 `json:"saved_share"`   // saved of compute
	Most     []int   `json:"most_blocks"`   // in each tier at any time
	Unique   int     `json:"unique_blocks"` // of the whole trace
	Bound    float64 `json:"bound"`         // hit rate of a cache without end
}

// found counts a request for a path of n blocks, of which the spans were there: from the beginning on, without gaps.
func (r *Result) found(spans []Span, n int, e Economy) {
	r.Requests++
	r.Blocks += n
	have := 0
	for _, s := range spans {
		r.ByTier[s.Tier] += s.To - s.From
		have = s.To
	}
	r.Hits += have
	if have == n {
		r.Whole++
	}
	for d := range n {
		c := e.Recompute(d)
		r.Compute += c
		if d < have {
			r.Saved += c
		}
	}
}

// Replay runs a trace through tiers: every request looks its path up and stores it.
func Replay(list []Request, tiers []Tier, e Economy, halfLife float64) (Result, error) {
	t, err := NewTiers(tiers, e, halfLife)
	if err != nil {
		return Result{}, err
	}
	n := len(tiers)
	res := Result{ByTier: make([]int, n), Puts: make([]int, n), Gone: make([]int, n), Most: make([]int, n)}
	seen := map[Hash]bool{}
	known := 0
	for _, r := range list {
		path := r.Path()
		res.found(t.Lookup(path, r.At), len(path), e)
		for _, h := range path {
			if seen[h] {
				known++
			}
			seen[h] = true
		}
		c, err := t.Store(path, r.At)
		if err != nil {
			return Result{}, err
		}
		for _, p := range c.Put {
			res.Puts[p.Tier] += p.To - p.From
		}
		for i, g := range c.Gone {
			res.Gone[i] += len(g)
			res.Most[i] = max(res.Most[i], t.Tree(i).Len())
		}
	}
	res.Unique = len(seen)
	res.Rate, res.Bound = float64(res.Hits)/float64(res.Blocks), float64(known)/float64(res.Blocks)
	res.Share = res.Saved / res.Compute
	return res, nil
}
