package xfer

import (
	"fmt"
	"sync"

	"github.com/weft-fabric/weft/run/gpu"
)

// Memory of a GPU goes between processes of a host by the GPU itself (path "gpu"): its owner shows the segment to the others
// (CUDA's IPC handles), and the owner of the destination copies out of it. Both need memory of that GPU registered.
//
// Tests run it with the GPU in software; on an H200 it was timed (docs/how-to/transfers.md).

// Shown is memory of a GPU as another process of the host finds it.
type Shown struct {
	GPU    string `json:"gpu"`    // which one
	Handle []byte `json:"handle"` // of the segment
	Off    int64  `json:"off"`    // in it
}

// show names the memory to other processes; nil, and why, where that cannot be.
func (x *Device) show() (*Shown, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.shown == nil && x.hidden == nil {
		s, err := x.gpu.Segment(x.at, int(x.size))
		var h gpu.Handle
		if err == nil {
			h, err = x.gpu.Export(s)
		}
		if err != nil {
			x.hidden = err
		} else {
			x.shown = &Shown{x.gpu.Info().ID, h[:], int64(x.at - s.Base)}
		}
	}
	return x.shown, x.hidden
}

// onGPU is an own region's memory of a GPU, which makes the copies: that of the destination if it is there, nil if there is none.
func (a *Agent) onGPU(id string, to *place) *Device {
	if d, ok := to.device(); ok && d.gpu.Info().ID == id {
		return d
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		if d, ok := (&place{store: r.store}).device(); ok && d.gpu.Info().ID == id {
			return d
		}
	}
	return nil
}

// imports are segments of a peer that are mapped here, until its session is lost and nobody copies out of them.
type imports struct {
	mu    sync.Mutex
	open  map[segment]gpu.Ptr
	users int
	gone  bool
}

// segment is memory of another process as a GPU of this one sees it.
type segment struct {
	handle gpu.Handle
	gpu    gpu.Device
}

func (m *imports) use() {
	m.mu.Lock()
	m.users++
	m.mu.Unlock()
}

func (m *imports) unuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users--
	m.close()
}

func (m *imports) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	m.close()
}

// close unmaps what nobody needs any more. The caller holds mu.
func (m *imports) close() {
	if m.gone && m.users == 0 {
		for s, at := range m.open {
			_ = s.gpu.Drop(at)
		}
		m.open = nil
	}
}

// device maps shown memory and gives n bytes of it as storage whose copies d makes.
func (m *imports) device(d *Device, s *Shown, n int64) (*Device, error) {
	if len(s.Handle) != gpu.HandleSize || s.Off < 0 || n < 0 {
		return nil, fmt.Errorf("%w: a handle of %d bytes, %d bytes at %d", ErrBounds, len(s.Handle), n, s.Off)
	}
	key := segment{gpu.Handle(s.Handle), d.gpu}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return nil, ErrLost
	}
	at, ok := m.open[key]
	if !ok {
		var err error
		if at, err = d.gpu.Import(key.handle); err != nil {
			return nil, err
		}
		if m.open == nil {
			m.open = map[segment]gpu.Ptr{}
		}
		m.open[key] = at
	}
	if _, err := d.gpu.Segment(at+gpu.Ptr(s.Off), int(n)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBounds, err)
	}
	return &Device{gpu: d.gpu, at: at + gpu.Ptr(s.Off), size: n, lanes: d.lanes, of: d}, nil
}

// visible says why the source of a request cannot be copied by the GPU; nothing if it can.
func (r *Request) visible(s *session) string {
	switch {
	case r.t.Op == Read && s.slots == nil:
		return "its table of leases cannot be mapped: " + s.noShare
	case r.t.Op == Write && !s.mapShare:
		return "it could not map our table of leases"
	}
	var last uint32
	for i, x := range r.pairs {
		d := x.remote
		if r.t.Op == Write {
			d = x.local
		}
		if i > 0 && d.Region == last {
			continue
		}
		last = d.Region
		if r.t.Op == Read {
			m, err := r.peer.region(d.Region)
			if err != nil {
				return err.Error()
			}
			if why := r.importable(s, m); why != "" {
				return why
			}
			continue
		}
		g := r.t.Local.own[d.Region]
		own, ok := (&place{store: g.store}).device()
		if !ok {
			return fmt.Sprintf("region %q is a %s, not memory of a GPU", g.name, g.Kind())
		}
		shown, err := own.show()
		if err != nil {
			return fmt.Sprintf("region %q cannot be shown: %v", g.name, err)
		}
		// Who has memory of this GPU that can be mapped here can map ours.
		why := fmt.Sprintf("agent %s described no memory of this GPU", r.peer.id.Name)
		for _, m := range r.peer.Regions() {
			if m.Shown != nil && m.Shown.GPU == shown.GPU {
				if why = r.importable(s, m); why == "" {
					break
				}
			}
		}
		if why != "" {
			return why
		}
	}
	return ""
}

// importable says why this process cannot map a peer's GPU memory; nothing if it can.
func (r *Request) importable(s *session, m *Remote) string {
	switch {
	case m.Kind != GPU:
		return fmt.Sprintf("region %q is a %s, not memory of a GPU", m.Name, m.Kind)
	case m.Shown == nil:
		return fmt.Sprintf("region %q is not shown to other processes", m.Name)
	}
	d := r.agent.onGPU(m.Shown.GPU, r.first())
	if d == nil {
		return fmt.Sprintf("no own region is on the GPU of region %q", m.Name)
	}
	if _, err := s.imports.device(d, m.Shown, m.Size); err != nil {
		return fmt.Sprintf("region %q cannot be mapped: %v", m.Name, err)
	}
	return ""
}

// first is where the first own bytes of the request lie.
func (r *Request) first() *place { return &place{store: r.t.Local.own[r.pairs[0].local.Region].store} }
