package infer

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/weft-fabric/weft/move/openai"
	"github.com/weft-fabric/weft/run/train/model"
)

// Score is a token's log probability.
type Score struct {
	Token byte    `json:"token"`
	Log   float64 `json:"log"`
}

// pick chooses the token at a position of a text. The choice depends on scores, seed and position alone, so a worker that
// takes over a text goes on exactly as the one before would have.
func pick(s openai.Sampling, scores []float32, position int) byte {
	if s.Temperature == 0 {
		return model.Best(scores)
	}
	logs := logProbabilities(scores, s.Temperature)
	order := likeliest(logs)
	left := rand.New(rand.NewPCG(s.Seed, uint64(position))).Float64() * nucleus(s.TopP, order)
	for _, x := range order {
		if left -= math.Exp(x.Log); left < 0 {
			return x.Token
		}
	}
	return order[0].Token // what rounding left over
}

// nucleus is the probability of the likeliest tokens that together have at least p.
func nucleus(p float64, order []Score) (sum float64) {
	for _, x := range order {
		if sum += math.Exp(x.Log); p > 0 && sum >= p {
			break
		}
	}
	return sum
}

// likeliest orders tokens by their probability, equal ones by number.
func likeliest(logs []float64) []Score {
	list := make([]Score, len(logs))
	for i, v := range logs {
		list[i] = Score{byte(i), v}
	}
	slices.SortStableFunc(list, func(a, b Score) int { return cmp.Compare(b.Log, a.Log) })
	return list
}

// logProbabilities are those of scores at a temperature.
func logProbabilities(scores []float32, temperature float64) []float64 {
	most, sum := slices.Max(scores), 0.0
	out := make([]float64, len(scores))
	for i, v := range scores {
		out[i] = float64(v-most) / temperature
		sum += math.Exp(out[i])
	}
	for i := range out {
		out[i] -= math.Log(sum)
	}
	return out
}

// chances are the chosen token's score and those of the likeliest, as a question asks for them: before the temperature.
func chances(scores []float32, chosen byte, top int) []Score {
	if top < 0 {
		return nil
	}
	logs := logProbabilities(scores, 1)
	return append([]Score{{chosen, logs[chosen]}}, likeliest(logs)[:min(top, len(logs))]...)
}
