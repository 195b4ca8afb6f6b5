package xfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
)

// Agents talk in records (run/transport/record); the call is a request, and the number a slice, a lease, or something else. The checksum
// of a slice follows its bytes, 4 bytes long, and its header has none: it is made while the bytes are sent.
const (
	tailSize   = 4
	maxPayload = 32 << 20
)

// The kinds of frames.
const (
	fHello   = 1 + iota // the dialer: who, to whom, which session
	fWelcome            // the listener: all is well
	fLease              // a reader asks for a lease, or renews the one it has
	fLeased             // the owner gives it
	fReturn             // the reader gives it back
	fRevoke             // the owner wants it back
	fPost               // a request
	fHave               // the target has taken it; which slices are there
	fData               // a slice
	fAgain              // a slice came with a wrong checksum
	fLanded             // the target has everything, and has told its user
	fTell               // the initiator has everything it read; a notice without data
	fTold               // the target has told its user
	fFail               // the request failed at the sender
	fCancel             // the initiator gives up
	fStopped            // nothing of it lands any more
	fAsk                // describe yourself
	fBlob               // the description
	frameEnd
)

// frame is a record.
type frame struct {
	record.Header
	payload []byte
}

// parse decodes a header and checks what it says.
func (f *frame) parse(b *[record.Size]byte, k *auth.Key) error {
	f.payload = nil
	if err := f.Parse(b, k); err != nil {
		return err
	}
	switch {
	case f.Kind < fHello || f.Kind >= frameEnd:
		return fmt.Errorf("frame of unknown kind %d", f.Kind)
	case f.Length > maxPayload:
		return fmt.Errorf("payload of %d bytes, at most %d are allowed", f.Length, maxPayload)
	case f.Kind == fData && f.Length > sliceSize:
		return fmt.Errorf("slice of %d bytes, at most %d are allowed", f.Length, sliceSize)
	}
	return nil
}

// writer makes payloads, reader takes them apart.
type writer []byte

func (w *writer) num(n uint64)   { *w = binary.AppendUvarint(*w, n) }
func (w *writer) text(s string)  { w.num(uint64(len(s))); *w = append(*w, s...) }
func (w *writer) bytes(b []byte) { w.num(uint64(len(b))); *w = append(*w, b...) }

// descs writes descriptors; offsets as differences to where the last one of the list ended, as they mostly go on there.
func (w *writer) descs(n int, at func(i int) Desc) {
	w.num(uint64(n))
	var last Desc
	for i := range n {
		d := at(i)
		w.num(uint64(d.Region))
		*w = binary.AppendVarint(*w, d.Off-(last.Off+last.Len))
		w.num(uint64(d.Len))
		last = d
	}
}

func (w *writer) bitmap(m []uint64) {
	w.num(uint64(len(m)))
	for _, x := range m {
		*w = binary.LittleEndian.AppendUint64(*w, x)
	}
}

var errCut = errors.New("a frame ends too soon")

type reader struct {
	b   []byte
	err error
}

func (r *reader) num() uint64 {
	n, k := binary.Uvarint(r.b)
	if k <= 0 {
		if r.err == nil {
			r.err = errCut
		}
		return 0
	}
	r.b = r.b[k:]
	return n
}

func (r *reader) signed() int64 {
	n, k := binary.Varint(r.b)
	if k <= 0 {
		if r.err == nil {
			r.err = errCut
		}
		return 0
	}
	r.b = r.b[k:]
	return n
}

