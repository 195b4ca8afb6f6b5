// Package bench measures collectives: ours in nccl-tests' manner, and ours
// beside Open MPI, MPICH, Gloo and what the memory allows.
//
//	Config     what to measure, as nccl-tests' flags say it
//	Measure    starts the ranks, collects and verifies
//	Rank       what a rank does
//	Compare    competitors taking turns in one run
//	Serve      what one of our ranks does in a comparison
package bench

// buffersEnv tells a rank which buffers to use: Registered or Plain.
const buffersEnv = "WEFT_BENCH_BUFFERS"
