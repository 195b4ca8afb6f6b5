package ckpt_test

import (
	"context"
	"fmt"
	"os"

	"github.com/weft-fabric/weft/run/ckpt"
)

// Two ranks that hold the same weights save them between them, while they go on;
// one rank, later, resumes from what they wrote.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "ckpt")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	weights := []float32{1, 2, 3, 4, 5, 6}
	const world = 2
	for rank := range world {
		s, err := ckpt.Open(ctx, dir, ckpt.Options{Keep: 2, Every: 1000})
		if err != nil {
			panic(err)
		}
		mine := ckpt.Of("w", weights, 2, 3).Share(rank, world)
		if err := s.Async(ctx, ckpt.Meta{Step: 100, Data: 6400, Rank: rank, World: world, Run: "first"}, []ckpt.Tensor{mine}); err != nil {
			panic(err)
		}
		if err := s.Close(); err != nil { // training would go on here
			panic(err)
		}
	}

	s, err := ckpt.Open(ctx, dir, ckpt.Options{})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	column := make([]float32, 2)
	t := ckpt.Of("w", column, 2, 1)
	t.Global, t.Offset = []int{2, 3}, []int{0, 1}
	m, damaged, err := s.Resume(ctx, []ckpt.Tensor{t})
	fmt.Println(m.Step, m.Data, m.World, column, len(damaged), err)
	// Output: 100 6400 2 [2 5] 0 <nil>
}
