// Command says prints which release it is, for the test of what dist tells the linker.
package main

import (
	"fmt"

	"github.com/weft-fabric/weft/run/release"
)

func main() {
	b := release.This()
	fmt.Println(b.Version, b.Commit, b.Time, release.ID())
}
