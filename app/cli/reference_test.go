package cli

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

const referencePage = "../../docs/reference/commands.md"

// reference writes the page of all commands from the commands themselves.
func reference() string {
	var b bytes.Buffer
	b.WriteString("# Commands\n\nEvery command with its flags, as `--help` prints it. Made by:\n\n    UPDATE=1 go test ./app/cli -run Reference\n\n" +
		"Exit codes: 0 success, 1 a finding or a failure, 2 wrong use.\n")
	root := newRoot()
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n- %s", g.Title)
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && c.IsAvailableCommand() && c.Name() != "completion" {
				fmt.Fprintf(&b, " [%s](#weft-%s)", c.Name(), c.Name())
			}
		}
	}
	b.WriteString("\n")
	var write func(c *cobra.Command)
	write = func(c *cobra.Command) {
		if c.IsAvailableCommand() && c.Name() != "completion" {
			about := c.Long
			if about == "" {
				about = c.Short
			}
			fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n\n%s```\n", c.CommandPath(), strings.TrimSpace(about), c.UsageString())
			for _, sub := range c.Commands() {
				write(sub)
			}
		}
	}
	for _, c := range root.Commands() {
		write(c)
	}
	return b.String()
}

func TestReferenceIsCurrent(t *testing.T) {
	want := reference()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(referencePage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) == want {
		return
	}
	h, w := strings.Split(string(have), "\n"), strings.Split(want, "\n")
	for i := range min(len(h), len(w)) {
		if h[i] != w[i] {
			t.Fatalf("%s:%d is %q; the commands say %q. 'UPDATE=1 go test ./app/cli -run Reference' writes the page.",
				referencePage, i+1, h[i], w[i])
		}
	}
	t.Fatalf("%s has %d lines, the commands make %d; 'UPDATE=1 go test ./app/cli -run Reference' writes the page",
		referencePage, len(h), len(w))
}
