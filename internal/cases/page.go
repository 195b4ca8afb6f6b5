package cases

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo/catalog"
)

// The guides: five published texts on GPU clusters, in Chinese, as engineers read them.
var guides = []struct{ name, about string }{
	{"layers", "network, transport, library and application layers"},
	{"clusters", "very large clusters, reliability, monitoring"},
	{"links", "PCIe, NVLink, NVSwitch and NCCL"},
	{"models", "training and serving with many GPUs"},
	{"transfers", "overlap, RDMA, NCCL's pitfalls, SHARP, NIXL"},
}

// Page writes the cases as docs/reference/tables/reference-cases.md has them.
func Page(list []Case) string {
	var b strings.Builder
	right := 0
	causes := map[Cause]int{}
	for i := range list {
		if list[i].Right() {
			right++
		} else {
			causes[list[i].Cause]++
		}
	}
	b.WriteString(`# Reference cases

Made by:

    go test ./internal/cases -run Page -update

Worked figures from five published guides to GPU clusters, each beside what weft computes, and why the two differ. Read it if a
guide gives you a figure on collectives or links and you want to know whether to believe it.
` + "`go test ./internal/cases -run Cases -v`" + ` prints each case by its name and checks ours against bounds from a closed form.

Ours is computed at run time: simulated on a built topology (at the rates of the wires, or at measured rates with the
overheads of software), NCCL's choice with a time fitted to measurements, counted by the verifier on the program
itself, or taken from the catalogue. Rates are one way unless they say otherwise. Fitted times have two digits.

The four topologies that the most cited figures are about are in ` + "`examples/collective-*.yaml`" + `:

    weft sim collective --op all-reduce --size 1GB --cluster examples/collective-pcie.yaml
    weft sim collective --op all-reduce --size 1GB --cluster examples/collective-cube-mesh.yaml
    weft sim collective --op all-reduce --size 1GB --cluster examples/collective-nvswitch.yaml
    weft sim collective --op all-reduce --size 1GB --cluster examples/collective-torus.yaml

With ` + "`--wire`" + ` they print the times of links-5.2-pcie, -mesh, -nvswitch and clusters-4-torus-shape below, without it what transports reach.

`)
	fmt.Fprintf(&b, "%d cases: %d agree within a tenth.\n\n", len(list), right)
	b.WriteString("| why the others differ | cases |\n|---|---|\n")
	for _, c := range []Cause{Volume, BothWays, BitsBytes, Wiring, Arithmetic, Denominator, Latency, Software, Conditions, Estimate} {
		fmt.Fprintf(&b, "| %s | %d |\n", c, causes[c])
	}
	last := ""
	for i := range list {
		c := &list[i]
		if name, _, _ := strings.Cut(c.ID, "-"); name != last {
			last = name
			k := slices.IndexFunc(guides, func(g struct{ name, about string }) bool { return g.name == name })
			fmt.Fprintf(&b, "\n## %s: %s\n\n| case | guide | ours | verdict and why |\n|---|---|---|---|\n", name, guides[k].about)
		}
		guide, ours := c.Figures()
		fmt.Fprintf(&b, "| **%s** %s | %s | %s<br>%s | **%s.** %s |\n", c.ID, cell(c.Claim), guide, ours, c.How, cell(c.Verdict()), cell(c.Why))
	}
	b.WriteString("\n## Figures about hardware\n\nWhat the guides say about links, switches and prices, from the catalogue.\n\n| guide says | right | why | source |\n|---|---|---|---|\n")
	for _, c := range catalog.Claims() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(c.Says), cell(c.Right), cell(c.Why), cell(string(c.Source)))
	}
	return b.String()
}

// cell keeps a text inside its cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
