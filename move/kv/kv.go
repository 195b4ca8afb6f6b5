// Package kv knows how caches of attention (KV caches) are cut into blocks, named, found, kept
// and moved. It holds no bytes, reads no clock and starts nothing: everything here is a value.
//
//	Chain    hashes of blocks, each with everything before it, as vLLM and SGLang compute them
//	Tree     a radix tree of hashes with locks and splits, bounded; it evicts leaves by a policy
//	Tiers    one tree a tier (memory, disk, objects): what is read where, what is written, what goes
//	Absent   what is known not to be there, for a while
//	Place    which worker answers a request soonest
//	Layout   where every piece of a cache lies; Moves are the copies from one layout to another
//	Trace    requests with the blocks they share, in Mooncake's format; Generate makes them
//
// Every tier holds whole prefixes: a block is there only if all before it are. So a lookup is one
// walk down the tree, and what is evicted first is always at the end of a prefix.
package kv
