//go:build linux

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Where every rank sees the processes of the others by their numbers, ranks do not meet pair by pair. Each meets the first one, which
// hands round what it got: the descriptors of the arenas, and of each process its number and when it began, by which a number
// that was given to another process since is told from it.

const (
	roundSize = 4 + 4 + 8 + 8 + 8 + 8 // bytes of a rank in a message
	roundMost = 64                    // ranks in a message; the system takes 253 descriptors
)

// together reports whether the first rank hands arenas round. All ranks come to the same answer.
func (p *pass) together() bool {
	return p.me.size > 2 && !slices.ContainsFunc(p.cards, func(c card) bool { return c.pids == "" || c.pids != p.me.pids })
}

// handRound tells the ranks that the first one has met of one another.
func (p *pass) handRound(ctx context.Context) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for to, m := range p.peers {
		if m == nil {
			continue
		}
		wg.Go(func() {
			if err := p.handTo(ctx, m); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, fmt.Errorf("shm: hand the arenas to rank %d: %w", to, err))
			}
		})
	}
	wg.Wait()
	return failed
}

// handTo tells a rank of all others but the first.
func (p *pass) handTo(ctx context.Context, to *met) error {
	defer endWith(ctx, to.conn)()
	var others []*met
	for _, m := range p.peers {
		if m != nil && m != to {
			others = append(others, m)
		}
	}
	for some := range slices.Chunk(others, roundMost) {
		var b []byte
		var fds []int
		for _, m := range some {
			b = binary.LittleEndian.AppendUint32(b, uint32(m.rank))
			b = binary.LittleEndian.AppendUint32(b, uint32(m.pid))
			for _, v := range []uint64{m.began, m.arena, m.word, m.value} {
				b = binary.LittleEndian.AppendUint64(b, v)
			}
			fds = append(fds, int(m.file.Fd()))
		}
		if err := giveFiles(ctx, to.conn, b, fds); err != nil {
			return err
		}
	}
	return nil
}

// giveFiles sends bytes with descriptors. A user may have as many of those under way as a process open files: they get fewer as ranks
// take theirs.
func giveFiles(ctx context.Context, to *net.UnixConn, b []byte, fds []int) error {
	for {
		_, _, err := to.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
		if !errors.Is(err, unix.ETOOMANYREFS) || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// takeRound hears from the first rank of all others.
func (p *pass) takeRound(ctx context.Context) error {
	conn := p.peers[0].conn
	defer endWith(ctx, conn)()
	for left := p.me.size - 2; left > 0; {
		some := min(left, roundMost)
		b, fds, err := receive(conn, some)
		if err != nil {
			return fmt.Errorf("shm: rank %d waits for the arenas that rank 0 hands round: %w", p.me.rank, err)
		}
		left -= some
		le := binary.LittleEndian
		for i := range some {
			at := b[i*roundSize:]
			m := &met{pid: int(int32(le.Uint32(at[4:]))), began: le.Uint64(at[8:]), pidfd: -1}
			m.hello = hello{rank: int(int32(le.Uint32(at))), size: p.me.size, arena: le.Uint64(at[16:]), word: le.Uint64(at[24:]),
				value: le.Uint64(at[32:])}
			m.file = os.NewFile(uintptr(fds[i]), "weft arena of a peer")
			err := m.check()
			if err == nil && (m.rank < 1 || m.rank >= p.me.size || m.rank == p.me.rank) {
				err = fmt.Errorf("rank %d of %d", m.rank, p.me.size)
			}
			if err := p.keep(m, err); err != nil {
				for _, fd := range fds[i+1:] {
					unix.Close(fd)
				}
				return fmt.Errorf("shm: rank %d is told of rank %d: %w", p.me.rank, m.rank, err)
			}
		}
	}
	return nil
}

// receive reads a message about as many ranks, and their descriptors.
func receive(conn *net.UnixConn, ranks int) ([]byte, []int, error) {
	b, oob := make([]byte, ranks*roundSize), make([]byte, unix.CmsgSpace(4*roundMost))
	var fds []int
	for have := 0; have < len(b); {
		n, on, _, _, err := conn.ReadMsgUnix(b[have:], oob)
		if err == nil && n == 0 {
			err = errors.New("it closed the connection")
		}
		got, bad := rights(oob[:on])
		fds = append(fds, got...)
		if err = errors.Join(err, bad); err != nil {
			return nil, nil, closeAll(fds, err)
		}
		have += n
	}
	if len(fds) != ranks {
		return nil, nil, closeAll(fds, fmt.Errorf("%d descriptors, want %d: ulimit -n may be too low", len(fds), ranks))
	}
	return b, fds, nil
}

func closeAll(fds []int, err error) error {
	for _, fd := range fds {
		unix.Close(fd)
	}
	return err
}

// began is when a process began, as the kernel counts; 0 if there is none with that number.
func began(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	text := string(b)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name may hold anything
	const at = 22 - 3                                                   // the state is field 3
	if len(fields) <= at {
		return 0
	}
	v, _ := strconv.ParseUint(fields[at], 10, 64)
	return v
}
