package witness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const ledgerName = "weft-ledger"

// HostLedger is a ledger of the processes of a host.
type HostLedger struct{ f *os.File }

// NewLedger makes a ledger for the ranks of a world.
func NewLedger(world [16]byte) (*HostLedger, error) {
	fd, err := unix.MemfdCreate(ledgerName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	defer unix.Close(fd)
	l, err := openLedger(fmt.Sprintf("/proc/self/fd/%d", fd)) // a second time, to append
	if err != nil {
		return nil, err
	}
	if _, err := l.f.Write(append(world[:], make([]byte, entrySize-len(world))...)); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: %w", err), l.Close())
	}
	return l, nil
}

// Number is the ledger's number among the open files of this process, by which others of the host find it.
func (l *HostLedger) Number() int { return int(l.f.Fd()) }

// OpenLedger opens the ledger of a world that a process of the same user has open.
func OpenLedger(pid, number int, world [16]byte) (*HostLedger, error) {
	path := fmt.Sprintf("/proc/%d/fd/%d", pid, number)
	// The number may be that of another process: of another namespace of processes.
	if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, "/memfd:"+ledgerName) {
		return nil, errors.Join(fmt.Errorf("ledger: process %d has none, it has %q", pid, to), err)
	}
	l, err := openLedger(path)
	if err != nil {
		return nil, err
	}
	head := make([]byte, entrySize)
	if _, err := l.f.ReadAt(head, 0); err != nil || !bytes.Equal(head[:len(world)], world[:]) {
		return nil, errors.Join(fmt.Errorf("ledger: that of process %d belongs to another world", pid), err, l.Close())
	}
	return l, nil
}

func openLedger(path string) (*HostLedger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return &HostLedger{f}, nil
}

// Decide is that of Ledger.
func (l *HostLedger) Decide(k Key, record []byte) ([]byte, error) {
	e, err := entry(k, record)
	if err != nil {
		return nil, err
	}
	if _, err := l.f.Write(e); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	st, err := l.f.Stat()
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	all := make([]byte, st.Size())
	if _, err := l.f.ReadAt(all, 0); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return firstOf(k, all[min(entrySize, len(all)):])
}

// Close gives the ledger back. It lasts as long as others have it.
func (l *HostLedger) Close() error { return l.f.Close() }
