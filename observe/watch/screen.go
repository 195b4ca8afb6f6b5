package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Style says how a screen looks.
type Style struct {
	Width, Height int  // of the terminal; 100 and 40 if 0
	Color         bool // ANSI colours
}

// Screen draws a view for a terminal. Rows are some of the joined table.
func Screen(v View, rows []Row, st Style) string {
	if st.Width <= 0 {
		st.Width = 100
	}
	if st.Height <= 0 {
		st.Height = 40
	}
	s := &screen{st: st}
	s.health(v)
	s.incidents(v)
	s.jobs(v.Jobs)
	if len(v.Heat.Cells) > 0 {
		s.head("Ports by rail: load of each switch or host")
		s.heat(v.Heat)
	}
	s.late(v.Late)
	s.collectives(v.Collectives)
	s.links(v.Links)
	s.ranks(rows)
	s.changes(v.Changes)
	s.over(v.Incidents)
	out := s.lines
	if len(out) > st.Height {
		out = out[:st.Height]
	}
	return strings.Join(out, "\n") + "\n"
}

func (s *screen) health(v View) {
	h := v.Health
	sign := map[string]string{"good": "●", "warn": "▲", "bad": "■", "unknown": "?"}[h.State]
	s.line(s.paint(h.State, sign+" "+strings.ToUpper(h.State))+"  "+s.bold(v.Title), clock(v.Now))
	s.text(h.Verdict)
	hosts := fmt.Sprintf("hosts %d", h.Hosts)
	if h.Expected > 0 {
		hosts = fmt.Sprintf("hosts %d of %d", h.Hosts, h.Expected)
	}
	s.text(s.dim(fmt.Sprintf("%s (%d silent)   ports %d (%d down)   checks %d (%d not good)   jobs %d   ranks %d   series %d",
		hosts, h.Silent, h.Ports, h.Down, h.Checks, h.Bad, h.Jobs, h.Ranks, h.Series)))
}

// incidents shows those that are open, as many as there is room for.
func (s *screen) incidents(v View) {
	s.head("Incidents")
	open, most := 0, max(4, s.st.Height/5)
	for _, i := range v.Incidents {
		if i.Ended > 0 {
			continue
		}
		if open++; open > most {
			continue
		}
		state := "warn"
		if i.Severity.String() == "critical" {
			state = "bad"
		}
		s.text(s.paint(state, map[string]string{"bad": "■", "warn": "▲"}[state]) + fmt.Sprintf(" #%d %s", i.ID, i.Verdict))
		detail := fmt.Sprintf("    for %s, %.0f%% sure. %s", span(v.Now-i.Began), 100*i.Confidence, i.Cause)
		if len(i.Where) > 0 {
			detail += "; " + i.Where[0]
		}
		s.text(s.dim(detail))
		s.text("    do: " + i.Fix)
	}
	if open == 0 {
		s.text(s.dim("none is open"))
	}
	if n := open - most; n > 0 {
		s.text(s.dim(fmt.Sprintf("and %d more", n)))
	}
}

func (s *screen) jobs(jobs []JobView) {
	if len(jobs) == 0 {
		return
	}
	s.head("Jobs")
	s.row(s.dim, "job", 18, "ranks", 9, "hosts", 6, "ops/s", 9, "quiet", 9, "state", 0)
	for _, j := range jobs[:min(len(jobs), 6)] {
		s.row(func(x string) string { return s.paint(j.State, x) }, j.Job, 18, fmt.Sprintf("%d/%d", j.Ranks, j.Size), 9, fmt.Sprint(j.Hosts), 6,
			fmt.Sprintf("%.3g", j.Rate), 9, span(j.Quiet), 9, cmp2(j.Verdict, cmp2(j.End, "good")), 0)
	}
}

func (s *screen) late(list []LateView) {
	late := slices.DeleteFunc(slices.Clone(list), func(l LateView) bool { return l.Cost < 0.005 })
	if len(late) == 0 {
		return
	}
	s.head("Late ranks")
	for _, l := range late[:min(len(late), 4)] {
		s.text(fmt.Sprintf("rank %-5d %-12s others wait for it %3.0f%% of the time, %10s when it is last  %s",
			l.Rank, l.Host, 100*l.Cost, span(l.Late), s.bar(l.Cost)))
	}
}

