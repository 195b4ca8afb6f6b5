package watch

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
)

// addEvidence adds what is new, every five seconds, until there is enough.
func (i *Incident) addEvidence(now float64, list []Evidence) {
	for _, e := range list {
		n := len(i.Evidence)
		if n > 0 && (n >= evidenceKept || now-i.Evidence[n-1].At < 5 || i.Evidence[n-1].Text == e.Text) {
			break
		}
		i.Evidence = append(i.Evidence, e)
	}
}

// places says where the devices of a subject are in the cluster file, each place once.
func places(site *doctor.Site, s doctor.Subject) (list []string) {
	for _, h := range s.Hosts {
		for _, d := range s.Devices {
			if w := site.Where(h, strings.TrimPrefix(d, h+":")); w != "" && !slices.Contains(list, w) {
				list = append(list, w)
			}
		}
	}
	return list
}

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
			i.Where = places(m.c.Site, i.Subject)
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
	old.addEvidence(now, i.Evidence)
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
