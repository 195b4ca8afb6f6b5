package failures

import "math/rand/v2"

// Some months are worse than others: a batch of parts, a driver, a hot hall. In the trace of 400 servers months have 11 to 120 faults, and
// the counts of months vary 24 times as much as independent ones, where gaps alone explain 4: with 52 faults per month, rates vary by
// sqrt((24 - 4) / 52) = 0.62 of their mean. So the rate of faults that come in bursts differs from month to month. Every twelve months have
// the same twelve rates, in an order of their own, so that a year has its expected faults.
const month = 30 * 86400.

// rates are the twelfths of a log-normal distribution, the mean 1 and the spread 0.62.
var rates = [12]float64{.283, .417, .512, .6, .689, .784, .889, 1.012, 1.163, 1.364, 1.68, 2.607}

// seasons are the rates of a run's months over the mean.
type seasons struct {
	r     *rand.Rand
	order []int
}

func (s *seasons) rate(k int) float64 {
	for len(s.order) <= k {
		s.order = append(s.order, s.r.Perm(len(rates))...)
	}
	return rates[s.order[k]]
}

// after is when a gap that begins at a time ends: it passes faster in months with more faults.
func (s *seasons) after(h Hazard, at, gap float64) float64 {
	if h.shape() == 1 {
		return at + gap
	}
	for {
		k := int(at / month)
		end, rate := float64(k+1)*month, s.rate(k)
		if gap <= (end-at)*rate || k > 1<<16 { // five thousand years
			return at + gap/rate
		}
		gap -= (end - at) * rate
		at = end
	}
}
