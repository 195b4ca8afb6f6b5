// Package bench measures weft's collectives as nccl-tests does, and compares them with
// Open MPI, MPICH, Gloo and the memory's limit.
//
//	Config     what to measure, as nccl-tests' flags say it
//	Measure    starts the ranks, collects and verifies
//	Rank       what a rank does
//	Compare    competitors interleaved in one run
//	Serve      what one of our ranks does in a comparison
package bench

// buffersEnv tells a rank which buffers to use: Registered or Plain.
const buffersEnv = "WEFT_BENCH_BUFFERS"
