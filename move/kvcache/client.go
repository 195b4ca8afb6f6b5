package kvcache

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/zeebo/xxh3"
	"strconv"
)

// Client talks to a cache.
type Client struct {
	address, token, chain, scheme string
	http                          *http.Client
}

// Dial gives a client of the cache at an address. chain is kv.Chain's Print, or empty.
func Dial(address, token, chain string) *Client { return DialTLS(address, token, chain, nil) }

// DialTLS is Dial for a cache that serves HTTPS; t is of Certificates. Without a token its certificate says who the client is.
func DialTLS(address, token, chain string, t *tls.Config) *Client {
	c := &Client{address: address, token: token, chain: chain}
	c.http, c.scheme = httpOver(t, 16)
	return c
}

// Close gives back connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call sends a request and returns the body of its answer, which the caller closes. Any status but 200 is an error with
// the server's reason.
func (c *Client) call(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.scheme+c.address+path, body)
	if err != nil {
		return nil, fmt.Errorf("kv cache at %s: %w", c.address, err)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.chain != "" {
		r.Header.Set(ChainHeader, c.chain)
	}
	a, err := c.http.Do(r)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("kv cache at %s: %w; 'weft kv serve' starts one", c.address, syscall.ECONNREFUSED)
	}
	if err != nil {
		return nil, fmt.Errorf("kv cache at %s: %w", c.address, err)
	}
	if a.StatusCode != http.StatusOK {
		defer a.Body.Close()
		var why answer
		text, _ := io.ReadAll(io.LimitReader(a.Body, 64<<10))
		if json.Unmarshal(text, &why) != nil || why.Error == "" {
			why.Error = string(bytes.TrimSpace(text))
		}
		return nil, fmt.Errorf("kv cache at %s: %s: %s", c.address, a.Status, why.Error)
	}
	return a.Body, nil
}

func (c *Client) ask(ctx context.Context, path string, body io.Reader) (answer, error) {
	var a answer
	b, err := c.call(ctx, http.MethodPost, path, body)
	if err != nil {
		return a, err
	}
	defer b.Close()
	if err := json.NewDecoder(b).Decode(&a); err != nil {
		return a, fmt.Errorf("kv cache at %s: %w", c.address, err)
	}
	return a, nil
}

func names(path []kv.Hash) []string {
	out := make([]string, len(path))
	for i, h := range path {
		out[i] = h.String()
	}
	return out
}

// Match says where the blocks of a path are, up to the first that is nowhere.
func (c *Client) Match(ctx context.Context, path []kv.Hash) ([]Where, error) {
	var b bytes.Buffer
	if err := writeHead(&b, request{Keys: names(path)}); err != nil {
		return nil, err
	}
	a, err := c.ask(ctx, "/v1/match", &b)
	if err == nil {
		err = c.believe(len(a.Where), len(path))
	}
	if err != nil {
		return nil, err
	}
	return a.Where, nil
}

// believe refuses an answer about more blocks than were asked for.
func (c *Client) believe(blocks, asked int) error {
	if blocks < 0 || blocks > asked {
		return fmt.Errorf("kv cache at %s: it answers for %d blocks; %d were asked for", c.address, blocks, asked)
	}
	return nil
}

// Get reads the blocks of a path from the from-th on, up to the first that is not there, and hands each to use.
func (c *Client) Get(ctx context.Context, path []kv.Hash, from int, use func(i int, data []byte) error) (int, error) {
	var b bytes.Buffer
	if err := writeHead(&b, request{Keys: names(path), From: from}); err != nil {
		return 0, err
	}
	body, err := c.call(ctx, http.MethodPost, "/v1/get", &b)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	var a answer
	if err := readHead(body, &a); err != nil {
		return 0, fmt.Errorf("kv cache at %s: %w", c.address, err)
	}
	if err := c.believe(a.Blocks, len(path)-from); err != nil {
		return 0, err
	}
	var buf []byte
	for i := range a.Blocks {
		data, err := readFrame(body, maxBlock, buf)
		if errors.Is(err, errMissing) {
			return i, nil
		}
		if err != nil {
			return i, fmt.Errorf("kv cache at %s: block %d: %w", c.address, from+i, err)
		}
		if err := use(from+i, data); err != nil {
			return i, err
		}
		buf = data
	}
	return a.Blocks, nil
}

