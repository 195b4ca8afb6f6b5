package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

type platform struct {
	OS   string `json:"os"`
	Arch string `json:"architecture"`
}

type binary struct {
	platform
	Bytes []byte
}

// image is an OCI image for several processors (github.com/opencontainers/image-spec):
// a tar file with blobs under their digests, and an index that leads to them.
//
//	index.json ─► manifest of a processor ─┬─► config: entry point, labels, digest of the layer's tar
//	                                       └─► layer: tar.gz with /weft and /tmp
//
// The same input gives the same bytes.
type image struct {
	Version, Commit string
	Created         time.Time
	Binaries        []binary
}

// The media types and names of the specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
	layoutFile   = `{"imageLayoutVersion":"1.0.0"}`
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type config struct {
	platform
	Created string   `json:"created"`
	Config  settings `json:"config"`
	RootFS  rootfs   `json:"rootfs"`
}

type settings struct {
	Entrypoint []string          `json:"Entrypoint"`
	Env        []string          `json:"Env"`
	Labels     map[string]string `json:"Labels"`
}

type rootfs struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// layer is the file system: the binary, and a directory for temporary files.
func layer(b []byte, at time.Time) (plain []byte, err error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeReg, Name: "weft", Mode: 0o755, Size: int64(len(b))},
	} {
		h.ModTime, h.Format = at, tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(b); err != nil {
				return nil, err
			}
		}
	}
	err = w.Close()
	return out.Bytes(), err
}

func compress(plain []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	err := w.Close()
	return out.Bytes(), err
}

// tarball is an image layout in a tar file: blobs under their digests, all of one time, so that the same content gives
// the same bytes.
type tarball struct {
	*tar.Writer
	created time.Time
}

func (w tarball) put(name string, b []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b)), ModTime: w.created,
		Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

func (w tarball) blob(mediaType string, b []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(b), Size: len(b)}
	return d, w.put("blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:"), b)
}

func (w tarball) object(mediaType string, v any) (descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return w.blob(mediaType, b)
}

// write writes the image as a tar file.
func (img image) write(to io.Writer) error {
	w := tarball{tar.NewWriter(to), img.Created}
	if err := w.put("oci-layout", []byte(layoutFile)); err != nil {
		return err
	}
	all := index{SchemaVersion: 2, MediaType: typeIndex}
	for _, bin := range img.Binaries {
		plain, err := layer(bin.Bytes, img.Created)
		if err != nil {
			return err
		}
		packed, err := compress(plain)
		if err != nil {
			return err
		}
		l, err := w.blob(typeLayer, packed)
		if err != nil {
			return err
		}
		c, err := w.object(typeConfig, config{platform: bin.platform, Created: img.Created.Format(time.RFC3339),
			Config: settings{Entrypoint: []string{"/weft"}, Env: []string{"PATH=/", "HOME=/tmp"}, Labels: map[string]string{
				"org.opencontainers.image.title": "weft", "org.opencontainers.image.version": img.Version,
				"org.opencontainers.image.revision": img.Commit, "org.opencontainers.image.licenses": "Apache-2.0"}},
			RootFS: rootfs{"layers", []string{digest(plain)}}})
		if err != nil {
			return err
		}
		m, err := w.object(typeManifest, manifest{2, typeManifest, c, []descriptor{l}})
		if err != nil {
			return err
		}
		m.Platform = &bin.platform
		m.Annotations = map[string]string{"org.opencontainers.image.ref.name": img.Version}
		all.Manifests = append(all.Manifests, m)
	}
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := w.put("index.json", b); err != nil {
		return err
	}
	return w.Close()
}

// check reads an image file from its index down, as a container runtime does, and
// compares what it finds with what was put in.
func (img image) check(file []byte) error {
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(file)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			return err
		}
	}
	if string(files["oci-layout"]) != layoutFile {
		return fmt.Errorf("oci-layout is %q", files["oci-layout"])
	}
	var all index
	if err := json.Unmarshal(files["index.json"], &all); err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	if len(all.Manifests) != len(img.Binaries) {
		return fmt.Errorf("%d manifests for %d processors", len(all.Manifests), len(img.Binaries))
	}
	blob := func(d descriptor, mediaType string) ([]byte, error) {
		b, ok := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		switch {
		case !ok:
			return nil, fmt.Errorf("blob %s is missing", d.Digest)
		case d.MediaType != mediaType || len(b) != d.Size || digest(b) != d.Digest:
			return nil, fmt.Errorf("blob %s: %s of %d bytes with digest %s; want %s of %d bytes",
				d.Digest, d.MediaType, len(b), digest(b), mediaType, d.Size)
		}
		return b, nil
	}
	for i, d := range all.Manifests {
		b, err := blob(d, typeManifest)
		if err != nil {
			return err
		}
		var m manifest
		if err := json.Unmarshal(b, &m); err != nil {
			return err
		}
		if b, err = blob(m.Config, typeConfig); err != nil {
			return err
		}
		var c config
		if err := json.Unmarshal(b, &c); err != nil {
			return err
		}
		want := img.Binaries[i]
		if d.Platform == nil || *d.Platform != want.platform || c.platform != want.platform {
			return fmt.Errorf("manifest %d is for %v and its config for %v; want %v", i, d.Platform, c.platform, want.platform)
		}
		if len(m.Layers) != 1 || len(c.RootFS.DiffIDs) != 1 || len(c.Config.Entrypoint) != 1 {
			return fmt.Errorf("manifest %d: %d layers, %d of them in the config, entry point %q; want one each",
				i, len(m.Layers), len(c.RootFS.DiffIDs), c.Config.Entrypoint)
		}
		if b, err = blob(m.Layers[0], typeLayer); err != nil {
			return err
		}
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return err
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			return err
		}
		if digest(plain) != c.RootFS.DiffIDs[0] {
			return fmt.Errorf("the layer unpacks to digest %s; the config says %s", digest(plain), c.RootFS.DiffIDs[0])
		}
		if err := checkLayer(plain, strings.TrimPrefix(c.Config.Entrypoint[0], "/"), want.Bytes); err != nil {
			return fmt.Errorf("%s/%s: %w", want.OS, want.Arch, err)
		}
	}
	return nil
}

// checkLayer looks for the binary in a file system.
func checkLayer(plain []byte, name string, want []byte) error {
	for r := tar.NewReader(bytes.NewReader(plain)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return fmt.Errorf("no file %q, which is the entry point", name)
		}
		if err != nil {
			return err
		}
		if h.Name != name {
			continue
		}
		b, err := io.ReadAll(r)
		switch {
		case err != nil:
			return err
		case h.Mode&0o111 == 0:
			return fmt.Errorf("%q has mode %o; it cannot be executed", name, h.Mode)
		case !bytes.Equal(b, want):
			return errors.New("the binary differs from the one that was built")
		}
		return nil
	}
}
