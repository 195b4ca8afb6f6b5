//go:build !linux

package infer

import "syscall"

// own: the terminal's signals go to the starter alone. A worker ends when its orders do.
func own() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