// Put stores the blocks of a path from the from-th on, and says how many are there now.
func (c *Client) Put(ctx context.Context, path []kv.Hash, from int, blocks [][]byte) (int, error) {
	if len(blocks) != len(path)-from {
		return 0, fmt.Errorf("kv cache: %d blocks for the names from %d to %d", len(blocks), from, len(path))
	}
	r, w := io.Pipe()
	go func() {
		err := writeHead(w, request{Keys: names(path), From: from})
		for i := 0; err == nil && i < len(blocks); i++ {
			err = writeFrame(w, blocks[i])
		}
		w.CloseWithError(err)
	}()
	a, err := c.ask(ctx, "/v1/put", r)
	r.Close()
	if err == nil {
		err = c.believe(a.Blocks, len(blocks))
	}
	if err == nil && a.Error != "" {
		err = fmt.Errorf("kv cache at %s: %d of %d stored: %s", c.address, a.Blocks, len(blocks), a.Error)
	}
	return a.Blocks, err
}

// Stat asks how the cache stands.
func (c *Client) Stat(ctx context.Context) (Stat, error) {
	var s Stat
	b, err := c.call(ctx, http.MethodGet, "/v1/stat", nil)
	if err != nil {
		return s, err
	}
	defer b.Close()
	if err := json.NewDecoder(b).Decode(&s); err != nil {
		return s, fmt.Errorf("kv cache at %s: %w", c.address, err)
	}
	return s, nil
}

// GetInto has the cache write the blocks of a path from the from-th on into pieces of memory, up to the first that is not there. The
// cache must be able to reach the agent. It gives how many came, and the path that they took. When it has returned nothing lands
// any more, whatever the cache does.
func (c *Client) GetInto(ctx context.Context, path []kv.Hash, from int, a *xfer.Agent, mem []byte, pieces [][]Piece) (int, string, error) {
	out, err := c.move(ctx, "/v1/fill", path, from, a, mem, xfer.MayWrite, pieces)
	if err != nil {
		return 0, "", err
	}
	if out.Blocks != len(out.Sums) {
		return 0, out.Path, fmt.Errorf("kv cache at %s: it says that %d blocks came, with %d checksums", c.address, out.Blocks, len(out.Sums))
	}
	for i, sum := range out.Sums {
		h := xxh3.New()
		for _, p := range pieces[i] {
			_, _ = h.Write(mem[p.Off:][:p.Len])
		}
		if strconv.FormatUint(h.Sum64(), 16) != sum {
			return i, out.Path, fmt.Errorf("kv cache at %s: block %d: %w", c.address, from+i, errDamaged)
		}
	}
	return out.Blocks, out.Path, nil
}

// PutFrom has the cache read the blocks of a path from the from-th on out of pieces of memory. It gives how many are there now. When
// it has returned the memory may change: the cache keeps nothing that it read later.
func (c *Client) PutFrom(ctx context.Context, path []kv.Hash, from int, a *xfer.Agent, mem []byte, pieces [][]Piece) (int, error) {
	out, err := c.move(ctx, "/v1/drain", path, from, a, mem, xfer.MayRead, pieces)
	return out.Blocks, err
}

// move makes a call, with a region of its own: once that is released, a cache that is late finds nothing.
func (c *Client) move(ctx context.Context, call string, path []kv.Hash, from int, a *xfer.Agent, mem []byte, access xfer.Access,
	pieces [][]Piece) (out moved, err error) {
	r, err := a.Register(fmt.Sprintf("kv call %d", calls.Add(1)), xfer.Memory(mem), access)
	if err != nil {
		return out, err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
		defer cancel()
		err = errors.Join(err, r.Release(end))
	}()
	q := move{request: request{Keys: names(path), From: from}, Agent: a.Describe(r), Region: r.Name()}
	for _, list := range pieces {
		var x []int64
		for _, p := range list {
			x = append(x, p.Off, p.Len)
		}
		q.Pieces = append(q.Pieces, x)
	}
	var b bytes.Buffer
	if err := writeHead(&b, q); err != nil {
		return out, err
	}
	body, err := c.call(ctx, http.MethodPost, call, &b)
	if err != nil {
		return out, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&out); err != nil {
		return out, fmt.Errorf("kv cache at %s: %w", c.address, err)
	}
	if err := c.believe(out.Blocks, len(pieces)); err != nil {
		return out, err
	}
	if out.Error != "" {
		return out, fmt.Errorf("kv cache at %s: %d of %d blocks: %s", c.address, out.Blocks, len(pieces), out.Error)
	}
	return out, nil
}
