package blob

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserve takes the disk space of the whole file at once, so that a full disk is
// known before anything is written. File systems that cannot are left alone.
func reserve(f *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
			return &os.PathError{Op: "reserve", Path: f.Name(), Err: err}
		}
		return nil
	}
}

// startWriteback asks for the disk to begin with what was just written, so that
// little is left for the final synchronisation. It is a hint; its failure shows
// up there.
func startWriteback(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// freeBytes is what a plain user can still write to a directory's file system.
func freeBytes(dir string) (int64, bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}
