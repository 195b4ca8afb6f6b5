//go:build !linux

package launch

import "syscall"

// Start refuses before any of these is used.
const cloexec = 0

func attributes() *syscall.SysProcAttr { return nil }

func awaitEnd(int) {}
