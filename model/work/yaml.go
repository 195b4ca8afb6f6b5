package work

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

// file is a model in weft's own words. Every key is a field of Model; 'like' starts from the catalogue.
type file struct {
	Like   string `yaml:"like"`
	Name   string `yaml:"name"`
	Layers *int   `yaml:"layers"`
	Hidden *int   `yaml:"hidden"`
	FFN    *int   `yaml:"ffn"`
	Heads  *int   `yaml:"heads"`
	KV     *int   `yaml:"kv_heads"`
	Dim    *int   `yaml:"head_dim"`
	Vocab  *int   `yaml:"vocab"`
	Gated  *bool  `yaml:"gated"`
	Tied   *bool  `yaml:"tied"`
	LN     *bool  `yaml:"layer_norm"`
	Bias   *bool  `yaml:"bias"`
	QKV    *bool  `yaml:"qkv_bias"`
	QKNorm *bool  `yaml:"qk_norm"`
	Both   *bool  `yaml:"both_ways"`
	Pos    *int   `yaml:"positions"`
	Base   *int   `yaml:"rope_base"`
	E      *int   `yaml:"experts"`
	K      *int   `yaml:"top_k"`
	EFFN   *int   `yaml:"expert_ffn"`
	SFFN   *int   `yaml:"shared_ffn"`
	Dense  *int   `yaml:"dense_first"`
	Every  *int   `yaml:"moe_every"`
	Window *int   `yaml:"window"`
	WinL   *int   `yaml:"windowed"`
	MTP    *int   `yaml:"mtp"`
	Sinks  *bool  `yaml:"sinks"`
	MLA    *struct {
		Q    int `yaml:"q_rank"`
		KV   int `yaml:"kv_rank"`
		NoPE int `yaml:"nope"`
		RoPE int `yaml:"rope"`
		V    int `yaml:"v"`
	} `yaml:"mla"`
}

// FromYAML reads a model in weft's own words, strictly:
//
//	name: mine
//	layers: 32
//	hidden: 4096
//	ffn: 14336        # 4 x hidden without it, or 8/3 x hidden when gated
//	heads: 32
//	kv_heads: 8       # as many as heads without it
//	vocab: 128256
//	gated: true
//
// 'like: llama3-8b' takes what is not said from the catalogue.
func FromYAML(name string, data []byte) (*Model, error) {
	var f file
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	m := &Model{Name: name, Gated: true}
	if f.Like != "" {
		like, err := Named(f.Like)
		if err != nil {
			return nil, fmt.Errorf("%s: like: %w", name, err)
		}
		if like.CNN != nil {
			return nil, fmt.Errorf("%s: like: %s is not a transformer", name, f.Like)
		}
		m = like
	}
	if f.Name != "" {
		m.Name = f.Name
	}
	given([]field[int]{{&m.Layers, f.Layers}, {&m.Hidden, f.Hidden}, {&m.Heads, f.Heads}, {&m.Vocab, f.Vocab},
		{&m.Positions, f.Pos}, {&m.RoPEBase, f.Base},
		{&m.Experts, f.E}, {&m.TopK, f.K}, {&m.ExpertFFN, f.EFFN}, {&m.SharedFFN, f.SFFN}, {&m.DenseFirst, f.Dense}, {&m.MoEEvery, f.Every},
		{&m.Window, f.Window}, {&m.Windowed, f.WinL}, {&m.MTP, f.MTP}})
	given([]field[bool]{{&m.Gated, f.Gated}, {&m.Tied, f.Tied}, {&m.LayerNorm, f.LN}, {&m.Bias, f.Bias},
		{&m.QKVBias, f.QKV}, {&m.QKNorm, f.QKNorm}, {&m.BothWays, f.Both}, {&m.Sinks, f.Sinks}})
	m.derive(&f)
	if f.MLA != nil {
		m.MLA = &MLA{f.MLA.Q, f.MLA.KV, f.MLA.NoPE, f.MLA.RoPE, f.MLA.V}
	}
	return m, m.Check()
}

// field is a value of a model and what the file has for it, nil for nothing.
type field[T any] struct{ to, from *T }

// given takes over what the file has.
func given[T any](fields []field[T]) {
	for _, f := range fields {
		if f.from != nil {
			*f.to = *f.from
		}
	}
}

// derive fills in the sizes that follow from others unless the file states them. Those of the model that it is like hold
// until the file changes what they follow from.
func (m *Model) derive(f *file) {
	switch {
	case f.FFN != nil:
		m.FFN = *f.FFN
	case f.Hidden == nil && f.Like != "":
	case m.Gated:
		m.FFN = m.Hidden * 8 / 3 / 64 * 64
	default:
		m.FFN = 4 * m.Hidden
	}
	switch {
	case f.KV != nil:
		m.KVHeads = *f.KV
	case f.Heads != nil || m.KVHeads == 0:
		m.KVHeads = m.Heads
	}
	switch {
	case f.Dim != nil:
		m.HeadDim = *f.Dim
	case (f.Hidden != nil || f.Heads != nil || m.HeadDim == 0) && m.Heads > 0:
		m.HeadDim = m.Hidden / m.Heads
	}
	if m.Window > 0 && f.WinL == nil && f.Window != nil {
		m.Windowed = m.Layers
	}
}

// Read reads a model's file: a config.json of Hugging Face, or weft's own YAML.
func Read(name string, data []byte) (*Model, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	t := bytes.TrimSpace(data)
	switch {
	case len(t) == 0:
		return nil, fmt.Errorf("%s: the file is empty", name)
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		return nil, fmt.Errorf("%s: the file is UTF-16; write it as UTF-8", name)
	case t[0] == '[':
		return nil, fmt.Errorf("%s: a list; a config.json is one object in braces", name)
	case t[0] == '{' && json.Valid(t):
		return FromHF(name, data)
	}
	return FromYAML(name, data)
}
