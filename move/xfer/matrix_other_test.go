//go:build !linux

package xfer

func runMatrixAgent() {}
