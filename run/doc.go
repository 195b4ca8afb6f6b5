// Package run groups the packages that move bytes between ranks: transports, reductions, GPUs, communicators, launchers,
// the coordinator, elastic jobs, checkpoints and the small trainer.
//
//	launch, elastic ──► processes          coord ──► who is a member, in which epoch
//	                       │                  │
//	                       ▼                  ▼
//	train ──► comm ──► transport ──┬─ shm    ranks of one host
//	            │                  ├─ tcp    hosts: match (calls) on top of wire (links, over several streams and rails)
//	            ▼                  ├─ ucx    RDMA, if the library is installed
//	          reduce, gpu          └─ mixed  shm inside hosts, tcp or ucx between them
//
// The promise of this area: a call that returns nil has its complete, correct result on every rank. Every wait has a
// deadline, and the error names the rank that holds things up.
//
// A new transport goes into transport and must pass internal/conform. A new launcher or scheduler goes into
// launch/place. A new reduction kernel goes into reduce.
//
// May import: model, collective, view, predict.
package run