func (s *screen) collectives(list []CollectiveView) {
	if len(list) == 0 {
		return
	}
	s.head("Collectives")
	s.row(s.dim, "job", 14, "operation", 16, "size", 10, "ranks", 6, "took", 10, "GB/s", 8, "predicted", 10, "ratio", 7, "baseline", 10,
		"ratio", 0)
	for _, c := range list[:min(len(list), 5)] {
		none := func(x float64) string {
			if x == 0 {
				return "-"
			}
			return span(x)
		}
		ratio := func(x float64) string {
			if x == 0 {
				return "-"
			}
			return fmt.Sprintf("%.2f", x)
		}
		s.row(nil, c.Job, 14, c.Op, 16, size(c.Bytes), 10, fmt.Sprint(c.Ranks), 6, none(c.Took), 10, fmt.Sprintf("%.3g", c.Bus), 8,
			none(c.Predicted), 10, ratio(c.Against), 7, none(c.Baseline), 10, ratio(c.Ratio), 0)
	}
}

// links shows the slowest of one job.
func (s *screen) links(list []LinkView) {
	for _, l := range list[:min(len(list), 1)] {
		s.head("Links of " + l.Job + ": the slowest of " + fmt.Sprint(len(l.Cells)))
		cells := slices.Clone(l.Cells)
		slices.SortStableFunc(cells, func(a, b LinkCell) int {
			x, y := a.MBps, b.MBps
			if a.Cut {
				x = -1
			}
			if b.Cut {
				y = -1
			}
			return int(max(-1, min(1, (x-y)*1e9)))
		})
		for _, c := range cells[:min(len(cells), 3)] {
			what := fmt.Sprintf("%8.4g MB/s, %.1f times the median delay", c.MBps, c.Ratio)
			if c.Predicted > 0 {
				what += fmt.Sprintf(", %.3g of the predicted %.4g MB/s", c.Against, c.Predicted)
			}
			if c.Cut {
				what = "nothing gets through"
			}
			s.text(fmt.Sprintf("rank %d to rank %d  %s", c.From, c.To, what))
		}
	}
}

func (s *screen) ranks(rows []Row) {
	if len(rows) == 0 {
		return
	}
	s.head("Ranks")
	s.row(s.dim, "job", 14, "rank", 6, "host", 10, "gpu", 5, "nic", 8, "rail", 6, "leaf", 10, "port", 6, "operation", 11, "late", 10,
		"state", 0)
	for _, r := range rows {
		rail, port := "-", "-"
		if r.Rail >= 0 {
			rail = fmt.Sprint(r.Rail)
		}
		if r.Leaf != "" {
			port = fmt.Sprint(r.Port)
		}
		state := r.State
		paint := func(x string) string { return x }
		if r.Trouble != "" {
			state, paint = r.Trouble, func(x string) string { return s.paint("bad", x) }
		}
		s.row(paint, r.Job, 14, fmt.Sprint(r.Rank), 6, r.Host, 10, r.GPU, 5, cmp2(r.NIC, "-"), 8, rail, 6, cmp2(r.Leaf, "-"), 10, port, 6,
			fmt.Sprint(r.Seq), 11, span(max(0, r.Late)), 10, state, 0)
	}
}

func (s *screen) changes(list []Change) {
	if len(list) == 0 {
		return
	}
	s.head("Changed since yesterday")
	for _, c := range list[:min(len(list), 4)] {
		s.text(fmt.Sprintf("%s  %s: %s was %s, is %s", clock(c.At), c.Host, c.What, cmp2(c.From, "not there"), cmp2(c.To, "gone")))
	}
}

