package studio

import (
	"html/template"
	"io"

	"github.com/weft-fabric/weft/app/internal/studio/engine"
	"github.com/weft-fabric/weft/view/kit"
)

// Piece is one page of the gallery.
type Piece struct {
	File, Title, Text string
	Open              Open
}

// sight is a page's state, as far as the gallery sets it.
type sight struct {
	Layout string          `json:"layout,omitempty"`
	Faults []engine.Fault  `json:"faults,omitempty"`
	A      *run            `json:"a,omitempty"`
	B      *run            `json:"b,omitempty"`
	Plan   *training       `json:"plan,omitempty"`
	Ran    map[string]bool `json:"ran"`
}

type run struct {
	Op     string `json:"op"`
	Bytes  int64  `json:"bytes"`
	Algo   string `json:"algo"`
	Faults bool   `json:"faults"`
}

type training struct {
	Model string `json:"model"`
	Batch int    `json:"batch"`
	Seq   int    `json:"seq"`
}

// Gallery lists pages that show what there is to see.
func Gallery() []Piece {
	text := map[string]string{}
	for _, s := range engine.Samples() {
		text[s.Name] = s.Text
	}
	sum := func(bytes int64, algo string, faults bool) *run { return &run{"all-reduce", bytes, algo, faults} }
	simulated := map[string]bool{"a": true}
	piece := func(file, sample, title, about, view string, s sight) Piece {
		return Piece{File: file + ".html", Title: title, Text: about, Open: Open{Name: sample, Text: text[sample], View: view, State: s}}
	}
	hang := piece("hang", "four-hosts", "A job that hangs",
		"Rank 13 does not come to an all-reduce: all others wait, and weft watch names it. Drag the clock back to see it happen.",
		"live", sight{Ran: map[string]bool{}})
	hang.Open.Recording = recorded()
	return []Piece{
		piece("superpod", "superpod", "DGX SuperPOD", "1,016 H100 in four scalable units, with its figures and its bill.", "design", sight{}),
		piece("rail-dead-spine", "rail-1k", "A rail fabric with a dead spine",
			"An all-reduce on 1,024 GPUs, healthy (A) and with one of 16 spines gone (B), on one clock: adaptive routing loses next to nothing.",
			"collective",
			sight{Faults: []engine.Fault{{Part: "spine3"}}, A: sum(1<<28, "rabenseifner", false), B: sum(1<<28, "rabenseifner", true),
				Ran: map[string]bool{"a": true, "b": true}}),
		piece("nvl72", "nvl72", "NVL72 racks", "576 GPUs, 72 of them joined by NVLink: an all-reduce inside racks first, then over the rails.",
			"collective",
			sight{A: sum(1<<28, "hierarchical", true), Ran: simulated}),
		piece("dragonfly", "dragonfly", "A dragonfly", "Nine groups, fully joined: a ring crosses every group once.",
			"collective", sight{A: sum(1<<26, "ring", true), Ran: simulated}),
		piece("dgx-1-synthesised", "dgx-1v", "A program made for a DGX-1", "Trees packed into the cube mesh of eight V100 (A), and rings (B).",
			"collective",
			sight{A: sum(1<<26, "synth", true), B: sum(1<<26, "ring", true), Ran: map[string]bool{"a": true, "b": true}}),
		piece("llama3-405b", "rail-16k", "405B parameters on 16,384 GPUs",
			"The fastest layouts of Llama 3 405B: step time, memory and the pipeline's schedule.", "plan",
			sight{Plan: &training{"llama3-405b", 2048, 8192}, Ran: map[string]bool{"plan": true}}),
		piece("floor", "rail-1k", "A hall with 1,024 GPUs",
			"The same fabric by its racks. Drag one to another position: the cluster file, cable lengths and the bill follow.", "design",
			sight{Layout: "floor", Ran: map[string]bool{}}),
		piece("slow-nic", "two-hosts", "One slow NIC",
			"A ring on 16 GPUs, healthy (A) and with one NIC at half its rate (B), the link that limits each, and the bound of all schedules.",
			"collective", sight{Faults: []engine.Fault{{Part: "n0:nic2", Factor: .5}},
				A: sum(1<<28, "ring", false), B: sum(1<<28, "ring", true), Ran: map[string]bool{"a": true, "b": true, "bound": true}}),
		piece("tpu-torus", "tpu", "A torus without switches",
			"64 TPU v4 chips, 4 x 4 x 4: an all-reduce dimension by dimension (A), and one ring through all chips (B).", "collective",
			sight{A: sum(1<<28, "torus", true), B: sum(1<<28, "ring", true), Ran: map[string]bool{"a": true, "b": true}}),
		hang,
	}
}

// recorded is the recording of a hang, on its sample.
func recorded() []Frame {
	for _, s := range engine.Samples() {
		if s.Name != "four-hosts" {
			continue
		}
		frames, err := record(s.Text)
		if err != nil {
			panic(err) // the sample is embedded
		}
		return frames
	}
	return nil
}

var index = template.Must(template.New("index").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>weft studio: gallery</title>
<style>
{{.Style}}
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 290px), 1fr)); gap: 14px; margin-top: 14px; }
.gallery a { text-decoration: none; } .gallery a:hover h2 { color: var(--accent); } .gallery h2 { font-size: 15px; white-space: normal; margin-bottom: 4px; } .gallery p { color: var(--soft); }
</style>
</head>
<body>
<header class="top"><div class="name"><div><h1>weft studio: gallery</h1><p class="what">Each page is one file. It computes what it shows when you open it, without a server.</p></div></div></header>
<main class="gallery">{{range .Pages}}<a class="panel" href="{{.File}}"><h2>{{.Title}}</h2><p>{{.Text}}</p></a>{{end}}</main>
</body>
</html>
`))

// Index writes the page that links to the others.
func Index(w io.Writer) error {
	return index.Execute(w, map[string]any{"Style": template.CSS(kit.Style()), "Pages": Gallery()})
}
