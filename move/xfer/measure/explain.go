package measure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/xfer"
)

// Explained is which path a request takes, and why.
type Explained struct {
	Local  string       `json:"local"`
	Remote string       `json:"remote"`
	Size   unit.Bytes   `json:"size"`
	Routes []xfer.Route `json:"routes"`
	Chosen string       `json:"chosen"`
	File   string       `json:"file,omitempty"` // how a file is read and written
}

// Explain measures every path between this process and an agent in another, and says which one a read of size
// bytes takes.
func Explain(ctx context.Context, c Config, size int64) (Explained, error) {
	e := Explained{Local: c.Local.String(), Remote: c.Remote.String(), Size: unit.Bytes(size)}
	r := c.region(c.Remote, "target", 0, size)
	if err := c.fill(ctx, r); err != nil {
		return e, err
	}
	k, err := Start(ctx, append(slices.Clone(c.Command), "--name", "target", "--region", r.text(), "--quiet"), "WEFT_TOKEN="+c.Token)
	if err != nil {
		return e, err
	}
	defer k.Stop()
	a, err := xfer.New(xfer.Config{Name: "initiator", Token: c.Token, Floor: c.Floor, Timeout: 30 * time.Second})
	if err != nil {
		return e, err
	}
	defer a.Close()
	lr := c.region(c.Local, "local", 0, size)
	if err := c.fill(ctx, lr); err != nil {
		return e, err
	}
	if c.Local == xfer.Object {
		return e, fmt.Errorf("an object is written as a whole: explain a read into host or file")
	}
	local, err := lr.Register(a)
	if err != nil {
		return e, err
	}
	p, err := a.Open(k.Hello.Description)
	if err != nil {
		return e, err
	}
	far, err := p.Region("target")
	if err != nil {
		return e, err
	}
	if e.Routes, err = a.Measure(ctx, local, p, far); err != nil {
		return e, err
	}
	l, err := a.Prepare(nil, []xfer.Desc{local.At(0, size)})
	if err != nil {
		return e, err
	}
	f, err := a.Prepare(p, []xfer.Desc{far.At(0, size)})
	if err != nil {
		return e, err
	}
	q, err := a.Post(xfer.Transfer{Op: xfer.Read, Local: l, Remote: f, Path: c.Path})
	if err == nil {
		err = q.Wait(ctx)
	}
	if err != nil {
		return e, err
	}
	e.Chosen = q.Poll().Path
	for _, x := range []Region{lr, r} {
		if x.Kind != xfer.File {
			continue
		}
		s, err := xfer.OpenFile(x.Path, xfer.FileOptions{IO: c.IO, Buffered: c.Buffered})
		if err != nil {
			return e, err
		}
		e.File = s.(interface{ Way() string }).Way()
		s.Close()
	}
	return e, nil
}
