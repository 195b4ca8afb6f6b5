// Package kit is what every page of weft looks like: one stylesheet with the colours of light and dark, the type and the
// frames of panels, and the icon. Pages that are served load it by its name; pages that are one file carry it.
//
//	up, watch, studio ──► base.css, icon.svg
//	plan -o, design -o, studio -o ──► Style
//
// Colours are tokens: a page names --ink or --failed, never a colour. States use a palette that colour-blind readers can
// tell apart, and every state has a sign besides its colour.
package kit

import "embed"

//go:embed base.css icon.svg
var files embed.FS

// File is a part of the kit by its name: base.css or icon.svg.
func File(name string) ([]byte, bool) {
	b, err := files.ReadFile(name)
	return b, err == nil
}

// Style is the stylesheet, for a page that carries it.
func Style() string {
	b, _ := files.ReadFile("base.css") // it is embedded
	return string(b)
}
