package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"strings"
)

// maxBody is the most that a request may have.
const maxBody = 8 << 20

// maxChoices is the most answers that a request may ask for.
const maxChoices = 64

// Request is the body of a request for a completion or for the next message of a chat. Fields that neither this package
// nor its engines know are ignored, as clients send many.
type Request struct {
	Model               string          `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	Messages            []Message       `json:"messages"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	N                   *int            `json:"n"`
	Stop                json.RawMessage `json:"stop"`
	Seed                *int64          `json:"seed"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	Logprobs            json.RawMessage `json:"logprobs"` // a number in completions, a truth value in chats
	TopLogprobs         *int            `json:"top_logprobs"`
	Stream              bool            `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Echo bool `json:"echo"`

	// What this package knows and does not do.
	BestOf           *int            `json:"best_of"`
	Suffix           *string         `json:"suffix"`
	FrequencyPenalty *float64        `json:"frequency_penalty"`
	PresencePenalty  *float64        `json:"presence_penalty"`
	LogitBias        map[string]any  `json:"logit_bias"`
	Tools            []any           `json:"tools"`
	Functions        []any           `json:"functions"`
	ResponseFormat   *responseFormat `json:"response_format"`
}

type responseFormat struct {
	Type string `json:"type"`
}

// Message is one message of a chat.
type Message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"` // text, or a list of parts
}

// Text is the text of a message.
func (m Message) Text() (string, error) {
	var s string
	if len(m.Content) == 0 || json.Unmarshal(m.Content, &s) == nil {
		return s, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(m.Content, &parts); err != nil {
		return "", errors.New("want text or a list of parts")
	}
	for _, p := range parts {
		if p.Type != "text" {
			return "", fmt.Errorf("a part of type %q; only text is supported", p.Type)
		}
		s += p.Text
	}
	return s, nil
}

// ReadRequest reads the body of a request.
func ReadRequest(w http.ResponseWriter, r *http.Request) (*Request, []byte, *Error) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		e := Invalid("", "Content-Type %q: want application/json", r.Header.Get("Content-Type"))
		e.Status = http.StatusUnsupportedMediaType
		return nil, nil, e
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			e := Invalid("", "the request has more than %d bytes", large.Limit)
			e.Status = http.StatusRequestEntityTooLarge
			return nil, nil, e
		}
		return nil, nil, Invalid("", "reading the request: %v", err)
	}
	q, bad := parse(body)
	return q, body, bad
}

func parse(body []byte) (*Request, *Error) {
	var q Request
	if err := json.Unmarshal(body, &q); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) && kind.Field != "" {
			return nil, Invalid(kind.Field, "%s: a %s; want a %s", kind.Field, kind.Value, kind.Type)
		}
		return nil, Invalid("", "the request is not JSON: %v", err)
	}
	return &q, nil
}

// wish is a request that was checked: what it asks for, in tokens.
type wish struct {
	chat    bool
	prompts [][]int
	n       int
	max     int // tokens of an answer; 0: as many as the context has
	stop    []string
	sample  Sampling
	top     int
	echo    bool
	stream  bool
	usage   bool // at the end of a stream
}

// jobs are the choices of an answer, by index.
func (w *wish) jobs(c Card) ([]Job, *Error) {
	var list []Job
	for _, p := range w.prompts {
		most := w.max
		if most == 0 {
			most = max(c.Context-len(p), 1)
		}
		if len(p) == 0 {
			return nil, Invalid(w.param(), "the prompt is empty")
		}
		if len(p)+most > c.Context {
			e := Invalid(w.param(), "this model's context has %d tokens; the prompt has %d and the answer may have %d", c.Context, len(p), most)
			e.Code = "context_length_exceeded"
			return nil, e
		}
		for i := range w.n {
			s := w.sample
			s.Seed += uint64(i) // every choice is another one
			list = append(list, Job{p, most, s, w.top})
		}
	}
	return list, nil
}

func (w *wish) param() string {
	if w.chat {
		return "messages"
	}
	return "prompt"
}

