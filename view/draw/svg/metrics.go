package svg

import "strings"

// Advance widths of the printable ASCII characters, in thousandths of the font
// size, from the metrics of DejaVu Sans 2.37. It is the widest of the usual
// sans-serif fonts (Arial and Helvetica are about 12% narrower), so a text
// measured with it fits in any of them.
var regular = [95]uint16{
	318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337,
	636, 636, 636, 636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531,
	1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787,
	603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500,
	500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612,
	635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
}

var bold = [95]uint16{
	348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365,
	696, 696, 696, 696, 696, 696, 696, 696, 696, 696, 400, 400, 838, 838, 838, 580,
	1000, 774, 762, 734, 830, 683, 683, 821, 837, 372, 372, 775, 637, 995, 837, 850,
	733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838, 500,
	500, 675, 716, 593, 716, 678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687,
	716, 716, 493, 595, 478, 712, 652, 924, 645, 652, 582, 712, 365, 712, 838,
}

// Width is how wide a text is at most.
func (f Font) Width(s string) float64 {
	table := &regular
	if f.Bold {
		table = &bold
	}
	sum := 0
	for _, r := range s {
		sum += advance(table, r)
	}
	return float64(sum) / 1000 * f.Size
}

// advance is the width of a character in thousandths of the font size. Widths that are not in the table are too large
// rather than too small: text must not overflow.
func advance(table *[95]uint16, r rune) int {
	switch {
	case r >= ' ' && r <= '~':
		return int(table[r-' '])
	case r == '·':
		return 380
	case r == '×':
		return 838
	case r >= 0x300 && r <= 0x36F: // combining marks
		return 0
	case r < 0x1100: // Latin, Greek, Cyrillic and their neighbours; W with circumflex is 0.989
		return 1000
	case r >= 0x2000 && r < 0x2E80: // punctuation, arrows, signs: the ellipsis is 1.0
		return 1000
	}
	return 1300 // ideographs, emoji
}

// longest is how many characters of a name are looked at; a name beyond that is cut before it is measured.
const longest = 400

// Fit shortens a text to a width by an ellipsis in its middle, which keeps the
// prefix that says what a name is and the number that says which.
func (f Font) Fit(s string, width float64) string {
	if len(s) <= 4*longest && f.Width(s) <= width {
		return s
	}
	runes := []rune(s)
	if len(runes) > longest {
		runes = append(runes[:longest/2:longest/2], runes[len(runes)-longest/2:]...)
	}
	for keep := len(runes) - 1; keep > 0; keep-- {
		head := (keep + 1) / 2
		short := string(runes[:head]) + "…" + string(runes[len(runes)-keep+head:])
		if f.Width(short) <= width {
			return short
		}
	}
	if f.Width("…") <= width {
		return "…"
	}
	return ""
}

// Wrap breaks a text at blanks into lines of at most width; a word that is
// longer alone is shortened.
func (f Font) Wrap(s string, width float64) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		switch {
		case line == "":
			line = f.Fit(word, width)
		case f.Width(line+" "+word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = f.Fit(word, width)
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
