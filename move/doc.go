// Package move groups the packages that move data between processes and storage tiers outside of collectives:
// one-sided transfers, KV-cache blocks, the small inference engine that uses them, and OpenAI's API in front of engines.
//
//	route, infer ──► openai        the API: requests, streams, errors
//	route, infer ──► kvcache ──► kv   block names, radix tree, tiers, layouts
//	  │          │
//	  └──────────┴─────► xfer      memory, files and objects of processes that come and go
//	                      └─► run/transport, run/gpu, run/ckpt/blob
//
// Memory is written by its owner alone; readers check their lease after the last byte. A new kind of memory or store goes
// into xfer. A new serving engine is a client of kvcache, in python/weft.
//
// May import: model, run.
package move
