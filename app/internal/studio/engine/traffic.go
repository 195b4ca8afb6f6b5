package engine

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/tune"
)

// trafficQuestion asks what one operation of a job sends over the cables of its NICs.
type trafficQuestion struct {
	File
	Op    string   `json:"op"`
	Bytes int64    `json:"bytes"`
	Ranks []string `json:"ranks"` // the GPU of each rank, such as n3:gpu5
}

// cable is one direction of a NIC's cable.
type cable struct {
	A     int    `json:"a"`
	B     int    `json:"b"`
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

func namedGPUs(g *topo.Graph, names []string) (gpus []topo.NodeID, err error) {
	for _, name := range names {
		id, err := g.Lookup(name)
		if err != nil || g.Nodes[id].Kind != topo.GPU || slices.Contains(gpus, id) {
			return nil, fmt.Errorf("ranks: %q is no GPU of the cluster file, or is named twice", name)
		}
		gpus = append(gpus, id)
	}
	return gpus, nil
}

// traffic simulates the algorithm that NCCL would choose, on the GPUs of the job, and counts the bytes of every cable.
func (j *job) traffic(q trafficQuestion) (any, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return nil, err
	}
	op, err := sched.ParseCollective(q.Op)
	if err != nil {
		return nil, err
	}
	a := &asked{built: b, op: op, size: unit.Bytes(q.Bytes)}
	if q.Bytes < 1 || q.Bytes > mostBytes || len(q.Ranks) < 2 || len(q.Ranks) > mostBounded {
		return nil, fmt.Errorf("%s of %d bytes on %d ranks; want 1 byte to %s, and 2 to %d ranks",
			op, q.Bytes, len(q.Ranks), unit.Bytes(mostBytes), mostBounded)
	}
	if a.gpus, err = namedGPUs(b.c.Graph, q.Ranks); err != nil {
		return nil, err
	}
	if a.o, err = j.options(Collective{}, b); err != nil {
		return nil, err
	}
	j.tell(Progress{Text: "predicting what cables carry"})
	if err := j.ctx.Err(); err != nil { // a small simulation does not ask
		return nil, err
	}
	return a.cables()
}

// cables runs the program and lists what passes the cables of NICs.
func (a *asked) cables() (any, error) {
	shape := a.shape()
	job, _, err := a.named(shape)
	if err != nil {
		return nil, err
	}
	if job.Place, err = sim.PlaceOn(a.c.Graph, job.Program, a.gpus); err != nil {
		return nil, err
	}
	f, err := a.run(shape, job)
	if err != nil {
		return nil, reason(err)
	}
	list := []cable{}
	for _, l := range f.Result.Links() {
		if l.Tier != sim.Leaf || l.Link == topo.None {
			continue
		}
		from, to := a.c.Graph.Links[l.Link].Ends(l.Forward)
		list = append(list, cable{int(from), int(to), l.Name, int64(l.Bytes)})
	}
	return map[string]any{"algo": shape, "cables": list, "time_ps": int64(f.Result.Time)}, nil
}

// shape is weft's program for the algorithm that NCCL would choose; ring where it has none.
func (a *asked) shape() string {
	if m, err := tune.NewNCCL(a.c.Graph, a.gpus, a.c.Catalog, tune.NCCLOptions{}); err == nil {
		if shape, ok := ncclShape[m.Predict(a.op, a.size).Algo]; ok {
			return shape
		}
	}
	for _, name := range []string{"ring", "pairwise"} {
		if slices.Contains(algorithms()[a.op.String()], name) {
			return name
		}
	}
	return "ring"
}
