package retry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPausesDouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Pause(20*time.Millisecond, 100*time.Millisecond)
		for _, want := range []time.Duration{20, 40, 80, 100, 100} {
			began := time.Now()
			if err := p.Wait(t.Context()); err != nil || time.Since(began) != want*time.Millisecond {
				t.Errorf("waited %s, want %d ms: %v", time.Since(began), want, err)
			}
		}
	})
}

func TestWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p, began := Pause(time.Hour, time.Hour), time.Now()
		if err := p.Wait(ctx); err != context.DeadlineExceeded || time.Since(began) != time.Second {
			t.Errorf("waited %s: %v", time.Since(began), err)
		}
	})
}
