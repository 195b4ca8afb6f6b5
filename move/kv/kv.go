// Package kv divides attention caches (KV caches) into blocks, names, finds, evicts and moves them. It holds
// no bytes, reads no clock and starts nothing: everything here is a value.
//
//	Chain    block hashes that cover everything before, as vLLM and SGLang compute them
//	Tree     a bounded radix tree of hashes with locks and splits; it evicts leaves by a policy
//	Tiers    one tree per tier (memory, disk, objects): what to read, write and evict where
//	Absent   remembers misses for a while
//	Place    picks the worker that will answer first
//	Layout   the position of every vector of a cache; Moves are the copies between two layouts
//	Trace    requests with the blocks they share, in Mooncake's format; Generate makes them
//
// Every tier holds whole prefixes: a block is present only if all before it are. A lookup is therefore one
// walk down the tree, and eviction always takes the end of a prefix.
package kv
