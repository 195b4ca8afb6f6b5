//go:build !linux

package soft

import "errors"

var errNoMemory = errors.New("a software GPU needs Linux")

func create(int) (int, []byte, error) { return -1, nil, errNoMemory }

func open(string) ([]byte, error) { return nil, errNoMemory }

func unmap(int, []byte) error { return nil }
