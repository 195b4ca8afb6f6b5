package xfer

import "testing"

// A latency request that is posted behind bulk requests of the same agent is over before they are.
func TestLatencyOvertakesBulk(t *testing.T) {
	for _, op := range []Op{Read, Write} {
		t.Run(op.String(), func(t *testing.T) {
			ctx := limit(t)
			slow := func(c *Config) { c.Path, c.Limits = "tcp", Limits{Bulk: 16e6} }
			a, b := start(t, "a", slow), start(t, "b", slow)
			const n = 8 << 20 // half a second
			mine := host(t, a, "mine", n+4096, false, 1)
			host(t, b, "theirs", n+4096, false, 2)
			p := meet(t, a, b)
			far := remote(t, p, "theirs")
			post := func(class Class, off, n int64) *Request {
				t.Helper()
				q, err := a.Post(Transfer{Op: op, Class: class, Local: prepare(t, a, nil, mine.At(off, n)), Remote: prepare(t, a, p, far.At(off, n))})
				if err != nil {
					t.Fatal(err)
				}
				return q
			}
			if err := post(Latency, n, 4096).Wait(ctx); err != nil { // the connection is made
				t.Fatal(err)
			}
			bulk := post(Bulk, 0, n)
			if err := post(Latency, n, 4096).Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if bulk.Poll().State.Over() {
				t.Error("8 MiB of bulk at 16 MB/s were over before 4 KiB of class latency")
			}
			if err := bulk.Wait(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
