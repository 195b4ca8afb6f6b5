package xfer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/weft-fabric/weft/run/transport/shm"
)

// Remote is a region of a peer.
type Remote struct {
	ID     uint32 `json:"id"`
	Name   string `json:"name"`
	Kind   Kind   `json:"kind"`
	Size   int64  `json:"size"`
	Access Access `json:"access"`
	Key    uint64 `json:"key"`
	Epoch  uint64 `json:"epoch,omitempty"` // what was reclaimed later cannot be reached by this description
	Share  int64  `json:"share"`           // where it lies in its agent's shared memory; -1 if it does not
	Addr   uint64 `json:"addr,omitempty"`  // of host memory in its process
	Shown  *Shown `json:"shown,omitempty"` // of GPU memory, as other processes of the host find it
}

// At describes bytes of the region.
func (r *Remote) At(off, n int64) Desc { return Desc{r.ID, off, n} }

// description is what a blob holds.
type description struct {
	Version    int      `json:"version"`
	Name       string   `json:"name"`
	Generation uint64   `json:"generation"`
	Host       string   `json:"host"`
	Local      string   `json:"local,omitempty"`
	Addrs      []string `json:"addrs"`
	Regions    []Remote `json:"regions"`
	MAC        []byte   `json:"mac"` // by the agent's token, over all the rest
}

// sign makes the MAC of a description. Who has another token, as another tenant has, can neither make up a description nor use one that it
// found. Fields of JSON cannot run into one another.
func (d description) sign(token string) []byte {
	d.MAC = nil
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte("weft description\x00"))
	if err := json.NewEncoder(m).Encode(d); err != nil {
		panic(err) // strings and numbers always encode
	}
	return m.Sum(nil)
}

// describe is the region as peers know it. A private agent does not say where its memory lies.
func (r *Region) describe() Remote {
	r.mu.Lock()
	epoch := r.epochs.now
	r.mu.Unlock()
	x := Remote{ID: r.id, Name: r.name, Kind: r.Kind(), Size: r.Size(), Access: r.access, Key: r.key, Epoch: epoch, Share: r.share}
	if r.agent.cfg.Private {
		return x
	}
	if r.mem != nil {
		x.Addr = r.address()
	}
	if d, ok := (&place{store: r.store}).device(); ok {
		x.Shown, _ = d.show() // what is not shown goes over sockets
	}
	return x
}

// Describe is what a peer must know to reach this agent and regions of it, all if none is given. Whoever has it
// and the token may use the regions as their access says.
func (a *Agent) Describe(regions ...*Region) []byte {
	d := description{Version: descriptionVersion, Name: a.id.Name, Generation: a.id.Generation, Host: shm.Machine(), Addrs: a.Addrs(),
		Regions: []Remote{}}
	if a.local != nil {
		d.Local = a.local.Addr().String()
	}
	if len(regions) == 0 {
		a.mu.Lock()
		for _, r := range a.regions {
			if r.access != Own {
				regions = append(regions, r)
			}
		}
		a.mu.Unlock()
	}
	for _, r := range regions {
		d.Regions = append(d.Regions, r.describe())
	}
	slices.SortFunc(d.Regions, func(x, y Remote) int { return int(x.ID) - int(y.ID) })
	d.MAC = d.sign(a.cfg.Token)
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return b
}

// Peer is another agent, in one of its lives.
type Peer struct {
	agent *Agent
	id    ID
	host  string
	local string
	addrs []string

	mu      sync.Mutex
	regions map[uint32]*Remote
	names   map[string]*Remote
	stale   error // a later life is known
	paths   map[string]*Route
}

