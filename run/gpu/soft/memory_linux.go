package soft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// create makes memory that other processes can map by the number of its file.
func create(n int) (int, []byte, error) {
	fd, err := unix.MemfdCreate("weft-soft-gpu", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, nil, err
	}
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, b, err
}

// open maps memory of another process.
func open(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// unmap gives memory back.
func unmap(fd int, b []byte) error {
	err := unix.Munmap(b)
	if fd >= 0 {
		if e := unix.Close(fd); err == nil {
			err = e
		}
	}
	return err
}
