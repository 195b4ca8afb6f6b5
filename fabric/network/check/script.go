package check

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// mark stands before the output of each command of a script, and with its status behind it.
const mark = "==weft=="

// Limit is how long one command may take.
const Limit = 10 * time.Second

// late stands in place of the output of a command that took longer.
const late = mark + " no answer in time"

// Script is a shell script that runs all commands for a switch or a host, one
// after the other, with marks between their outputs. edit may change a command,
// or leave it out by giving none.
//
// Every command has Limit to answer: a daemon that hangs must not keep the others
// from being read.
func Script(sw bool, edit func(Command) []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "T=; command -v timeout >/dev/null && T='timeout -k 2 %d'\n", int(Limit.Seconds()))
	for _, c := range Commands() {
		if sw && !c.Switch || !sw && !c.Host {
			continue
		}
		args := edit(c)
		if len(args) == 0 {
			continue
		}
		fmt.Fprintf(&b, "echo; echo %s %s\n", mark, c.Name)
		b.WriteString("$T ")
		for _, a := range args {
			fmt.Fprintf(&b, "'%s' ", strings.ReplaceAll(a, "'", `'\''`))
		}
		fmt.Fprintf(&b, " 2>/dev/null </dev/null\nS=$?; echo; echo %s $S\n", mark)
	}
	return b.String()
}

// output is what a command said, by its status; nothing where it failed.
func output(status string, data []byte, routing bool) ([]byte, bool) {
	const noSuchCommand = "127"
	if status == "124" || status == "137" { // of timeout: ended, or killed
		return []byte(late), true
	}
	return bytes.TrimSpace(data), status == "0" || status != noSuchCommand && routing
}

// Split gives the outputs of the commands of a script that succeeded, by their
// names. Of a routing daemon's command that is there, and fails, the output is
// kept, too: that the daemon does not answer is what it says. A command that ran
// into its limit leaves a note in place of its output.
func Split(data []byte) map[string][]byte {
	routing := map[string]bool{}
	for _, c := range Commands() {
		routing[c.Name] = c.Daemon() != ""
	}
	out := map[string][]byte{}
	name, begin := "", 0
	for at := 0; at < len(data); {
		end := bytes.IndexByte(data[at:], '\n')
		if end < 0 {
			end = len(data) - at - 1
		}
		text := strings.TrimSuffix(string(data[at:at+end]), "\r")
		if word, ok := strings.CutPrefix(text, mark+" "); ok {
			if name == "" {
				name, begin = word, at+end+1
			} else {
				if said, ok := output(word, data[begin:at], routing[name]); ok {
					out[name] = said
				}
				name = ""
			}
		}
		at += end + 1
	}
	return out
}
