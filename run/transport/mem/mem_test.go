package mem

import (
	"testing"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

func TestConform(t *testing.T) {
	conform.Test(t, func(t *testing.T, n int) []transport.Endpoint {
		var es []transport.Endpoint
		for _, e := range New(n) {
			es = append(es, e)
		}
		return es
	})
}
