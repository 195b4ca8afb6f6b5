// Package model groups the packages that describe what exists: units, hardware, hosts, cables, clusters and the models
// that run on them.
//
//	cluster file ──► cluster ──► topo.Graph ◄── topo/format   (NCCL XML, ibnetdiscover, Slurm, ...)
//	                    │            ▲
//	                    │            └───────── topo/build    (hosts as sold, fabrics by family, presets)
//	                    └──► work                             (what a model computes and sends in one step)
//
// A new switch, GPU or cable goes into topo/catalog. A new host or fabric family goes into topo/build. A new file format
// for topologies goes into topo/format. A new key of the cluster file goes into cluster.
//
// Everything here is a value: no clock, no network, no goroutines.
//
// May import: no other area.
package model
