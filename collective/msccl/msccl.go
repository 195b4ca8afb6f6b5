// Package msccl reads and writes the XML in which MSCCL describes an algorithm:
// every GPU's thread blocks with all their steps written out.
//
//	<algo name="ring" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0">
//	  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
//	    <tb id="0" send="1" recv="1" chan="0">
//	      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
//
// A thread block sends to at most one peer and receives from at most one, and
// runs its steps in order; depid and deps name a thread block and a step of the
// same GPU that must be done before. Steps are s (send), r (receive), rcs
// (receive, copy, send), rrc (receive, reduce, copy), rrs (receive, reduce,
// send), rrcs, cpy, re (reduce) and nop. What a send says about the
// destination, and a receive about the source, is for readers only.
//
// A program of sched is one text for all ranks; here it is written out for each,
// so a file grows with ranks times steps.
package msccl

import (
	"encoding/xml"
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

type xmlAlgo struct {
	XMLName  xml.Name `xml:"algo"`
	Name     string   `xml:"name,attr"`
	Proto    string   `xml:"proto,attr"`
	Channels int      `xml:"nchannels,attr"`
	Chunks   int      `xml:"nchunksperloop,attr"`
	GPUs     int      `xml:"ngpus,attr"`
	Coll     string   `xml:"coll,attr"`
	InPlace  int      `xml:"inplace,attr"`
	OutPlace string   `xml:"outofplace,attr,omitempty"`
	Root     int      `xml:"root,attr,omitempty"`
	GPU      []xmlGPU `xml:"gpu"`

	Others []xml.Attr `xml:",any,attr"` // minBytes, redop and the like: kept, not read
}

type xmlGPU struct {
	ID  int     `xml:"id,attr"`
	In  int     `xml:"i_chunks,attr"`
	Out int     `xml:"o_chunks,attr"`
	Tmp int     `xml:"s_chunks,attr"`
	TB  []xmlTB `xml:"tb"`
}

type xmlTB struct {
	ID   int       `xml:"id,attr"`
	Send int       `xml:"send,attr"`
	Recv int       `xml:"recv,attr"`
	Chan int       `xml:"chan,attr"`
	Step []xmlStep `xml:"step"`
}

type xmlStep struct {
	S      int    `xml:"s,attr"`
	Type   string `xml:"type,attr"`
	SrcBuf string `xml:"srcbuf,attr"`
	SrcOff int    `xml:"srcoff,attr"`
	DstBuf string `xml:"dstbuf,attr"`
	DstOff int    `xml:"dstoff,attr"`
	Count  int    `xml:"cnt,attr"`
	DepTB  int    `xml:"depid,attr"`
	DepOn  int    `xml:"deps,attr"`
	HasDep int    `xml:"hasdep,attr"`
}

// types of steps by operation.
var types = map[sched.Op]string{
	sched.Send: "s", sched.Recv: "r", sched.RecvSend: "rcs", sched.RecvReduce: "rrc", sched.RecvReduceSend: "rrs",
	sched.RecvReduceCopySend: "rrcs", sched.Copy: "cpy", sched.LocalReduce: "re", sched.Wait: "nop",
}

const knownTypes = "s, r, rcs, rrc, rrs, rrcs, cpy, re, nop"

func opOf(name string) (sched.Op, error) {
	for op, t := range types {
		if t == name {
			return op, nil
		}
	}
	return 0, fmt.Errorf("unknown type %q; known: %s", name, knownTypes)
}

// colls are the names of collectives.
var colls = map[sched.Collective]string{
	sched.AllReduce: "allreduce", sched.ReduceScatter: "reduce_scatter", sched.AllGather: "allgather", sched.Broadcast: "broadcast",
	sched.Reduce: "reduce", sched.AllToAll: "alltoall", sched.Gather: "gather", sched.Scatter: "scatter",
}

const knownColls = "allreduce, reduce_scatter, allgather, broadcast, reduce, alltoall, gather, scatter"

func collOf(name string) (sched.Collective, error) {
	for c, n := range colls {
		if n == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("unknown coll %q; known: %s", name, knownColls)
}

var letters = map[sched.Buffer]string{sched.In: "i", sched.Out: "o", sched.Tmp: "s"}

func bufferOf(letter string) (sched.Buffer, error) {
	for b, l := range letters {
		if l == letter {
			return b, nil
		}
	}
	return 0, fmt.Errorf("unknown buffer %q; known: i, o, s", letter)
}

// slots are the messages that NCCL's protocols hold in a connection.
var slots = map[string]int{"Simple": 2, "LL": 8, "LL128": 8}
