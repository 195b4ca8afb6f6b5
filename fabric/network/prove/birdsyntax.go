package prove

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// birdToken is a word or a sign of bird.conf.
type birdToken struct {
	text string
	line int
}

// birdStatement ends with a semicolon or with a body in braces.
type birdStatement struct {
	words []string
	head  []birdToken // the words, with their lines
	body  []birdToken // what stands in braces
	block bool        // there are braces
}

func (s *birdStatement) String() string { return strings.Join(s.words, " ") }

// birdWord finds the next word of bird.conf: blanks and comments, texts, signs, or names, numbers and prefixes.
var birdWord = regexp.MustCompile(`^(?:(\s+|#[^\n]*|//[^\n]*|(?s:/\*.*?\*/))|("[^"\n]*")|` +
	`(&&|\|\||!=|!~|>=|<=|[{}\[\]();,=~!<>])|([\w.:/%+*?-]+))`)

// birdTokens cuts bird.conf into words.
func birdTokens(text string) (out []birdToken, err error) {
	line := 1
	for text != "" {
		m := birdWord.FindStringSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("line %d: cannot read %.20q", line, text)
		}
		if m[1] == "" {
			out = append(out, birdToken{m[0], line})
		}
		line += strings.Count(m[0], "\n")
		text = text[len(m[0]):]
	}
	return out, nil
}

// birdStatements cuts words into statements.
func birdStatements(in []birdToken) (out []birdStatement, err error) {
	var s birdStatement
	end := func() {
		if len(s.words) > 0 {
			out = append(out, s)
		}
		s = birdStatement{}
	}
	sets := 0 // in square brackets braces are lengths of prefixes
	for i := 0; i < len(in); i++ {
		switch t := in[i]; {
		case t.text == ";":
			end()
			continue
		case t.text == "{" && sets == 0:
			size := birdBody(in[i:])
			if size < 0 {
				return nil, fmt.Errorf("line %d: { without }", t.line)
			}
			s.body, s.block = in[i+1:i+size], true
			i += size
			end()
			continue
		}
		sets += birdDepth(in[i].text, "[", "]")
		s.words, s.head = append(s.words, in[i].text), append(s.head, in[i])
	}
	if len(s.words) > 0 {
		return nil, fmt.Errorf("line %d: %q does not end", s.head[0].line, &s)
	}
	return out, nil
}

func birdDepth(text, open, closed string) int {
	switch text {
	case open:
		return 1
	case closed:
		return -1
	}
	return 0
}

// birdBody is where the brace ends that words begin with; negative if it does not.
func birdBody(in []birdToken) int {
	depth := 0
	for i, t := range in {
		if depth += birdDepth(t.text, "{", "}"); depth == 0 {
			return i
		}
	}
	return -1
}

// birdPolicy decides whether a route passes. own says that it is to a network of the router itself, not learnt by BGP.
type birdPolicy func(p netip.Prefix, own bool) bool

func birdAll(netip.Prefix, bool) bool  { return true }
func birdNone(netip.Prefix, bool) bool { return false }

// birdCode reads the language of filters. The first thing that it does not know is err.
type birdCode struct {
	in   []birdToken
	at   int
	sets map[string][]Permit // by name
	err  error
}

func (c *birdCode) peek() string {
	if c.at < len(c.in) {
		return c.in[c.at].text
	}
	return ""
}

func (c *birdCode) next() string {
	text := c.peek()
	c.at++
	return text
}

// take goes on if the next word is a certain one.
func (c *birdCode) take(text string) bool {
	if c.peek() != text {
		return false
	}
	c.at++
	return true
}

func (c *birdCode) need(text string) {
	if !c.take(text) {
		c.fail("wants " + text)
	}
}

func (c *birdCode) fail(why string) {
	if c.err != nil {
		return
	}
	line := 0
	if k := min(c.at, len(c.in)-1); k >= 0 {
		line = c.in[k].line
	}
	c.err = fmt.Errorf("line %d: a filter near %q %s", line, c.peek(), why)
}

// birdVerdict is what a statement of a filter comes to: nothing where the next one decides.
type birdVerdict int

const (
	birdOpen birdVerdict = iota
	birdAccept
	birdReject
)

type birdStep func(p netip.Prefix, own bool) birdVerdict

// filter reads the body of a filter. One that decides nothing rejects.
func (c *birdCode) filter() birdPolicy {
	run := c.steps("")
	return func(p netip.Prefix, own bool) bool { return run(p, own) == birdAccept }
}

// steps reads statements up to a word, or to the end.
func (c *birdCode) steps(end string) birdStep {
	var list []birdStep
	for c.err == nil && c.peek() != end {
		if c.take(";") {
			continue
		}
		list = append(list, c.step())
	}
	return func(p netip.Prefix, own bool) birdVerdict {
		for _, s := range list {
			if v := s(p, own); v != birdOpen {
				return v
			}
		}
		return birdOpen
	}
}

// step reads one statement.
func (c *birdCode) step() birdStep {
	switch word := c.next(); word {
	case "accept", "reject":
		return c.verdict(word)
	case "{":
		s := c.steps("}")
		c.need("}")
		return s
	case "if":
		return c.branch()
	default:
		if attribute, _, _ := strings.Cut(word, "."); slices.Contains(birdMarks, attribute) {
			return c.mark()
		}
	}
	c.at--
	c.fail("is not modelled")
	return nil
}

