// Package collective groups the packages that say what ranks should do: the schedule language, the interpreter that
// gives a program its meaning, the prover, the algorithms and the synthesiser.
//
//	algo ────┐
//	msccl ───┼──► sched.Program ──► step ──┬──► verify          symbols: is the result right on every rank?
//	synth ───┘                             ├──► predict/sim     time: how long does it take?
//	                                       └──► run/comm        bytes: the result
//
// step alone knows what a program means. The prover, the simulator and the runtime all drive the same interpreter, so
// the schedule that is proven is the one that is simulated and the one that runs.
//
// A new algorithm goes into algo. A new text or XML dialect of programs gets a package beside msccl. Better schedules for
// a given machine, and bounds on what any schedule can reach, go into synth.
//
// May import: model.
package collective
