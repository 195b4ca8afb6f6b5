// First is the program of docs/tutorials/first-program.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
)

var (
	program = flag.String("program", "", "`FILE` with an algorithm of your own")
	quit    = flag.Int("quit", -1, "`RANK` that ends before the sum")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "%+v\n", err) // with a line for each rank
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cfg, err := comm.FromEnv() // which rank am I, and where are the others?
	if err != nil {
		return err
	}
	c, err := comm.Join(ctx, cfg) // meet them
	if err != nil {
		return err
	}
	defer func() { c.Close() }()

	var opts []comm.Option
	if *program != "" {
		text, err := os.ReadFile(*program)
		if err != nil {
			return err
		}
		p, err := sched.Parse(string(text))
		if err != nil {
			return err
		}
		opts = append(opts, comm.Using(p))
	}
	if c.Rank() == *quit {
		os.Exit(0) // without Close: for the others, this rank died
	}

	sum := []float64{float64(c.Rank() + 1)} // each rank brings a number
	err = comm.AllReduce(ctx, c, sum, comm.Sum, opts...)
	var failure *comm.Failure
	if errors.Is(err, comm.ErrDead) && errors.As(err, &failure) {
		fmt.Printf("rank %d: rank %d died, the others go on\n", c.Rank(), failure.Culprits[0])
		if c, err = c.Shrink(ctx); err != nil {
			return err
		}
		err = comm.AllReduce(ctx, c, sum, comm.Sum) // sum is as it was
	}
	if err != nil {
		return err
	}
	fmt.Printf("rank %d of %d: the sum is %g\n", c.Rank(), c.Size(), sum[0])
	return comm.Barrier(ctx, c) // nobody leaves while another rank still needs it
}
