package watch

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// raise opens an incident or adds to the one that is open under the key.
func (m *Machine) raise(now float64, key string, i Incident) {
	k := Kinds[i.Kind]
	old := m.open[key]
	if old == nil {
		i.key, i.ID, i.Began, i.Seen = key, m.next, now, now
		m.next++
		i.Cause, i.Fix = cmp.Or(i.Cause, k.Cause), cmp.Or(i.Fix, k.Fix)
		i.Subject = i.Subject.Tidy()
		if m.c.Site != nil && len(i.Where) == 0 {
			for _, h := range i.Subject.Hosts {
				for _, d := range i.Subject.Devices {
					if w := m.c.Site.Where(h, strings.TrimPrefix(d, h+":")); w != "" && !slices.Contains(i.Where, w) {
						i.Where = append(i.Where, w)
					}
				}
			}
		}
		if i.Evidence == nil {
			i.Evidence = []Evidence{}
		}
		m.open[key] = &i
		m.news = append(m.news, i)
		return
	}
	old.Seen, old.Severity, old.Verdict = now, max(old.Severity, i.Severity), i.Verdict
	old.Confidence = max(old.Confidence, i.Confidence)
	if i.Cause != "" { // it may have become known
		old.Cause, old.Fix = i.Cause, cmp.Or(i.Fix, old.Fix)
	}
	for _, e := range i.Evidence { // what is new, every five seconds
		n := len(old.Evidence)
		if n > 0 && (n >= evidenceKept || now-old.Evidence[n-1].At < 5 || old.Evidence[n-1].Text == e.Text) {
			break
		}
		old.Evidence = append(old.Evidence, e)
	}
	for _, f := range i.Follows {
		if !slices.Contains(old.Follows, f) {
			old.Follows = append(old.Follows, f)
		}
	}
}

// relate ties incidents to those that explain them. A cause is at least as severe as what follows from it.
func (m *Machine) relate() {
	for _, i := range m.open {
		i.Because = nil
	}
	for _, k := range slices.Sorted(maps.Keys(m.open)) {
		cause := m.open[k]
		effects := explains[cause.Kind]
		if len(effects) == 0 {
			continue
		}
		for _, i := range m.open {
			if i.Job == cause.Job && slices.Contains(effects, i.Kind) {
				cause.Severity = max(cause.Severity, i.Severity)
				i.Because = append(i.Because, cause.ID)
			}
		}
	}
}

// ordered are the open incidents, the worst first, and of those that are equally bad causes before what they explain.
func (m *Machine) ordered() []*Incident {
	list := slices.Collect(maps.Values(m.open))
	slices.SortFunc(list, func(a, b *Incident) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(min(1, len(a.Because)), min(1, len(b.Because))),
			cmp.Compare(b.Began, a.Began), cmp.Compare(a.key, b.key))
	})
	return list
}
