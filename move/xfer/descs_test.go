package xfer

import (
	"errors"
	"math"
	"testing"
	"time"
)

// A request that waits for the lease of its list, which another request asks for, waits no longer than its own time.
func TestDeadlineWhileAnotherAsksForTheLease(t *testing.T) {
	a, z := start(t, "a", nil), start(t, "z", nil)
	mine := host(t, a, "mine", 4096, false, 0)
	host(t, z, "theirs", 4096, false, 1)
	p, err := a.Open(z.Describe())
	if err != nil {
		t.Fatal(err)
	}
	local, far := prepare(t, a, nil, mine.At(0, 4096)), prepare(t, a, p, remote(t, p, "theirs").At(0, 4096))
	asking, answered, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		_, err := far.leased(a.base, func() (*hold, error) { // as of a peer that was stopped
			close(asking)
			<-answered
			return nil, errors.New("no answer")
		})
		if err == nil {
			t.Error("a lease without an answer")
		}
	}()
	<-asking
	q, err := a.Post(Transfer{Op: Read, Local: local, Remote: far, Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Wait(limit(t)); !errors.Is(err, ErrDeadline) {
		t.Errorf("%v, want the deadline", err)
	}
	close(answered)
	<-over
	q, err = a.Post(Transfer{Op: Read, Local: local, Remote: far})
	if err == nil {
		err = q.Wait(limit(t))
	}
	if err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// What is out of bounds is refused also where another descriptor of the same lease overlaps it.
func TestLeaseOutOfBounds(t *testing.T) {
	z := start(t, "z", nil)
	r := host(t, z, "theirs", 4096, false, 1)
	for _, d := range []Desc{{r.id, 50, math.MaxInt64}, {r.id, 50, 4096}, {r.id, 0, 1 << 50}, {r.id, -1, 10}, {r.id, 4096, 1}, {r.id, 5, 0}} {
		if _, err := z.leaseFor(ID{"a", 1}, 0, time.Second, []capability{{r.id, r.key, 0}}, []Desc{{r.id, 0, 100}, d}); !errors.Is(err,
			ErrBounds) {
			t.Errorf("%v: %v, want ErrBounds", d, err)
		}
	}
}

// Polling beside a request that fails at its target: the race detector looks at it.
func TestPollWhileItFails(t *testing.T) {
	a, z := start(t, "a", nil), start(t, "z", nil)
	mine := host(t, a, "mine", 4096, false, 0)
	mem, err := z.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Register("theirs", Memory(mem), MayRead); err != nil {
		t.Fatal(err)
	}
	p, err := a.Open(z.Describe())
	if err != nil {
		t.Fatal(err)
	}
	local, far := prepare(t, a, nil, mine.At(0, 4096)), prepare(t, a, p, remote(t, p, "theirs").At(0, 4096))
	for range 20 {
		q, err := a.Post(Transfer{Op: Write, Local: local, Remote: far, Path: "tcp"})
		if err != nil {
			t.Fatal(err)
		}
		for !q.Poll().State.Over() {
		}
		if err := q.Wait(limit(t)); !errors.Is(err, ErrAccess) {
			t.Errorf("%v, want ErrAccess", err)
		}
	}
}

// 10,000 descriptors that lie apart, as the blocks of a cache do. Both ends are in this process, so it takes the processor time of both.
func BenchmarkDescriptors(b *testing.B) {
	const count, size = 10000, 4096
	for _, op := range []Op{Read, Write} {
		b.Run(op.String(), func(b *testing.B) {
			a, err := New(Config{Name: "a", Token: "secret"})
			if err != nil {
				b.Fatal(err)
			}
			defer a.Close()
			z, err := New(Config{Name: "z", Token: "secret"})
			if err != nil {
				b.Fatal(err)
			}
			defer z.Close()
			var regions [2]*Region
			for i, x := range []*Agent{a, z} {
				mem, err := x.Alloc(2 * count * size)
				if err != nil {
					b.Fatal(err)
				}
				if regions[i], err = x.Register("blocks", Memory(mem), 0); err != nil {
					b.Fatal(err)
				}
			}
			p, err := a.Open(z.Describe())
			if err != nil {
				b.Fatal(err)
			}
			theirs, err := p.Region("blocks")
			if err != nil {
				b.Fatal(err)
			}
			var mine, far []Desc
			for i := range int64(count) {
				mine, far = append(mine, regions[0].At(i*2*size, size)), append(far, theirs.At(i*2*size, size))
			}
			local, err := a.Prepare(nil, mine)
			if err != nil {
				b.Fatal(err)
			}
			remote, err := a.Prepare(p, far)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				q, err := a.Post(Transfer{Op: op, Local: local, Remote: remote, Path: "shm"})
				if err == nil {
					err = q.Wait(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(count*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mdescs/s")
		})
	}
}
