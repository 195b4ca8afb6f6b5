// Package docs is the text of weft's own documents, which the reference trainer
// learns from where it is given no other text.
package docs

import "embed"

//go:embed *.md
var files embed.FS

// Text is all documents in the order of their names.
func Text() []byte {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // the embedded directory is always readable
	}
	var all []byte
	for _, e := range entries {
		b, err := files.ReadFile(e.Name())
		if err != nil {
			panic(err)
		}
		all = append(all, b...)
	}
	return all
}