// within checks that a number lies in a range and fills in what is not given.
func within[T int | float64](name string, v *T, without, low, high T) (T, *Error) {
	if v == nil {
		return without, nil
	}
	if *v < low || *v > high {
		return 0, Invalid(name, "%s is %v; want %v to %v", name, *v, low, high)
	}
	return *v, nil
}

// check reads a request for an engine.
func (q *Request) check(e Engine, chat bool) (*wish, *Error) {
	w := &wish{chat: chat, stream: q.Stream, echo: q.Echo && !chat, usage: q.Stream && q.StreamOptions != nil && q.StreamOptions.IncludeUsage}
	for _, step := range []func(*Request, *wish, Engine) *Error{
		(*Request).knownModel, (*Request).supported, (*Request).readStop, (*Request).readSampling, (*Request).readLength, (*Request).readTop,
		(*Request).readPrompt,
	} {
		if bad := step(q, w, e); bad != nil {
			return nil, bad
		}
	}
	if len(w.prompts)*w.n > maxChoices {
		return nil, Invalid("n", "%d prompts and n %d; want at most %d choices in all", len(w.prompts), w.n, maxChoices)
	}
	return w, nil
}

func (q *Request) knownModel(_ *wish, e Engine) *Error {
	id := e.Card().ID
	if q.Model == "" {
		return Invalid("model", "model is missing; this server has %s", id)
	}
	if q.Model != id {
		return &Error{http.StatusNotFound, fmt.Sprintf("the model %q does not exist; this server has %s", q.Model, id), "invalid_request_error",
			"model", "model_not_found"}
	}
	return nil
}

// supported refuses what would change the answer and is not done here.
func (q *Request) supported(w *wish, _ Engine) *Error {
	nonzero := func(v *float64) bool { return v != nil && *v != 0 }
	for _, x := range []struct {
		name string
		set  bool
	}{
		{"best_of", q.BestOf != nil && *q.BestOf != 1 && (q.N == nil || *q.BestOf != *q.N)},
		{"suffix", q.Suffix != nil && *q.Suffix != ""},
		{"frequency_penalty", nonzero(q.FrequencyPenalty)},
		{"presence_penalty", nonzero(q.PresencePenalty)},
		{"logit_bias", len(q.LogitBias) > 0},
		{"tools", len(q.Tools) > 0},
		{"functions", len(q.Functions) > 0},
		{"response_format", q.ResponseFormat != nil && q.ResponseFormat.Type != "text"},
		{"echo", w.echo && asksScores(q.Logprobs)},
	} {
		if x.set {
			e := Invalid(x.name, "%s is not supported here; leave it out", x.name)
			e.Code = "unsupported_parameter"
			return e
		}
	}
	return nil
}

func asksScores(given json.RawMessage) bool { return len(given) > 0 && string(given) != "null" }

// readStop takes one string or up to four. An empty one would end every answer before it begins.
func (q *Request) readStop(w *wish, _ Engine) *Error {
	var one *string
	switch {
	case len(q.Stop) == 0:
	case json.Unmarshal(q.Stop, &one) == nil:
		if one != nil {
			w.stop = []string{*one}
		}
	case json.Unmarshal(q.Stop, &w.stop) != nil:
		return Invalid("stop", "stop: want a string or a list of strings")
	}
	if len(w.stop) > 4 {
		return Invalid("stop", "stop has %d strings; want at most 4", len(w.stop))
	}
	for _, s := range w.stop {
		if s == "" {
			return Invalid("stop", "stop has an empty string")
		}
	}
	return nil
}

// readSampling takes what decides which tokens are drawn. Without a seed there is a random one.
func (q *Request) readSampling(w *wish, _ Engine) (bad *Error) {
	if w.sample.Temperature, bad = within("temperature", q.Temperature, 1, 0, 2); bad != nil {
		return bad
	}
	if w.sample.TopP, bad = within("top_p", q.TopP, 1, 0, 1); bad != nil {
		return bad
	}
	if w.n, bad = within("n", q.N, 1, 1, 128); bad != nil {
		return bad
	}
	w.sample.Seed = rand.Uint64()
	if q.Seed != nil {
		w.sample.Seed = uint64(*q.Seed)
	}
	return nil
}

