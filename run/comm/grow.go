package comm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/weft-fabric/weft/run/transport/rendezvous"
)

// Grow makes a larger communicator of a living one:
//
//	rank 0    listens at a new address and draws a new token
//	          tells both to the other members, over the communicator they have
//	          calls Invite, which starts newcomers or lets them know
//	members   meet the newcomers there, with the ranks they have
//	newcomers are ordinary programs: what Invitation.Env says makes FromEnv and Join do the rest
//
// It is a Join of its own: connections are made anew, links are taken over from the old communicator. That one stays as it is and
// can be used, also if nobody comes.

// Growth says how a communicator grows.
type Growth struct {
	// Newcomers is how many ranks come, the same on all members.
	Newcomers int
	// Listen is where rank 0 listens, host:port; a free port on the host of the first rendezvous if it is empty.
	Listen string
	// Invite is called on rank 0 once newcomers can come. It must not wait for them. An error ends Grow on all members.
	Invite func(Invitation) error
}

// Invitation is what newcomers need to know.
type Invitation struct {
	Addr  string // where they come to
	Token string // what they show there
	First int    // rank of the first newcomer; the others follow it
	Size  int    // ranks, newcomers included
}

// Env is the environment of a newcomer, of which there are Size-First: what FromEnv reads.
func (i Invitation) Env(newcomer int) []string {
	host, port, _ := net.SplitHostPort(i.Addr)
	return []string{"RANK=" + strconv.Itoa(i.First+newcomer), "WORLD_SIZE=" + strconv.Itoa(i.Size), "MASTER_ADDR=" + host,
		"MASTER_PORT=" + port, "WEFT_TOKEN=" + i.Token}
}

// Config is the configuration of a newcomer, for programs that do not read the environment.
func (i Invitation) Config(newcomer int) Config {
	return Config{Rank: i.First + newcomer, Size: i.Size, Addr: i.Addr, Token: i.Token}
}

// word is what rank 0 tells the other members, in a message of fixed length.
type growWord struct {
	Invitation
	Err string // it cannot be done
}

// A letter of an error takes up to six in JSON: the longest error and an address fit.
const (
	growSize  = 8 << 10
	growError = 1 << 10
)

// Grow makes a communicator of the members of c, in their ranks, and of newcomers
// that join behind them. All members must call it. It returns when all have met, or
// with an error when ctx ends or the time limit passes; c can be used before, meanwhile
// and after. To replace ranks that died, Shrink first.
//
// Memory from Alloc belongs to the old communicator: operations of the new one treat it
// like any other memory.
func (c *Comm) Grow(ctx context.Context, g Growth) (*Comm, error) {
	if c.world.all.Can().OneProcess {
		return nil, errors.New("grow: ranks that are goroutines (Local) cannot be joined by others")
	}
	if g.Newcomers < 1 {
		return nil, c.refuse(fmt.Errorf("grow: %d newcomers; want 1 or more", g.Newcomers))
	}
	cfg := c.world.cfg
	cfg.Rank, cfg.Size, cfg.Listener, cfg.Links = c.Rank(), c.Size()+g.Newcomers, nil, c.Links()
	word := growWord{Invitation: Invitation{First: c.Size(), Size: cfg.Size}}
	if c.Rank() == 0 {
		word.Err = invite(ctx, &g, &word.Invitation, &cfg)
	}
	if err := spreadWord(ctx, c, &word); err != nil {
		if cfg.Listener != nil {
			_ = cfg.Listener.Close()
		}
		return nil, err
	}
	if word.Err != "" {
		return nil, fmt.Errorf("rank %d: grow: %s", c.Rank(), word.Err)
	}
	if word.Size != cfg.Size {
		return nil, fmt.Errorf("rank %d: grow: rank 0 expects %d newcomers, this one %d: give all members the same number",
			c.Rank(), word.Size-word.First, g.Newcomers)
	}
	cfg.Addr, cfg.Token = word.Addr, word.Token
	grown, err := Join(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("grow from %d to %d ranks: %w", c.Size(), cfg.Size, err)
	}
	return grown, nil
}

// invite listens for newcomers and invites them; it gives what went wrong.
func invite(ctx context.Context, g *Growth, i *Invitation, cfg *Config) string {
	at := g.Listen
	if at == "" {
		host, _, err := net.SplitHostPort(cfg.Addr)
		if err != nil || host == "" {
			host = "127.0.0.1"
		}
		at = net.JoinHostPort(host, "0")
	}
	if len(at) > growError {
		return fmt.Sprintf("an address of %d bytes to listen at; the most are %d", len(at), growError)
	}
	l, err := rendezvous.Listen(ctx, at)
	if err != nil {
		return fmt.Sprintf("rank 0 cannot listen for newcomers at %s: %v", at, err)
	}
	i.Addr, i.Token = l.Addr().String(), rand.Text()
	if host, _, _ := net.SplitHostPort(at); host != "" { // an address of all interfaces leads nowhere from elsewhere
		_, port, _ := net.SplitHostPort(i.Addr)
		i.Addr = net.JoinHostPort(host, port)
	}
	cfg.Listener = l
	if g.Invite != nil {
		if err := g.Invite(*i); err != nil {
			_ = l.Close()
			cfg.Listener = nil
			return "newcomers could not be invited: " + err.Error()
		}
	}
	return ""
}

// spreadWord hands rank 0's word to all members.
func spreadWord(ctx context.Context, c *Comm, w *growWord) error {
	text := make([]byte, growSize)
	if c.Rank() == 0 {
		if len(w.Err) > growError { // the others wait for a word: it is cut rather than not said
			w.Err = w.Err[:growError] + " ..."
		}
		b, err := json.Marshal(w)
		if err != nil {
			panic(err) // strings and numbers always can be
		}
		copy(text, b)
	}
	if err := Broadcast(ctx, c, text, 0); err != nil {
		return err
	}
	n := len(text)
	for n > 0 && text[n-1] == 0 {
		n--
	}
	return json.Unmarshal(text[:n], w)
}
