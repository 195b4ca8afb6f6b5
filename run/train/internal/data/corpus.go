package data

import _ "embed"

//go:embed corpus.txt
var corpus []byte

// Corpus is the text that a run learns from if it is given no other: English prose
// about this project. It is part of the package and does not follow the documentation,
// so that losses and checkpoints of two versions can be compared.
func Corpus() []byte { return corpus }
