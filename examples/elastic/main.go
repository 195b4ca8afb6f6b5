// A program whose ranks outlive the failure of others:
//
//	weft run --follow --nproc 4 -- go run ./examples/elastic
//
// Kill one of its processes and the others go on without being started again; the
// one that is started in its place is given the state by a rank that has it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/elastic"
)

// steps is how many to take, unless the first argument is another number.
var steps = 2000.

// job adds up numbers. Its state is how many steps it has taken, and the sum.
type job struct {
	c     *comm.Comm
	state [2]float64
}

// Form takes the state of the rank that is furthest.
func (j *job) Form(ctx context.Context, c *comm.Comm, e elastic.Epoch) error {
	j.c = c
	all := make([]float64, len(j.state)*c.Size())
	if err := comm.AllGather(ctx, c, all, j.state[:]); err != nil {
		return err
	}
	for r := range c.Size() {
		if s := all[len(j.state)*r:]; s[0] > j.state[0] {
			copy(j.state[:], s)
		}
	}
	fmt.Printf("pid %d: epoch %d, rank %d of %d, after step %.0f\n", os.Getpid(), e.Number, c.Rank(), c.Size(), j.state[0])
	return nil
}

// Step adds 1 for every number up to 840 that is this rank's, so that the sum of a
// step is 840 on any number of ranks. Nothing is kept of a step that fails.
func (j *job) Step(ctx context.Context) (last bool, err error) {
	mine := []float64{0}
	for i := j.c.Rank(); i < 840; i += j.c.Size() {
		mine[0]++
	}
	if err := comm.AllReduce(ctx, j.c, mine, comm.Sum); err != nil {
		return false, err
	}
	j.state[0]++
	j.state[1] += mine[0]
	return j.state[0] >= steps, nil
}

// Halt has nothing to save.
func (j *job) Halt(context.Context, *comm.Comm, elastic.Epoch) error { return nil }

func main() {
	if len(os.Args) > 1 {
		var err error
		if steps, err = strconv.ParseFloat(os.Args[1], 64); err != nil {
			fmt.Fprintf(os.Stderr, "%q is not a number of steps\n", os.Args[1])
			os.Exit(2)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	link, err := elastic.Connect()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	j := &job{}
	err = elastic.Run(ctx, link, j)
	if err == nil && j.c != nil && j.c.Rank() == 0 {
		fmt.Printf("sum %.0f after %.0f steps\n", j.state[1], j.state[0])
	}
	link.Close(err)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