// bytes reads a length and that many bytes, which share the memory of the message.
func (r *reader) bytes(most int) []byte {
	n := r.num()
	if r.err == nil && n > uint64(most) {
		r.err = fmt.Errorf("%w: %d bytes where %d are allowed", ErrLimit, n, most)
	}
	if r.err == nil && n > uint64(len(r.b)) {
		r.err = errCut
	}
	if r.err != nil {
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) text(most int) string { return string(r.bytes(most)) }

// descs reads descriptors, each relative to the end of the last. The number is checked against what is left before
// memory is allocated for it.
func (r *reader) descs() []Desc {
	n := r.num()
	if r.err == nil && n > MaxDescs {
		r.err = fmt.Errorf("%w: %d descriptors, at most %d", ErrLimit, n, MaxDescs)
	}
	if r.err == nil && n > uint64(len(r.b)) {
		r.err = errCut // each takes 3 bytes at least
	}
	if r.err != nil {
		return nil
	}
	out := make([]Desc, n)
	var last Desc
	for i := range out {
		region, diff, length := r.num(), r.signed(), r.num()
		if region > math.MaxUint32 || length > math.MaxInt64 {
			r.err = fmt.Errorf("%w: descriptor %d: region %d, %d bytes", ErrBounds, i, region, length)
		}
		if r.err != nil {
			return nil
		}
		// What overflows is out of bounds, which is looked at later.
		last = Desc{uint32(region), last.Off + last.Len + diff, int64(length)}
		out[i] = last
	}
	return out
}

func (r *reader) bitmap() []uint64 {
	n := r.num()
	if r.err == nil && n > uint64(len(r.b)/8) {
		r.err = errCut
	}
	if r.err != nil {
		return nil
	}
	m := make([]uint64, n)
	for i := range m {
		m[i] = binary.LittleEndian.Uint64(r.b[8*i:])
	}
	r.b = r.b[8*n:]
	return m
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("%d bytes too many in a frame", len(r.b))
	}
	return r.err
}

// hello is the first frame of a dialer.
type hello struct {
	from    ID
	to      ID // generation 0 for any
	session [16]byte
	stream  int // -1 for the control connection
	flags   uint8
	pid     int
	slots   uint64 // where its table of leases lies in its share
}

const (
	helloShares = 1 << iota // the next byte comes with the descriptor of the sender's share
	helloUCX                // frames of streams go over UCX
	helloAsk                // of a session that only asks: nothing else of the sender ends with it
)

// network is what the session of a control connection goes by: one agent has one session of each with another.
func (h *hello) network(unix bool) string {
	switch {
	case h.flags&helloAsk != 0:
		return "ask"
	case h.flags&helloUCX != 0:
		return "ucx"
	case unix:
		return "unix"
	}
	return "tcp"
}

func (h *hello) put() []byte {
	var w writer
	w.text(h.from.Name)
	w.num(h.from.Generation)
	w.text(h.to.Name)
	w.num(h.to.Generation)
	w.bytes(h.session[:])
	w.num(uint64(h.stream + 1))
	w.num(uint64(h.flags))
	w.num(uint64(h.pid))
	w.num(h.slots)
	return w
}

func (h *hello) get(b []byte) error {
	r := reader{b: b}
	h.from.Name = r.text(maxName)
	h.from.Generation = r.num()
	h.to.Name = r.text(maxName)
	h.to.Generation = r.num()
	copy(h.session[:], r.bytes(16))
	h.stream = int(r.num()) - 1
	h.flags = uint8(r.num())
	h.pid = int(r.num())
	h.slots = r.num()
	return r.end()
}

// capability names a region and proves that its owner described it, and in which epoch.
type capability struct {
	region uint32
	key    uint64
	epoch  uint64
}

func (w *writer) caps(list []capability) {
	w.num(uint64(len(list)))
	for _, c := range list {
		w.num(uint64(c.region))
		*w = binary.LittleEndian.AppendUint64(*w, c.key)
		w.num(c.epoch)
	}
}

// caps reads what the sender may use of each region: the key it was given, and of which epoch.
func (r *reader) caps() []capability {
	n := r.num()
	if r.err == nil && (n > maxRegions || n*10 > uint64(len(r.b))) {
		r.err = errCut
	}
	var out []capability
	for i := uint64(0); i < n && r.err == nil; i++ {
		region := r.num()
		if len(r.b) < 8 {
			r.err = errCut
			break
		}
		c := capability{region: uint32(region), key: binary.LittleEndian.Uint64(r.b)}
		r.b = r.b[8:]
		c.epoch = r.num()
		out = append(out, c)
	}
	return out
}

