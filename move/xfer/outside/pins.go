package outside

import (
	"sync"
	"unsafe"

	"github.com/weft-fabric/weft/run/gpu"
)

// span is memory of this process.
type span struct {
	at uint64
	n  int64
}

func (s span) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), s.at)), s.n)
}

// pins lets GPUs copy from and to registered host memory without a stop in between, where the driver allows it. Where it does
// not, copies go through buffers of their own. One agent's host memory is copied to another agent's GPU memory, so the table is
// the process's.
type pins struct {
	mu    sync.Mutex
	on    gpu.Device // which pins; memory that one GPU pins is pinned for all. nil: no GPU is in use
	spans map[span]*pin
}

type pin struct {
	users int
	held  bool // the driver pinned it for us
}

var pinned = pins{spans: map[span]*pin{}}

// use is told of a GPU in use.
func (p *pins) use(d gpu.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on != nil {
		return
	}
	p.on = d
	for s, x := range p.spans {
		x.held = d.Register(s.bytes()) == nil
	}
}

func (p *pins) add(s span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.spans[s]
	if x == nil {
		x = &pin{held: p.on != nil && p.on.Register(s.bytes()) == nil}
		p.spans[s] = x
	}
	x.users++
}

// remove must come before the memory is freed: the GPU would go on using its old pages.
func (p *pins) remove(s span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.spans[s]
	if x.users--; x.users > 0 {
		return
	}
	if x.held {
		_ = p.on.Unregister(s.bytes())
	}
	delete(p.spans, s)
}
