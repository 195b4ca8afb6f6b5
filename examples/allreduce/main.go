// Allreduce is a program of ranks: start it with
//
//	go build -o /tmp/allreduce ./examples/allreduce
//	go run . run -n 4 -- /tmp/allreduce
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/weft-fabric/weft/run/comm"
)

func main() {
	ctx := context.Background()
	cfg, err := comm.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	c, err := comm.Join(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	// Memory from Alloc is seen by the other ranks: they add straight out of it.
	// Any other slice works as well, with a copy.
	gradients, err := comm.Alloc[float32](c, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	for i := range gradients {
		gradients[i] = float32(c.Rank() + 1)
	}
	if err := comm.AllReduce(ctx, c, gradients, comm.Avg); err != nil {
		log.Fatalf("%+v", err) // names the ranks at fault and what they were doing
	}
	fmt.Printf("rank %d of %d over %s: mean %g\n", c.Rank(), c.Size(), c.Transport(), gradients[0])

	// Ranks with the same color form a group; it costs no connection.
	half, err := c.Split(ctx, c.Rank()%2, 0)
	if err != nil {
		log.Fatal(err)
	}
	defer half.Close()
	sum := []int64{int64(c.Rank())}
	if err := comm.AllReduce(ctx, half, sum, comm.Sum); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rank %d is %d of %d in its half, whose ranks add up to %d\n", c.Rank(), half.Rank(), half.Size(), sum[0])
}
