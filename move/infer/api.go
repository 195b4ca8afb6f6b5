package infer

import (
	"context"
	"fmt"

	"github.com/weft-fabric/weft/move/openai"
)

// engine is a cluster as OpenAI's API sees it. A token is a byte.
type engine struct{ c *Cluster }

// Name is what clients call the model.
const Name = "weft-gpt"

func (e engine) Card() openai.Card {
	return openai.Card{ID: Name, Created: e.c.begun.Unix(), Owner: "weft", Context: e.c.o.Model.Config.Context}
}

func (e engine) Encode(text string) []int {
	out := make([]int, len(text))
	for i := range len(text) {
		out[i] = int(text[i])
	}
	return out
}

func (e engine) Decode(token int) ([]byte, error) {
	if token < 0 || token >= e.c.o.Model.Config.Vocab {
		return nil, fmt.Errorf("token %d; the model knows 0 to %d", token, e.c.o.Model.Config.Vocab-1)
	}
	return []byte{byte(token)}, nil
}

// Generate answers a completion, and returns how many tokens of the prompt the cache had. each is called for every
// token; false ends the answer.
func (e engine) Generate(ctx context.Context, j openai.Job, each func(openai.Token) bool) (cached int, err error) {
	prompt := make([]byte, len(j.Prompt))
	for i, t := range j.Prompt {
		prompt[i] = byte(t)
	}
	r, err := e.c.Answer(ctx, Question{Prompt: prompt, Count: j.Max, Mode: Stream, Sampling: j.Sampling, Top: j.Top,
		Each: func(t Token, scores []Score) bool {
			out := openai.Token{ID: int(t.Token), Bytes: []byte{t.Token}}
			for i, s := range scores {
				if i == 0 {
					out.Score = s.Log
					continue
				}
				out.Top = append(out.Top, openai.Token{ID: int(s.Token), Bytes: []byte{s.Token}, Score: s.Log})
			}
			return each(out)
		}})
	if err != nil {
		return 0, err
	}
	return r.Shared * blockTokens, nil
}
