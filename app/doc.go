// Package app groups what people start: the command line and the larger commands behind it.
//
//	main ──► cli ──┬──► internal/up      an elastic training run on this machine
//	               ├──► internal/bench   nccl-tests' tables, ours and other libraries'
//	               ├──► internal/studio  one page to design, simulate, plan and watch
//	               └──► the other areas
//
// A verb declares its flags, calls one function and prints the result. A verb that grows past that hides a package.
//
// May import: model, collective, view, predict, run, fabric, move, observe.
package app
