// Command weft designs, proves, predicts, runs and watches GPU cluster networks.
package main

import (
	"os"

	"github.com/weft-fabric/weft/app/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