// Open makes a peer known by what it described. A later description of the same life adds regions; one of a
// later life (life.go) makes the earlier one stale. Nothing is sent until the first request. It returns at once, unless a life with a
// larger generation seems to be there: whether that has ended takes a moment to hear.
func (a *Agent) Open(blob []byte) (*Peer, error) {
	var d description
	if err := json.Unmarshal(blob, &d); err != nil {
		return nil, fmt.Errorf("description of an agent, %d bytes: %w", len(blob), err)
	}
	switch {
	case d.Version != descriptionVersion:
		return nil, fmt.Errorf("description of an agent of version %d; this one is of version %d: run the same version of weft on both sides",
			d.Version, descriptionVersion)
	case !hmac.Equal(d.MAC, d.sign(a.cfg.Token)):
		return nil, fmt.Errorf("description of agent %q: %w", d.Name, ErrToken)
	case d.Name == "" || len(d.Name) > maxName || d.Generation == 0:
		return nil, fmt.Errorf("description of an agent: name %q, generation %d", d.Name, d.Generation)
	case len(d.Regions) > maxRegions:
		return nil, fmt.Errorf("description of agent %s: %w: %d regions", d.Name, ErrLimit, len(d.Regions))
	}
	for _, r := range d.Regions {
		if r.Size < 0 || r.Size > maxRegion || r.Kind >= kinds || r.ID == 0 || r.Share < -1 || r.Share > maxRegion || r.Addr > math.MaxInt64 {
			return nil, fmt.Errorf("description of agent %s: region %q: kind %d, %d bytes, number %d", d.Name, r.Name, r.Kind, r.Size, r.ID)
		}
	}
	var p *Peer
	err := a.unlessThere(func() (err error) {
		p, err = a.know(&d)
		return err
	})
	return p, err
}

// know enters what an agent described.
func (a *Agent) know(d *description) (*Peer, error) {
	id := ID{d.Name, d.Generation}
	var old []*link // of an earlier life
	var stale error
	defer func() {
		for _, l := range old {
			l.close(stale)
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, ErrClosed
	}
	p := a.peers[d.Name]
	if p != nil && p.id != id {
		if err := a.lives.follows(id, p.id, p.there()); err != nil {
			return nil, err
		}
		if p.id.Generation < id.Generation {
			a.lives.end(p.id)
		}
		stale = fmt.Errorf("agent %s: %w: generation %x; it has started anew as %x", d.Name, ErrStale, p.id.Generation, d.Generation)
		p.mu.Lock()
		p.stale = stale
		p.mu.Unlock()
		old = a.takeLinks(p.id)
		p = nil
	}
	if p == nil {
		p = &Peer{agent: a, id: id, host: d.Host, local: d.Local, addrs: d.Addrs, regions: map[uint32]*Remote{}, names: map[string]*Remote{},
			paths: map[string]*Route{}}
		a.peers[d.Name] = p
	}
	p.learn(d.Regions)
	return p, nil
}

// learn enters regions, but for earlier descriptions of them that came late.
func (p *Peer) learn(regions []Remote) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range regions {
		r := &regions[i]
		if known := p.regions[r.ID]; known == nil || known.Epoch <= r.Epoch {
			p.regions[r.ID], p.names[r.Name] = r, r
		}
	}
}

// Forget makes a peer unknown: what was prepared with it fails.
func (a *Agent) Forget(p *Peer) {
	a.mu.Lock()
	if a.peers[p.id.Name] == p {
		delete(a.peers, p.id.Name)
	}
	ls := a.takeLinks(p.id)
	a.mu.Unlock()
	p.mu.Lock()
	p.stale = fmt.Errorf("agent %s: %w: it was forgotten", p.id.Name, ErrAgent)
	p.mu.Unlock()
	for _, l := range ls {
		l.close(fmt.Errorf("agent %s was forgotten", p.id.Name))
	}
}

// takeLinks takes the ways to a peer out of the map, to be closed. The caller holds mu.
func (a *Agent) takeLinks(id ID) []*link {
	var ls []*link
	for k, l := range a.links {
		if k.id == id {
			ls = append(ls, l)
			delete(a.links, k)
		}
	}
	return ls
}

// ID is the peer's name and generation.
func (p *Peer) ID() ID { return p.id }

// Region finds a region of the peer by name.
func (p *Peer) Region(name string) (*Remote, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.names[name]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("agent %s: region %q: %w", p.id.Name, name, ErrRegion)
}

// Regions are all that are known, by number.
func (p *Peer) Regions() []*Remote {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*Remote, 0, len(p.regions))
	for _, r := range p.regions {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *Remote) int { return int(a.ID) - int(b.ID) })
	return out
}

func (p *Peer) region(id uint32) (*Remote, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stale != nil {
		return nil, p.stale
	}
	if r := p.regions[id]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("agent %s: region %d: %w", p.id.Name, id, ErrRegion)
}

// check says whether the peer is known under this generation still.
func (p *Peer) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stale
}
