package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Build builds the binary from the module at dir and writes the image to w.
func Build(ctx context.Context, dir string, c Config, w io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "duesday-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	path := filepath.Join(scratch, "duesday")
	if err := buildBinary(ctx, dir, "./cmd/duesday", path, c); err != nil {
		return err
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return write(w, binary, c)
}

// epoch is the age of everything in the image.
var epoch = time.Unix(0, 0).UTC()

// write writes the archive of an image whose only file is the binary.
func write(w io.Writer, binary []byte, c Config) error {
	layer, err := tarOf(file{name: "duesday", mode: 0o755, content: binary})
	if err != nil {
		return err
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(layer); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	layerBlob := newBlob("application/vnd.oci.image.layer.v1.tar+gzip", zipped.Bytes())
	config, err := jsonBlob("application/vnd.oci.image.config.v1+json", configDoc(c, digest(layer)))
	if err != nil {
		return err
	}
	manifest, err := jsonBlob("application/vnd.oci.image.manifest.v1+json", manifestDoc{
		SchemaVersion: 2,
		MediaType:     "application/vnd.oci.image.manifest.v1+json",
		Config:        config.descriptor(),
		Layers:        []descriptor{layerBlob.descriptor()},
	})
	if err != nil {
		return err
	}
	entry := manifest.descriptor()
	entry.Platform = &platform{Architecture: c.Arch, OS: "linux"}
	entry.Annotations = map[string]string{
		"io.containerd.image.name":          c.fullName(),
		"org.opencontainers.image.ref.name": c.Tag[strings.LastIndex(c.Tag, ":")+1:],
	}
	index, err := json.Marshal(indexDoc{
		SchemaVersion: 2,
		MediaType:     "application/vnd.oci.image.index.v1+json",
		Manifests:     []descriptor{entry},
	})
	if err != nil {
		return err
	}
	docker, err := json.Marshal([]dockerDoc{{Config: config.path(), RepoTags: []string{c.Tag}, Layers: []string{layerBlob.path()}}})
	if err != nil {
		return err
	}
	archive, err := tarOf(
		file{name: "oci-layout", mode: 0o644, content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		file{name: "index.json", mode: 0o644, content: index},
		file{name: "manifest.json", mode: 0o644, content: docker},
		file{name: manifest.path(), mode: 0o644, content: manifest.content},
		file{name: config.path(), mode: 0o644, content: config.content},
		file{name: layerBlob.path(), mode: 0o644, content: layerBlob.content},
	)
	if err != nil {
		return err
	}
	_, err = w.Write(archive)
	return err
}

type file struct {
	name    string
	mode    int64
	content []byte
}

// tarOf returns a tar of the files, root's, and of the same age whenever it is
// made.
func tarOf(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Format: tar.FormatUSTAR,
			Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: epoch,
		}); err != nil {
			return nil, fmt.Errorf("add %s: %w", f.name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("add %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
