// Survive is a program whose ranks go on when one of them dies:
//
//	go build -o /tmp/survive ./examples/survive
//	go run . run -n 4 --keep-going -- /tmp/survive
//
// Rank 1 kills itself in the middle. The others shrink their communicator and do the rest without it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"syscall"

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
	for step := 0; step < 10; {
		if step == 5 && c.Epoch() == 0 && c.Rank() == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		ones := []float32{1}
		if err := comm.AllReduce(ctx, c, ones, comm.Sum); err != nil {
			if c.Rank() == 0 {
				fmt.Printf("step %d: %v\n", step, err)
			}
			if c, err = c.Shrink(ctx); err != nil {
				log.Fatal(err)
			}
			continue // the step is done again, by those that are left
		}
		step++
		if c.Rank() == 0 {
			fmt.Printf("step %d: %g ranks\n", step, ones[0])
		}
	}
	if err := comm.Barrier(ctx, c); err != nil {
		log.Fatal(err)
	}
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
}
