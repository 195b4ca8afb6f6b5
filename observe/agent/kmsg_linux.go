package agent

import (
	"golang.org/x/sys/unix"
)

// kernelLog reads /dev/kmsg without waiting, from the time it was opened on.
type kernelLog struct{ fd int }

func openKernelLog(root string) *kernelLog {
	if root != "" {
		return &kernelLog{-1}
	}
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &kernelLog{-1}
	}
	unix.Seek(fd, 0, 2) // what is there was there before
	return &kernelLog{fd}
}

// read returns the records since the last call, at most about 1 MiB. It does not block. Records that the kernel
// overwrote meanwhile are lost.
func (k *kernelLog) read() []byte {
	if k.fd < 0 {
		return nil
	}
	var out []byte
	buf := make([]byte, 8192)
	for len(out) < 1<<20 {
		n, err := unix.Read(k.fd, buf)
		if err == unix.EPIPE { // records were overwritten meanwhile
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		out = append(out, buf[:n]...)
	}
	return out
}

func (k *kernelLog) close() {
	if k.fd >= 0 {
		unix.Close(k.fd)
	}
}

func shmFree() (float64, bool) {
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) != nil {
		return 0, false
	}
	return float64(st.Bavail) * float64(st.Bsize), true
}