// post is a request as its target hears of it.
type post struct {
	op      Op
	class   Class
	how     uint8         // howStream, howPull or howTell
	timeout time.Duration // that is left of its deadline
	low     uint64        // requests below this number are over for the initiator
	lease   uint64        // of a read by streams; of howPull what is in the slot while the source stays as it is
	slot    int           // of howPull, in the initiator's table of leases
	total   int64
	notice  []byte
	tells   bool // there is a notice, perhaps of no bytes
	caps    []capability
	remote  []Desc
	source  []Desc   // howPull: where the initiator's bytes lie; region 1 for its share, 0 for addresses of its process, sourceShown and up for shown
	shown   []*Shown // its memory of GPUs
	have    []uint64 // of a read: what is there already
}

// sourceShown is the region of the first shown memory in post.source.
const sourceShown = 2

// How the bytes of a request go.
const (
	howStream = iota // over the session's streams
	howPull          // the target of a write copies out of the initiator's memory
	howTell          // the initiator of a read copies out of the target's memory; the post says that a notice will follow
)

func (p *post) put() []byte {
	w := make(writer, 0, 64+8*len(p.remote)+8*len(p.source)+len(p.notice))
	w.num(uint64(p.op))
	w.num(uint64(p.class))
	w.num(uint64(p.how))
	w.num(uint64(p.timeout))
	w.num(p.low)
	w.num(p.lease)
	w.num(uint64(p.slot))
	w.num(uint64(p.total))
	if p.tells {
		w.num(1)
	} else {
		w.num(0)
	}
	w.bytes(p.notice)
	w.caps(p.caps)
	w.descs(len(p.remote), func(i int) Desc { return p.remote[i] })
	w.descs(len(p.source), func(i int) Desc { return p.source[i] })
	w.bitmap(p.have)
	for _, s := range p.shown { // as many as follow: agents of before know none
		w.text(s.GPU)
		w.bytes(s.Handle)
		w.num(uint64(s.Off))
	}
	return w
}

// get decodes a request and checks what can be checked without the regions: known operation, class and path, a time
// limit, and pieces that add up to the total.
func (p *post) get(b []byte) error {
	r := reader{b: b}
	p.op, p.class, p.how = Op(r.num()), Class(r.num()), uint8(r.num())
	p.timeout = time.Duration(r.num())
	p.low, p.lease, p.slot, p.total = r.num(), r.num(), int(r.num()), int64(r.num())
	p.tells = r.num() != 0
	p.notice = append([]byte(nil), r.bytes(maxNotice)...)
	p.caps = r.caps()
	p.remote = r.descs()
	p.source = r.descs()
	p.have = r.bitmap()
	for r.err == nil && len(r.b) > 0 && len(p.shown) < maxRegions {
		p.shown = append(p.shown, &Shown{r.text(maxName), append([]byte(nil), r.bytes(gpu.HandleSize)...), int64(r.num())})
	}
	if err := r.end(); err != nil {
		return err
	}
	sum := int64(0)
	for _, d := range p.remote {
		if d.Len <= 0 || d.Len > maxTransfer-sum {
			return fmt.Errorf("%w: %d bytes", ErrBounds, d.Len)
		}
		sum += d.Len
	}
	switch {
	case p.op > Write || p.class >= classes || p.how > howTell || p.timeout <= 0 || p.timeout > maxTimeout:
		return fmt.Errorf("a post with operation %d, class %d, way %d, time limit %s", p.op, p.class, p.how, p.timeout)
	case p.total != sum || sum == 0:
		return fmt.Errorf("%w: the request says %d bytes, its pieces have %d", ErrLength, p.total, sum)
	}
	return nil
}

// failPayload says why a request failed, and which agent is at fault.
func failPayload(err error, who string) []byte {
	var w writer
	w.num(uint64(Code(err)))
	w.text(who)
	text := err.Error()
	if len(text) > 4096 {
		text = text[:4096]
	}
	w.text(text)
	return w
}

func parseFail(b []byte) (who string, err error) {
	r := reader{b: b}
	code := uint8(r.num())
	who = r.text(maxName)
	text := r.text(4096)
	if err := r.end(); err != nil {
		return "", err
	}
	return who, toldError(code, text)
}
