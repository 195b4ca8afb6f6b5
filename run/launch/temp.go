package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// tempLock is the file by which a folder of TempDir is known to be in use: its maker
// holds a lock on it as long as it lives.
const tempLock = ".lock"

// TempDir makes a folder for this process, and removes those of its kind whose makers
// were killed. Remove removes it.
func TempDir(kind string) (dir string, remove func() error, err error) {
	sweep(kind)
	for {
		if dir, err = os.MkdirTemp("", "weft-"+kind+"-"); err != nil {
			return "", nil, fmt.Errorf("a temporary folder: %w", err)
		}
		lock, err := lockTemp(dir)
		if errors.Is(err, errSwept) {
			continue
		}
		if err != nil {
			return "", nil, errors.Join(fmt.Errorf("a temporary folder: %w", err), os.RemoveAll(dir))
		}
		return dir, func() error { return errors.Join(os.RemoveAll(dir), unix.Close(lock)) }, nil
	}
}

// errSwept says that another process took a new folder for one of the dead, as its maker had no lock on it yet.
var errSwept = errors.New("the folder was removed")

// lockTemp marks a folder as in use by this process. It gives a plain descriptor: an os.File that nobody holds is closed by the
// garbage collector.
func lockTemp(dir string) (int, error) {
	lock, err := unix.Open(filepath.Join(dir, tempLock), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ENOENT) {
		return -1, errSwept
	}
	if err != nil {
		return -1, err
	}
	if err = unix.Flock(lock, unix.LOCK_EX); err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(lock, &st); err == nil && st.Nlink == 0 {
			err = errSwept
		}
	}
	if err != nil {
		_ = unix.Close(lock)
		return -1, err
	}
	return lock, nil
}

// sweep removes the folders of processes that are no more. One without a lock may be
// in the making, unless it is a day old.
func sweep(kind string) {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "weft-"+kind+"-*")) // the pattern is right
	for _, d := range dirs {
		lock, err := os.OpenFile(filepath.Join(d, tempLock), os.O_RDWR, 0)
		if err != nil {
			if st, e := os.Stat(d); errors.Is(err, os.ErrNotExist) && e == nil && st.IsDir() && time.Since(st.ModTime()) > 24*time.Hour {
				_ = os.RemoveAll(d)
			}
			continue // another user's, or too young
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(d) // what cannot be removed is another user's
		}
		lock.Close()
	}
}
