package read

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// parseJSON reads JSON into the values that unpickle makes, so that a dump in
// either form is read by the same code. A text that ends in the middle gives what
// is in it, and errCut.
func parseJSON(b []byte) (any, error) {
	j := &jsoner{b: b}
	v, err := j.value(0)
	if err == nil {
		j.space()
		if j.at < len(j.b) {
			return v, fmt.Errorf("line %d: something follows the end of the JSON value", j.lineAt())
		}
	}
	return v, err
}

type jsoner struct {
	b  []byte
	at int
}

func (j *jsoner) lineAt() int { return 1 + strings.Count(string(j.b[:min(j.at, len(j.b))]), "\n") }

func (j *jsoner) space() {
	for j.at < len(j.b) {
		switch j.b[j.at] {
		case ' ', '\t', '\n', '\r':
			j.at++
		default:
			return
		}
	}
}

// value reads any value. With errCut it returns what it has of an object or a list: a file that was cut is still
// evidence.
func (j *jsoner) value(depth int) (any, error) {
	if depth > 200 {
		return nil, fmt.Errorf("line %d: JSON nested deeper than 200", j.lineAt())
	}
	j.space()
	if j.at >= len(j.b) {
		return nil, errCut
	}
	switch c := j.b[j.at]; {
	case c == '{':
		return j.object(depth)
	case c == '[':
		return j.list(depth)
	case c == '"':
		return j.text()
	case c == '-' || c >= '0' && c <= '9':
		return j.number()
	}
	return j.word()
}

func (j *jsoner) word() (any, error) {
	for word, v := range map[string]any{"true": true, "false": false, "null": nil, "NaN": nil} {
		if rest := j.b[j.at:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			j.at += len(word)
			return v, nil
		} else if strings.HasPrefix(word, string(rest)) {
			return nil, errCut
		}
	}
	return nil, fmt.Errorf("line %d: %q begins no JSON value", j.lineAt(), j.b[j.at])
}

// key reads an object's key and the colon behind it.
func (j *jsoner) key() (string, error) {
	if j.at >= len(j.b) {
		return "", errCut
	}
	if j.b[j.at] != '"' {
		return "", fmt.Errorf("line %d: expected a key in quotes, found %q", j.lineAt(), j.b[j.at])
	}
	k, err := j.text()
	if err != nil {
		return "", err
	}
	j.space()
	if j.at >= len(j.b) {
		return "", errCut
	}
	if j.b[j.at] != ':' {
		return "", fmt.Errorf("line %d: expected : after key %q", j.lineAt(), clip(k))
	}
	j.at++
	return k, nil
}

func (j *jsoner) object(depth int) (any, error) {
	j.at++
	d := &pdict{map[string]any{}}
	for first := true; ; first = false {
		j.space()
		if j.at >= len(j.b) {
			return d, errCut
		}
		if j.b[j.at] == '}' {
			j.at++
			return d, nil
		}
		if !first {
			if j.b[j.at] != ',' {
				return d, fmt.Errorf("line %d: expected , or } in an object, found %q", j.lineAt(), j.b[j.at])
			}
			j.at++
			j.space()
		}
		k, err := j.key()
		if err != nil {
			return d, err
		}
		v, err := j.value(depth + 1)
		if err != nil {
			switch v.(type) { // a part of a container is worth keeping, a part of a number is wrong
			case *pdict, *plist:
				d.m[k] = v
			}
			return d, err
		}
		d.m[k] = v
	}
}

func (j *jsoner) list(depth int) (any, error) {
	j.at++
	l := &plist{}
	for first := true; ; first = false {
		j.space()
		if j.at >= len(j.b) {
			return l, errCut
		}
		if j.b[j.at] == ']' {
			j.at++
			return l, nil
		}
		if !first {
			if j.b[j.at] != ',' {
				return l, fmt.Errorf("line %d: expected , or ] in a list, found %q", j.lineAt(), j.b[j.at])
			}
			j.at++
		}
		v, err := j.value(depth + 1)
		if err != nil {
			switch v.(type) {
			case *pdict, *plist:
				l.l = append(l.l, v)
			}
			return l, err
		}
		l.l = append(l.l, v)
	}
}