// readLength takes the most tokens that are wanted. For chats the newer name wins; 0 leaves it to what the context has
// room for.
func (q *Request) readLength(w *wish, e Engine) *Error {
	name, most := "max_tokens", q.MaxTokens
	if q.MaxCompletionTokens != nil && w.chat {
		name, most = "max_completion_tokens", q.MaxCompletionTokens
	}
	switch {
	case most != nil && *most < 1:
		return Invalid(name, "%s is %d; want at least 1", name, *most)
	case most != nil:
		w.max = *most
	case !w.chat:
		w.max = 16 // what the API says
	}
	return nil
}

// readTop reads how many alternatives to report; -1 for no scores at all. Completions take a number there, chats true
// and a second field.
func (q *Request) readTop(w *wish, _ Engine) (bad *Error) {
	w.top = -1
	if !asksScores(q.Logprobs) {
		if q.TopLogprobs != nil && w.chat {
			return Invalid("top_logprobs", "top_logprobs needs logprobs: true")
		}
		return nil
	}
	if !w.chat {
		var n int
		if json.Unmarshal(q.Logprobs, &n) != nil {
			return Invalid("logprobs", "logprobs: want a number from 0 to 5")
		}
		w.top, bad = within("logprobs", &n, 0, 0, 5)
		return bad
	}
	var on bool
	if json.Unmarshal(q.Logprobs, &on) != nil {
		return Invalid("logprobs", "logprobs: want true or false")
	}
	if on {
		w.top, bad = within("top_logprobs", q.TopLogprobs, 0, 0, 20)
	}
	return bad
}

// readPrompt takes the four forms of a prompt that the API has, by trying them.
func (q *Request) readPrompt(w *wish, e Engine) *Error {
	if w.chat {
		return q.readMessages(w, e)
	}
	for _, read := range []func() ([][]int, error){
		func() ([][]int, error) {
			var s string
			err := json.Unmarshal(q.Prompt, &s)
			return [][]int{e.Encode(s)}, err
		},
		func() (list [][]int, err error) {
			var texts []string
			err = json.Unmarshal(q.Prompt, &texts)
			for _, s := range texts {
				list = append(list, e.Encode(s))
			}
			return list, err
		},
		func() ([][]int, error) {
			var ids []int
			err := json.Unmarshal(q.Prompt, &ids)
			return [][]int{ids}, err
		},
		func() (list [][]int, err error) { return list, json.Unmarshal(q.Prompt, &list) },
	} {
		list, err := read()
		if err != nil {
			continue
		}
		w.prompts = list
		return w.known(e)
	}
	return Invalid("prompt", "prompt: want a string, a list of strings, a list of tokens or a list of such lists")
}

// known checks tokens that a client names itself.
func (w *wish) known(e Engine) *Error {
	if len(w.prompts) == 0 {
		return Invalid("prompt", "the list of prompts is empty")
	}
	for i, p := range w.prompts {
		for k, id := range p {
			if _, err := e.Decode(id); err != nil {
				return Invalid("prompt", "token %d of prompt %d: %v", k, i, err)
			}
		}
	}
	return nil
}

// roles are those whose messages a model without tools can read.
var roles = map[string]bool{"system": true, "developer": true, "user": true, "assistant": true}

// readMessages makes one text of a chat: a line for each message, and the beginning of the answer's.
func (q *Request) readMessages(w *wish, e Engine) *Error {
	if len(q.Messages) == 0 {
		return Invalid("messages", "messages is empty")
	}
	var all strings.Builder
	for i, m := range q.Messages {
		if !roles[m.Role] {
			return Invalid(fmt.Sprintf("messages[%d].role", i), "message %d: role %q; known: system, developer, user, assistant", i, m.Role)
		}
		s, err := m.Text()
		if err != nil {
			return Invalid(fmt.Sprintf("messages[%d].content", i), "message %d: %v", i, err)
		}
		fmt.Fprintf(&all, "%s: %s\n", m.Role, s)
	}
	all.WriteString("assistant:")
	w.prompts = [][]int{e.Encode(all.String())}
	return nil
}
