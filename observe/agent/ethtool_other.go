//go:build !linux

package agent

type ethtool struct{}

func newEthtool() *ethtool                                   { return &ethtool{} }
func (*ethtool) close()                                      {}
func (*ethtool) counters(string) (map[string]uint64, string) { return nil, "" }