// number reads a number, as int64 where it fits: record ids and times in nanoseconds do not fit a float64. At the end
// of the file it may be cut, and half a number is wrong.
func (j *jsoner) number() (any, error) {
	from := j.at
	for j.at < len(j.b) && strings.IndexByte("+-.eE0123456789", j.b[j.at]) >= 0 {
		j.at++
	}
	if j.at >= len(j.b) && from > 0 {
		return nil, errCut
	}
	s := string(j.b[from:j.at])
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, fmt.Errorf("line %d: %q is not a number", j.lineAt(), clip(s))
	}
	return f, nil
}

// escapes are the bytes that a letter behind a backslash stands for; all other letters stand for themselves.
var escapes = map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', 'b': ' ', 'f': ' '}

// escape reads a backslash and what follows it.
func (j *jsoner) escape(b *strings.Builder) error {
	if j.at+1 >= len(j.b) {
		return errCut
	}
	e := j.b[j.at+1]
	j.at += 2
	if e != 'u' {
		b.WriteByte(cmp.Or(escapes[e], e))
		return nil
	}
	r, ok := j.hex()
	if !ok {
		return fmt.Errorf("line %d: bad \\u in a text", j.lineAt())
	}
	if utf16.IsSurrogate(r) && j.at+1 < len(j.b) && j.b[j.at] == '\\' && j.b[j.at+1] == 'u' {
		j.at += 2
		low, _ := j.hex()
		r = utf16.DecodeRune(r, low)
	}
	b.WriteRune(r)
	return nil
}

func (j *jsoner) text() (string, error) {
	j.at++
	var b strings.Builder
	for j.at < len(j.b) {
		switch c := j.b[j.at]; c {
		case '"':
			j.at++
			return b.String(), nil
		case '\\':
			if err := j.escape(&b); err != nil {
				return "", err
			}
		default:
			b.WriteByte(c)
			j.at++
		}
	}
	return "", errCut
}

func (j *jsoner) hex() (rune, bool) {
	if j.at+4 > len(j.b) {
		return utf8.RuneError, false
	}
	n, err := strconv.ParseUint(string(j.b[j.at:j.at+4]), 16, 32)
	j.at += 4
	return rune(n), err == nil
}

// What follows reads values that may be missing or of another type.

func (d *pdict) get(key string) any {
	if d == nil {
		return nil
	}
	return d.m[key]
}

func (d *pdict) dict(key string) *pdict { v, _ := d.get(key).(*pdict); return v }

func (d *pdict) list(key string) []any {
	if v, _ := d.get(key).(*plist); v != nil {
		return v.l
	}
	return nil
}

func (d *pdict) text(key string) string {
	switch v := d.get(key).(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}

// int reads a number that may be given as text, as the JSON form of PyTorch's
// dumps does.
func (d *pdict) int(key string, absent int64) int64 {
	switch v := d.get(key).(type) {
	case int64:
		return v
	case float64:
		if v > -9e18 && v < 9e18 {
			return int64(v)
		}
	case bool:
		if v {
			return 1
		}
		return 0
	case string:
		if n, err := strconv.ParseInt(strings.TrimSpace(v), 0, 64); err == nil {
			return n
		}
	}
	return absent
}

func (d *pdict) float(key string) float64 {
	switch v := d.get(key).(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	case string:
		f, _ := strconv.ParseFloat(strings.TrimSpace(v), 64)
		return f
	}
	return 0
}

func (d *pdict) bool(key string) bool {
	switch v := d.get(key).(type) {
	case bool:
		return v
	case string:
		return strings.EqualFold(v, "true")
	case int64:
		return v != 0
	}
	return false
}

func (d *pdict) has(keys ...string) bool {
	for _, k := range keys {
		if _, ok := d.m[k]; !ok {
			return false
		}
	}
	return true
}

// print writes a value in few words, for comparing.
func print(v any) string { return printTo(v, 8) }

// printTo stops at a depth: a pickle may hold a list that holds itself.
func printTo(v any, depth int) string {
	if depth == 0 {
		return "..."
	}
	switch v := v.(type) {
	case *plist:
		var b strings.Builder
		b.WriteByte('[')
		for i, x := range v.l {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(printTo(x, depth-1))
			if b.Len() > 1<<16 {
				break
			}
		}
		b.WriteByte(']')
		return b.String()
	case *pdict:
		return "{}"
	case string:
		return v
	case nil:
		return ""
	}
	return fmt.Sprint(v)
}

// clip shortens what is quoted in a message.
func clip(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}
