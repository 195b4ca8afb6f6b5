// Package predict groups the packages that say how long something takes and how much memory, money or time between
// failures it needs, without running it.
//
//	programs + graph  ──► sim            one collective, message by message
//	                      ├─ sim/train   a training step with contention
//	                      ├─ sim/serve   requests against an inference cluster
//	                      ├─ sim/chakra  ASTRA-sim's execution traces
//	                      └─ sim/failures  a year of failures, by Monte Carlo
//	NCCL's choices    ──► tune           NCCL's own model, fitted to public measurements
//	measured links    ──► cost           the runtime's link model; comm chooses algorithms with it
//	model + cluster   ──► plan           step time, memory and the best layout
//
// A prediction carries its error, measured on data that was left out of the fit.
//
// May import: model, collective, view.
package predict
