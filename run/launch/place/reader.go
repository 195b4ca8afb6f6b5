package place

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// reader reads variables and keeps the first error.
type reader struct {
	env func(string) string
	err error
}

// text is a variable without the space around it.
func (r *reader) text(name string) string { return strings.TrimSpace(r.env(name)) }

// fail keeps an error that names the variable and its value.
func (r *reader) fail(name, value, why string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s=%s: %s", name, quoted(value), why)
	}
}

// number is a variable with a whole number in it; false if it is not set.
func (r *reader) number(name string, lo, hi int) (int, bool) {
	s := r.text(name)
	if s == "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi {
		r.fail(name, s, fmt.Sprintf("want a whole number from %d to %d; set it right or unset it", lo, hi))
		return 0, false
	}
	return n, true
}

// first is the first of several variables that is set, and its name.
func (r *reader) first(lo, hi int, names ...string) (n int, name string) {
	for _, name := range names {
		if n, ok := r.number(name, lo, hi); ok {
			return n, name
		}
	}
	return 0, ""
}

// below checks that a number counts from 0 up to another.
func (r *reader) below(name string, n int, ofName string, of int) {
	if n >= 0 && of > 0 && n >= of {
		r.fail(name, strconv.Itoa(n), fmt.Sprintf("%s is %d and numbers start at 0; one of both is left over from elsewhere: unset it",
			ofName, of))
	}
}

// host checks that a variable can be the name or number of a host.
func (r *reader) host(name, value string) bool {
	if err := checkHost(value); err != nil {
		r.fail(name, value, err.Error())
		return false
	}
	return true
}

// maxLabel is the most bytes that the name of a job has.
const maxLabel = 128

// labelled says whether a rune may stand in the name of a job.
func labelled(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.:@+", c)
}

// label makes the name of a job of any text. What does not belong in a name
// becomes "_", and a hash of the text keeps different ones apart.
func label(s string) string {
	clean := strings.Map(func(c rune) rune {
		if labelled(c) {
			return c
		}
		return '_'
	}, s)
	if clean == s && len(s) <= maxLabel {
		return s
	}
	return clean[:min(len(clean), maxLabel-9)] + "-" + digest(s)
}

// checkLabel refuses what is not the name of a job.
func checkLabel(s string) error {
	if s == "" || len(s) > maxLabel {
		return fmt.Errorf("a name has 1 to %d bytes, this one has %d", maxLabel, len(s))
	}
	if strings.ContainsFunc(s, func(c rune) bool { return !labelled(c) }) {
		return errors.New("a name has letters, digits and - _ . : @ + alone")
	}
	return nil
}

// digest is eight hexadecimal digits of a text.
func digest(s string) string { return fmt.Sprintf("%08x", hash(s)) }

func hash(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

// quoted is a value for an error: bare if it is plain, quoted and cut otherwise.
func quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' }) {
		return clip(s)
	}
	return strconv.Quote(clip(s))
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}
