//go:build !linux

package agent

import "github.com/weft-fabric/weft/observe/watch"

func connections([]*process) map[int][]watch.Link { return nil }

func memoryAvailable() (float64, bool) { return 0, false }
