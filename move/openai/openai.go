// Package openai speaks OpenAI's HTTP API in front of any Engine: the list of models, completions and chat completions,
// whole or as a stream of server-sent events.
//
//	POST /v1/completions, /v1/chat/completions
//	   request ──► prompts × n ──► Engine.Generate, one per choice, side by side
//	                                  │ a token
//	               text: whole UTF-8 only, cut at the first stop string
//	                                  │ what can no longer become a stop string
//	               one JSON object at the end, or one event per piece
//
// A request fails in one of two forms. Before the first token the answer is an HTTP status with an error object, which
// clients may retry. After it the stream carries one event with an error object and then [DONE]: a stream that merely
// ended would look like a complete answer, because clients do not insist on [DONE].
package openai

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Card describes the model of an engine.
type Card struct {
	ID      string
	Created int64 // seconds since 1970
	Owner   string
	Context int // tokens of a prompt and its answer together
}

// Sampling is how the next token is chosen. Equal seeds give equal answers.
type Sampling struct {
	Temperature float64 `json:"temperature"` // 0: always the best token
	TopP        float64 `json:"top_p"`       // 0 or 1: all tokens
	Seed        uint64  `json:"seed,string"`
}

// Job is one choice of an answer.
type Job struct {
	Prompt   []int // tokens
	Max      int   // tokens of the answer
	Sampling Sampling
	Top      int // log probabilities: -1 for none, 0 for the chosen token's, n for the n likeliest as well
}

// Token is one token of an answer.
type Token struct {
	ID    int
	Bytes []byte
	Score float64 // log probability, if the job asks for it
	Top   []Token // the likeliest tokens with their scores, best first
}

// Engine generates answers.
type Engine interface {
	Card() Card
	// Encode turns text into tokens.
	Encode(text string) []int
	// Decode is the text of a token, which may be a part of a character.
	Decode(token int) ([]byte, error)
	// Generate calls each for every token, in order, until each returns false or Max tokens have come. It returns how
	// many tokens of the prompt came from a cache.
	Generate(ctx context.Context, j Job, each func(Token) bool) (cached int, err error)
}

// Usage counts tokens.
type Usage struct {
	Prompt     int            `json:"prompt_tokens"`
	Completion int            `json:"completion_tokens"`
	Total      int            `json:"total_tokens"`
	Details    *PromptDetails `json:"prompt_tokens_details,omitempty"`
}

// PromptDetails says what a prompt's tokens cost.
type PromptDetails struct {
	Cached int `json:"cached_tokens"`
}

// Error is an error as the API reports it.
type Error struct {
	Status  int    `json:"-"`
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param"`
	Code    string `json:"code"`
}

func (e *Error) Error() string { return e.Message }

// MarshalJSON writes what is empty as null, as the API does.
func (e *Error) MarshalJSON() ([]byte, error) {
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return json.Marshal(map[string]any{"message": e.Message, "type": e.Type, "param": orNull(e.Param), "code": orNull(e.Code)})
}

// Invalid is the error of a request that must change before it can be answered.
func Invalid(param, format string, a ...any) *Error {
	return &Error{http.StatusBadRequest, fmt.Sprintf(format, a...), "invalid_request_error", param, ""}
}

// Unavailable is the error of a request that may succeed later.
func Unavailable(err error) *Error {
	return &Error{http.StatusServiceUnavailable, err.Error(), "server_error", "", "unavailable"}
}

// Write answers a request with an error.
func (e *Error) Write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": e}) // a client that is gone needs no answer
}
