package mixed

import (
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/shm"
)

// named is own memory by its key.
func named(e *shm.Endpoint, k transport.Key, n int) ([]byte, error) {
	b, err := e.Named(e.Rank(), k, n)
	if err != nil {
		return nil, err
	}
	return b, e.Done(e.Rank(), k) // nobody frees the memory but this rank
}