// birdMarks are attributes that filters may set: no packet goes elsewhere for them, and no filter that is modelled asks for them.
var birdMarks = []string{"krt_prefsrc", "bgp_community", "bgp_ext_community", "bgp_large_community"}

// mark passes over what is done to an attribute.
func (c *birdCode) mark() birdStep {
	for c.peek() != "" && !c.take(";") {
		c.at++
	}
	return func(netip.Prefix, bool) birdVerdict { return birdOpen }
}

// verdict reads what stands behind accept or reject: perhaps a text for the log.
func (c *birdCode) verdict(word string) birdStep {
	for c.err == nil && !c.take(";") {
		if c.peek() == "}" || c.peek() == "" {
			break
		}
		if c.peek()[0] != '"' {
			c.fail("is not modelled")
		}
		c.at++
	}
	v := birdReject
	if word == "accept" {
		v = birdAccept
	}
	return func(netip.Prefix, bool) birdVerdict { return v }
}

// branch compiles if EXPR then STEP [else STEP]. Without else the policy goes on with the next step.
func (c *birdCode) branch() birdStep {
	is := c.expr()
	c.need("then")
	if c.err != nil {
		return nil
	}
	yes, no := c.step(), birdStep(func(netip.Prefix, bool) birdVerdict { return birdOpen })
	if c.err == nil && c.take("else") {
		no = c.step()
	}
	return func(p netip.Prefix, own bool) birdVerdict {
		if is(p, own) {
			return yes(p, own)
		}
		return no(p, own)
	}
}

// expr reads a condition. In BIRD && does not bind closer than ||: the left one comes first.
func (c *birdCode) expr() birdPolicy {
	left := c.term()
	for c.err == nil {
		a := left
		switch {
		case c.take("&&"):
			b := c.term()
			left = func(p netip.Prefix, own bool) bool { return a(p, own) && b(p, own) }
		case c.take("||"):
			b := c.term()
			left = func(p netip.Prefix, own bool) bool { return a(p, own) || b(p, own) }
		default:
			return left
		}
	}
	return birdNone
}

// term compiles a factor of a condition. What the model does not have is an error, not true or false: a proof over a
// filter that was only partly read would prove nothing.
func (c *birdCode) term() birdPolicy {
	switch word := c.next(); word {
	case "!":
		is := c.term()
		return func(p netip.Prefix, own bool) bool { return !is(p, own) }
	case "(":
		is := c.expr()
		c.need(")")
		return is
	case "true":
		return birdAll
	case "false":
		return birdNone
	case "source":
		return c.source()
	case "net":
		return c.net()
	}
	c.at--
	c.fail("is not modelled")
	return birdNone
}

// source reads where routes come from. Those that the model has are networks of a router's own ports, or learnt by BGP.
func (c *birdCode) source() birdPolicy {
	op := c.next()
	names := []string{c.next()}
	if names[0] == "[" {
		for names = nil; c.err == nil && !c.take("]"); c.take(",") {
			names = append(names, c.next())
		}
	}
	sets := op == "~" || op == "!~"
	if !sets && op != "=" && op != "!=" || slices.ContainsFunc(names, func(x string) bool { return !strings.HasPrefix(x, "RTS_") }) {
		c.fail("is not modelled")
		return birdNone
	}
	return func(_ netip.Prefix, own bool) bool {
		from := "RTS_BGP"
		if own {
			from = "RTS_DEVICE"
		}
		return slices.Contains(names, from) != (op[0] == '!')
	}
}

// net reads what networks are compared with: a set of them, or one.
func (c *birdCode) net() birdPolicy {
	var list []Permit
	op := c.next()
	switch op {
	case "~", "!~":
		list = c.set()
	case "=", "!=":
		p, err := netip.ParsePrefix(c.next())
		if err != nil {
			c.fail(err.Error())
		}
		list = []Permit{{p, p.Bits(), p.Bits()}}
	default:
		c.at--
		c.fail("is not modelled")
	}
	not := op[0] == '!'
	return func(p netip.Prefix, _ bool) bool {
		return not != slices.ContainsFunc(list, func(l Permit) bool { return l.permits(p) })
	}
}

// set reads a set of networks, its name, or one network that stands for all inside it.
func (c *birdCode) set() (out []Permit) {
	if set, known := c.sets[c.peek()]; known {
		c.at++
		return set
	}
	if !c.take("[") {
		p, err := netip.ParsePrefix(c.next())
		if err != nil {
			c.fail(err.Error())
		}
		return []Permit{{p, p.Bits(), 32}}
	}
	for c.err == nil && !c.take("]") {
		out = append(out, c.permit())
		if c.peek() != "]" {
			c.need(",")
		}
	}
	return out
}

// permit reads one network of a set, with the lengths of those inside it: + for all, {A,B} for some.
func (c *birdCode) permit() Permit {
	text, all := strings.CutSuffix(c.next(), "+")
	p, err := netip.ParsePrefix(text)
	if err != nil {
		c.fail(err.Error())
		return Permit{}
	}
	l := Permit{p, p.Bits(), p.Bits()}
	if all {
		l.Max = 32
	}
	if c.take("{") {
		l.Min = c.number()
		c.need(",")
		l.Max = c.number()
		c.need("}")
	}
	if l.Min < p.Bits() {
		c.fail("takes networks larger than its own, which is not modelled")
	}
	return l
}

func (c *birdCode) number() int {
	n, err := strconv.Atoi(c.next())
	if err != nil {
		c.fail(err.Error())
	}
	return n
}