// over shows incidents that have ended.
func (s *screen) over(incidents []Incident) {
	past := 0
	for _, i := range incidents {
		if i.Ended == 0 {
			continue
		}
		if past++; past == 1 {
			s.head("Over")
		}
		if past <= 4 {
			s.text(s.dim(fmt.Sprintf("%s  %s, lasted %s", clock(i.Began), i.Verdict, span(i.Ended-i.Began))))
		}
	}
}

type screen struct {
	st    Style
	lines []string
}

func cmp2(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func clock(at float64) string {
	return time.Unix(0, int64(at*1e9)).UTC().Format("2006-01-02 15:04:05")
}

func (s *screen) esc(code, x string) string {
	if !s.st.Color || x == "" {
		return x
	}
	return "\x1b[" + code + "m" + x + "\x1b[0m"
}

func (s *screen) bold(x string) string { return s.esc("1", x) }
func (s *screen) dim(x string) string  { return s.esc("2", x) }

// paint colours by state. Every state has a sign of its own besides.
func (s *screen) paint(state, x string) string {
	return s.esc(map[string]string{"good": "32", "warn": "33", "bad": "1;31", "unknown": "36"}[state], x)
}

// seen is the length of a text without colours.
func seen(x string) int {
	n, in := 0, false
	for _, r := range x {
		switch {
		case r == '\x1b':
			in = true
		case in && r == 'm':
			in = false
		case !in:
			n++
		}
	}
	return n
}

// cut shortens a text to a width, colours aside.
func cut(x string, width int) string {
	if seen(x) <= width {
		return x
	}
	n, in := 0, false
	for i, r := range x {
		switch {
		case r == '\x1b':
			in = true
		case in && r == 'm':
			in = false
		case !in:
			if n++; n == width {
				end := ""
				if strings.Contains(x, "\x1b") {
					end = "\x1b[0m"
				}
				return x[:i] + "…" + end
			}
		}
	}
	return x
}

func (s *screen) text(x string) {
	s.lines = append(s.lines, cut(strings.ReplaceAll(x, "\n", " "), s.st.Width))
}

func (s *screen) line(left, right string) {
	left = cut(left, s.st.Width-len(right)-1)
	s.lines = append(s.lines, left+strings.Repeat(" ", max(1, s.st.Width-seen(left)-len(right)))+s.dim(right))
}

func (s *screen) head(x string) {
	if n := len(s.lines); n > 0 {
		s.lines = append(s.lines, "")
	}
	s.lines = append(s.lines, s.bold(x))
}

// row writes pairs of text and width.
func (s *screen) row(paint func(string) string, pairs ...any) {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		x, w := pairs[i].(string), pairs[i+1].(int)
		if w == 0 {
			b.WriteString(x)
			break
		}
		x = cut(x, w-1)
		b.WriteString(x + strings.Repeat(" ", w-utf8.RuneCountInString(x)))
	}
	x := cut(b.String(), s.st.Width)
	if paint != nil {
		x = paint(x)
	}
	s.lines = append(s.lines, x)
}

func (s *screen) bar(x float64) string {
	n := int(20*max(0, min(1, x)) + 0.5)
	return strings.Repeat("█", n) + s.dim(strings.Repeat("░", 20-n))
}

// heat draws one line for each rail.
func (s *screen) heat(h Heat) {
	shades := []rune("·▁▂▃▄▅▆▇█")
	for c, name := range h.Columns[:min(len(h.Columns), 16)] {
		var b strings.Builder
		bad, n := 0, 0
		for _, x := range h.Cells {
			if x.Column != c {
				continue
			}
			if n++; n > s.st.Width-34 {
				continue
			}
			k := int(max(0, min(1, x.Load)) * float64(len(shades)-1))
			sign := string(shades[k])
			switch {
			case x.Bad > 0 || x.Down > 0:
				bad++
				sign = s.paint("bad", "■")
			case x.Warn > 0:
				sign = s.paint("warn", "▲")
			}
			b.WriteString(sign)
		}
		note := ""
		if bad > 0 {
			note = s.paint("bad", fmt.Sprintf("  %d with bad ports", bad))
		}
		s.text(fmt.Sprintf("%-10s %s%s", name, b.String(), note))
	}
}
