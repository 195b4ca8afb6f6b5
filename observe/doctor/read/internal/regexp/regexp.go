// Package regexp is Go's package of that name with expressions that are compiled when first used. Two hundred of them
// take 10 ms of a processor, which every weft process would spend before it begins, also where no log is read.
package regexp

import (
	"regexp"
	"sync"
)

// Regexp is an expression.
type Regexp struct{ get func() *regexp.Regexp }

// MustCompile notes an expression. A wrong one panics when it is first used; a test of package read compiles all.
func MustCompile(text string) *Regexp {
	return &Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })}
}

func (r *Regexp) MatchString(s string) bool              { return r.get().MatchString(s) }
func (r *Regexp) FindString(s string) string             { return r.get().FindString(s) }
func (r *Regexp) FindStringSubmatch(s string) []string   { return r.get().FindStringSubmatch(s) }
func (r *Regexp) FindSubmatch(b []byte) [][]byte         { return r.get().FindSubmatch(b) }
func (r *Regexp) ReplaceAllString(s, with string) string { return r.get().ReplaceAllString(s, with) }
func (r *Regexp) SubexpNames() []string                  { return r.get().SubexpNames() }
func (r *Regexp) FindAllStringSubmatch(s string, n int) [][]string {
	return r.get().FindAllStringSubmatch(s, n)
}
func (r *Regexp) FindAllStringSubmatchIndex(s string, n int) [][]int {
	return r.get().FindAllStringSubmatchIndex(s, n)
}
