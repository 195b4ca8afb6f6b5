//go:build !linux

package bench

import (
	"errors"
	"net"
)

var errNoQuota = errors.New("Linux only: control groups are not available here")

type quota struct{}

func newQuota(float64) (*quota, error) { return nil, errNoQuota }
func (q *quota) add(int) error         { return errNoQuota }
func (q *quota) remove()               {}

func peerPID(net.Conn) (int, error) { return 0, errNoQuota }
