package plan

import "testing"

// A step without hidden expert traffic is not likened to one that hiding it made twice as long, and the other way round it is.
func TestNearestSendsTokensAlike(t *testing.T) {
	mc := clusterOf(t, "H100", 16, 400)
	m := named(t, "qwen3-30b-a3b")
	for _, x := range []struct {
		text string
		hid  bool
	}{
		{"dp=16,ep=16,etp=1,micro=1,batch=1024,seq=4096", false},
		{"pp=2,vpp=24,dp=8,ep=8,etp=1,micro=2,batch=512,seq=4096,dtype=fp8", false},
		{"pp=2,vpp=24,dp=8,ep=8,etp=1,micro=2,batch=512,seq=4096,dtype=fp8,ep-overlap=on", true},
	} {
		n := nearestPoint(Question{Model: m, Machine: mc, Layout: layout(t, x.text, Megatron), Framework: Megatron})
		if (n.ID == "o109-mb") != x.hid {
			t.Errorf("%s: nearest is %s: %s, off by %.0f%%", x.text, n.ID, n.What, 100*n.Error)
		}
	}
}
