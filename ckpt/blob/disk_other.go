//go:build !linux

package blob

import "os"

func reserve(*os.File, int64) error { return nil }

func openDirect(string) *os.File { return nil }

func startWriteback(*os.File, int64, int64) {}

func readAhead(*os.File) {}

func freeBytes(string) (int64, bool) { return 0, false }
