package health

import (
	"math/rand/v2"
	"testing"
)

var port = Key{Device: "mlx5_0", Port: "1", Metric: "link_error_recovery"}

func feed(m *Machine, k Key, at float64, v ...float64) (last State) {
	for i, x := range v {
		m.Observe(at+float64(10*i), k, x)
	}
	for _, s := range m.States() {
		if s.Key == k {
			return s.State
		}
	}
	return Unknown
}

// A total says nothing; growth in the window does.
func TestGrowthCounts(t *testing.T) {
	if s := feed(New(), port, 1000, 5000, 5000, 5001); s != Good {
		t.Errorf("an old total: %s", s)
	}
	if s := feed(New(), port, 1000, 0, 3, 6); s != Warn {
		t.Errorf("six in a minute: %s", s)
	}
	if s := feed(New(), port, 1000, 0, 30); s != Bad {
		t.Errorf("thirty in a minute: %s", s)
	}
	if s := feed(New(), Key{Device: "x", Metric: "link_downed"}, 1000, 4, 5); s != Bad {
		t.Errorf("a link lost: %s", s)
	}
}

// A counter that goes down was reset: what it shows since then is growth.
func TestResets(t *testing.T) {
	if s := feed(New(), port, 1000, 900, 2); s != Good {
		t.Errorf("a reset to 2: %s", s)
	}
	if s := feed(New(), port, 1000, 900, 25); s != Bad {
		t.Errorf("a reset, and 25 since: %s", s)
	}
	m := New()
	m.Boot("a")
	feed(m, port, 1000, 100)
	m.Boot("b")
	if s := feed(m, port, 1010, 130); s == Bad {
		t.Error("another start of the host keeps the baseline")
	}
}

// A state is left after ten quiet windows, not before.
func TestStatesAreLeftByQuietTime(t *testing.T) {
	m := New()
	feed(m, port, 1000, 0, 30)
	at := 1010.0
	for ; at < 1010+590; at += 10 {
		if _, changed := m.Observe(at, port, 30); changed {
			t.Fatalf("left after %g s", at-1010)
		}
	}
	e, changed := m.Observe(1010+610, port, 30)
	if !changed || e.To != Good || e.From != Bad {
		t.Errorf("%v %v", e, changed)
	}
}

// No data is not good data.
func TestLostIsUnknown(t *testing.T) {
	m := New()
	feed(m, port, 1000, 0, 0)
	if e := m.Lost(1030, 60); len(e) != 0 {
		t.Error(e)
	}
	if e := m.Lost(1100, 60); len(e) != 1 || e[0].To != Unknown || m.States()[0].State != Unknown {
		t.Error(e)
	}
}

// A gauge must be beyond its limit for the window.
func TestGauges(t *testing.T) {
	k := Key{Device: "mlx5_0", Port: "1", Metric: "port_active"}
	m := New()
	if s := feed(m, k, 1000, 1, 0, 0); s != Good {
		t.Errorf("down for 10 s: %s", s)
	}
	if s := feed(m, k, 1030, 0, 0); s != Bad {
		t.Errorf("down for 30 s: %s", s)
	}
}

// A day of healthy noise raises no alarm: three seeds, a host of eight ports each.
func TestHealthyDayRaisesNothing(t *testing.T) {
	alarms := 0
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 7))
		m := New()
		sum := map[Key]float64{}
		for at := 0.0; at < 86400; at += 60 {
			for p := range 8 {
				for metric, perHour := range map[string]float64{"symbol_error": 20, "link_error_recovery": 0.2, "local_ack_timeout_err": 30,
					"port_rcv_switch_relay_errors": 100, "rnr_nak_retry_err": 20, "aer_correctable": 10} {
					k := Key{Device: "mlx5_" + string(rune('0'+p)), Port: "1", Metric: metric}
					if r.Float64() < perHour/60 {
						sum[k]++
					}
					if e, changed := m.Observe(at+1, k, sum[k]); changed && e.To > Good {
						alarms++
					}
				}
			}
		}
	}
	if alarms > 1 {
		t.Errorf("%d alarms in 3 healthy days of eight ports", alarms)
	}
}

// Clocks that go back do no harm.
func TestClockGoesBack(t *testing.T) {
	m := New()
	feed(m, port, 5000, 0, 30)
	feed(m, port, 1000, 30, 30)
	for at := 1020.0; at < 1700; at += 10 {
		m.Observe(at, port, 30)
	}
	if s := m.States()[0].State; s != Good {
		t.Errorf("%s", s)
	}
}
