package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
)

// card is what a rank tells the others when they meet.
type card struct {
	Info gpu.Info `json:"info"`
	Pid  int      `json:"pid"`
	Host string   `json:"host"` // machines and their containers: process numbers mean something inside one
	Way  Way      `json:"way"`  // that it demands
	// Trial is memory that the others try to map; Word is what is written there.
	Trial  []byte `json:"trial,omitempty"`
	Hidden string `json:"hidden,omitempty"` // why it cannot be mapped
	Word   uint64 `json:"word"`
	Broken string `json:"broken,omitempty"` // why the rank has no GPU
}

// cardSize is what a card may take.
const cardSize = 2048

// NoGPU is the error of a group one of whose ranks has no GPU.
type NoGPU struct {
	Rank int
	Why  string
	Err  error // on that rank; nil on the others
}

func (e *NoGPU) Error() string { return fmt.Sprintf("rank %d has no GPU: %s", e.Rank, e.Why) }

// Unwrap is why; ranks that have a GPU know no more than that another has none.
func (e *NoGPU) Unwrap() error {
	if e.Err != nil {
		return e.Err
	}
	return gpu.ErrNoDevice
}

// NotDirect is the error of a group whose ranks demand the direct way and cannot go it.
type NotDirect struct{ Why string }

func (e *NotDirect) Error() string {
	return fmt.Sprintf("the direct way between GPUs was demanded and is not there: %s; WEFT_CUDA=auto goes through the host instead", e.Why)
}

// Unwrap matches what all of them have in common.
func (e *NotDirect) Unwrap() error { return gpu.ErrNotShown }

// meet opens the GPU and agrees with the other ranks on a way.
func (g *Group) meet(ctx context.Context, open func() (gpu.Device, error)) error {
	mine := card{Pid: os.Getpid(), Host: hostname(), Way: g.cfg.Way, Word: uint64(os.Getpid())<<20 | uint64(g.Rank())}
	dev, broken := open()
	if broken == nil {
		g.dev = dev
		mine.Info = dev.Info()
		if g.gpuQ, broken = dev.Queue(); broken == nil {
			g.backQ, broken = dev.Queue()
		}
	}
	var trial gpu.Ptr
	if broken == nil {
		trial, broken = g.trial(ctx, &mine)
	}
	if broken != nil {
		mine.Broken = broken.Error()
	}
	cards, err := g.tell(ctx, &mine)
	if err != nil {
		return err
	}
	for r, c := range cards {
		if c.Broken != "" {
			e := &NoGPU{Rank: r, Why: c.Broken}
			if r == g.Rank() {
				e.Err = broken
			}
			return e
		}
	}
	for _, c := range cards {
		g.infos = append(g.infos, c.Info)
	}
	way, reason, err := g.choose(ctx, cards)
	if err != nil {
		return err
	}
	if trial != 0 {
		if err := dev.Free(trial); err != nil {
			return err
		}
	}
	g.way, g.reason = way, reason
	if g.Size() == 1 {
		return nil
	}
	if way == Direct {
		g.direct, err = newDirect(ctx, g, cards)
	} else {
		err = g.stage(ctx, cards)
	}
	return err
}

// stage makes ready for the staged way.
func (g *Group) stage(ctx context.Context, cards []card) error {
	s, err := newStaged(ctx, g)
	if err != nil {
		return err
	}
	g.staged = s
	sums, err := s.choose(ctx, cards)
	if err != nil {
		return err
	}
	g.reason += "; " + sums
	return nil
}

// trial writes a word to memory that the others try to map.
func (g *Group) trial(ctx context.Context, mine *card) (gpu.Ptr, error) {
	p, err := g.dev.Alloc(8)
	if err != nil {
		return 0, err
	}
	word := word(mine.Word)
	if err := g.backQ.In(p, word[:]); err != nil {
		return p, err
	}
	if err := g.wait(ctx, g.backQ); err != nil {
		return p, err
	}
	s, err := g.dev.Segment(p, 8)
	if err != nil {
		return p, err
	}
	if h, err := g.dev.Export(s); err != nil {
		mine.Hidden = err.Error()
	} else {
		mine.Trial = h[:]
	}
	return p, nil
}

// tell gives every rank's card to all.
func (g *Group) tell(ctx context.Context, mine *card) ([]card, error) {
	text, err := json.Marshal(mine)
	if err == nil && len(text) > cardSize {
		mine.Broken, mine.Hidden = clip(mine.Broken), clip(mine.Hidden)
		text, err = json.Marshal(mine)
	}
	if err != nil {
		return nil, err
	}
	own, all := make([]byte, cardSize), make([]byte, cardSize*g.Size())
	copy(own, text)
	if err := comm.AllGather(ctx, g.c, all, own); err != nil {
		return nil, err
	}
	cards := make([]card, g.Size())
	for r := range cards {
		if err := json.Unmarshal(bytes.TrimRight(all[r*cardSize:][:cardSize], "\x00"), &cards[r]); err != nil {
			return nil, fmt.Errorf("what rank %d tells of its GPU: %w", r, err)
		}
	}
	return cards, nil
}

