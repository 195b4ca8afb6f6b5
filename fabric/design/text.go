package design

import (
	"bufio"
	"io"
	"strings"
	"unicode/utf8"
)

// textWidth is where lines of the text report end; only a word longer than its column passes it.
const textWidth = 120

// Text prints the report for a terminal, in plain characters.
func (r *Report) Text(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(s string) { b.WriteString(strings.TrimRight(s, " ") + "\n") }
	line(r.Name)
	line(strings.Repeat("=", utf8.RuneCountInString(r.Name)))
	for _, s := range r.sections() {
		line("")
		line(s.Title)
		line(strings.Repeat("-", utf8.RuneCountInString(s.Title)))
		for _, l := range wrap(s.Lead, textWidth) {
			line(l)
		}
		for i, t := range s.Tables {
			if i > 0 {
				line("")
			}
			for _, l := range t.lines() {
				line(l)
			}
		}
		if len(s.Notes) > 0 && len(s.Tables) > 0 {
			line("")
		}
		for _, n := range s.Notes {
			for i, l := range wrap(n, textWidth-2) {
				line(ternary(i == 0, "* ", "  ") + l)
			}
		}
	}
	return b.Flush()
}

// tableMargin and tableGap are the spaces before a table and between its columns.
const tableMargin, tableGap = 2, 2

// lines sets a table. Columns of words share what the columns of numbers leave,
// and wrap inside it.
func (t table) lines() []string {
	widths := make([]int, len(t.Cols))
	for i, c := range t.Cols {
		widths[i] = utf8.RuneCountInString(c.Name)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	room := textWidth - tableMargin - tableGap*(len(t.Cols)-1)
	fit(widths, t.Cols, room)
	var out []string
	if t.Title != "" {
		out = append(out, t.Title+":")
	}
	if !t.Bare {
		head := make([]string, len(t.Cols))
		for i, c := range t.Cols {
			head[i] = c.Name
		}
		out = append(out, t.set(head, widths)...)
	}
	for _, row := range t.Rows {
		out = append(out, t.set(row, widths)...)
	}
	return out
}

// set sets one row, in as many lines as its longest cell needs.
func (t table) set(cells []string, widths []int) (lines []string) {
	parts := make([][]string, len(cells))
	height := 1
	for i, c := range cells {
		parts[i] = wrap(c, widths[i])
		height = max(height, len(parts[i]))
	}
	for h := range height {
		var b strings.Builder
		b.WriteString(strings.Repeat(" ", tableMargin))
		for i := range cells {
			s := ""
			if h < len(parts[i]) {
				s = parts[i][h]
			}
			pad := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(s)))
			if i > 0 {
				b.WriteString(strings.Repeat(" ", tableGap))
			}
			if t.Cols[i].Right {
				b.WriteString(pad + s)
			} else {
				b.WriteString(s + pad)
			}
		}
		lines = append(lines, b.String())
	}
	return lines
}

// fit narrows the widest column of words by one until all fit.
func fit(widths []int, cols []col, room int) {
	for {
		sum, widest := 0, -1
		for i, w := range widths {
			sum += w
			if !cols[i].Right && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if sum <= room || widest < 0 || widths[widest] <= 12 {
			return
		}
		widths[widest]--
	}
}

// wrap breaks a text into lines of at most width characters, between words.
func wrap(s string, width int) []string {
	var out []string
	line := ""
	for _, w := range strings.Fields(s) {
		switch {
		case line == "":
			line = w
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(w) <= width:
			line += " " + w
		default:
			out = append(out, line)
			line = w
		}
	}
	if line != "" {
		out = append(out, line)
	}
	return out
}
