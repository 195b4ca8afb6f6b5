package xfer

import "os"

type ring struct{}

func (r *ring) do(*os.File, []byte, int64, bool) error { return nil }
func (r *ring) close()                                 {}

func (x *file) chooseIO() error { x.way = "calls past the page cache"; return nil }