// clip keeps a text short.
func clip(s string) string { return s[:min(len(s), 400)] }

// choose finds a way that all ranks can go. The direct one is tried: every rank maps the trial memory of all others and reads it.
func (g *Group) choose(ctx context.Context, cards []card) (Way, string, error) {
	demanded := Auto
	for r, c := range cards {
		if c.Way != Auto && demanded != Auto && c.Way != demanded {
			return "", "", fmt.Errorf("rank %d demands path %s, another rank %s; set the same WEFT_CUDA on all ranks", r, c.Way, demanded)
		}
		if c.Way != Auto {
			demanded = c.Way
		}
	}
	if demanded == Staged {
		return Staged, "it was demanded (WEFT_CUDA or --require)", nil
	}
	why := ""
	for r, c := range cards {
		switch {
		case g.Size() > ptx.Most:
			why = fmt.Sprintf("%d ranks, and kernels take %d", g.Size(), ptx.Most)
		case c.Host != cards[0].Host:
			why = fmt.Sprintf("rank %d is on %s, rank 0 on %s", r, c.Host, cards[0].Host)
		case c.Hidden != "":
			why = fmt.Sprintf("memory of rank %d cannot be shown to other processes: %s", r, c.Hidden)
		default:
			continue
		}
		break
	}
	if why == "" {
		var err error
		if why, err = g.tryAll(ctx, cards); err != nil {
			return "", "", err
		}
	}
	same := true
	for _, c := range cards {
		same = same && c.Info.ID == cards[0].Info.ID
	}
	switch {
	case why != "" && demanded == Direct:
		return "", "", &NotDirect{why}
	case why != "":
		return Staged, why, nil
	case same && g.Size() > 1:
		return Direct, fmt.Sprintf("%d ranks on one GPU map one another's memory", g.Size()), nil
	}
	return Direct, "GPUs reach one another's memory", nil
}

// tryAll maps the trial memory of all ranks, and says why that fails on a rank, the same on all.
func (g *Group) tryAll(ctx context.Context, cards []card) (string, error) {
	mine := ""
	for r, c := range cards {
		if err := g.try(ctx, c); err != nil && mine == "" {
			mine = clip(fmt.Sprintf("rank %d cannot read memory of rank %d: %v", g.Rank(), r, err))
		}
	}
	const size = 512
	own, all := make([]byte, size), make([]byte, size*g.Size())
	copy(own, mine)
	if err := comm.AllGather(ctx, g.c, all, own); err != nil {
		return "", err
	}
	for r := range g.Size() {
		if text := string(bytes.TrimRight(all[r*size:][:size], "\x00")); text != "" {
			return text, nil
		}
	}
	return "", nil
}

// try maps the trial memory of a rank and reads it.
func (g *Group) try(ctx context.Context, c card) error {
	if c.Pid == os.Getpid() && !c.Info.Apart {
		return nil
	}
	var h gpu.Handle
	copy(h[:], c.Trial)
	p, err := g.dev.Import(h)
	if err != nil {
		return err
	}
	read := make([]byte, 8)
	if err := g.gpuQ.Out(read, p); err != nil {
		return errors.Join(err, g.dev.Drop(p))
	}
	if err := g.wait(ctx, g.gpuQ); err != nil {
		return errors.Join(err, g.dev.Drop(p))
	}
	if want := word(c.Word); !bytes.Equal(read, want[:]) {
		return errors.Join(fmt.Errorf("it has %x, want %x", read, want), g.dev.Drop(p))
	}
	return g.dev.Drop(p)
}

// hostname tells machines and containers apart whose processes have different numbers.
func hostname() string {
	name, _ := os.Hostname()
	space, _ := os.Readlink("/proc/self/ns/pid")
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return fmt.Sprintf("%s %s %s", name, space, bytes.TrimSpace(boot))
}

// close ends what is under way, on all ranks, and gives everything back.
func (g *Group) close() error {
	if g.queue.shut(&comm.Failure{Kind: comm.Closed, Rank: g.Rank(), Err: comm.ErrClosed}) {
		g.c.Abort(fmt.Errorf("rank %d closed its group", g.Rank()))
	}
	g.queue.idle()
	var errs []error
	for _, q := range []gpu.Queue{g.gpuQ, g.backQ} {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	if g.direct != nil {
		errs = append(errs, g.direct.close())
	}
	if g.staged != nil {
		errs = append(errs, g.staged.close())
	}
	errs = append(errs, g.c.Close())
	if g.dev != nil {
		errs = append(errs, g.dev.Close())
	}
	return errors.Join(errs...)
}

// word is a number as bytes.
func word(v uint64) (b [8]byte) {
	binary.LittleEndian.PutUint64(b[:], v)
	return b
}
