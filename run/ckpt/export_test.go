package ckpt

// Seal gives a manifest's JSON object its first line.
func Seal(object []byte) []byte { return append([]byte(firstLine(object[1:])), object[1:]...) }

// ParseManifest is what reads a manifest file.
func ParseManifest(p []byte) (*Manifest, error) { return parseManifest(p) }

// EncodeManifest is what writes one.
func EncodeManifest(m *Manifest) ([]byte, error) { return m.encode() }
