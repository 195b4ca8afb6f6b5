//go:build !linux

package kvcache

import (
	"os"
	"syscall"
)

func reserve(f *os.File, size int64) error { return f.Truncate(size) }

func lockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
