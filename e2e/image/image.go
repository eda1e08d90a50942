// Package image writes the smallest container image there can be, one static
// program and nothing else, as a docker archive, without a container engine.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Image is an image whose only file is a program.
type Image struct {
	Tag    string   // name:tag; with a prefix of localhost/ it means the same to every runtime
	Binary string   // path of a static program for Linux on this architecture
	User   string   // "uid:gid", numeric, or a kubelet cannot tell that it is not root; empty: root
	Args   []string // default arguments, which a pod's `args` replaces
}

// Write writes the archive, which `ctr images import`, `docker load`,
// `kind load image-archive` and podman take. The program is the image's
// entrypoint, by its own base name at the root.
func (i Image) Write(w io.Writer) error {
	binary, err := os.ReadFile(i.Binary)
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Tag, err)
	}
	name := filepath.Base(i.Binary)
	layer, err := tarOf(file{name, 0o755, binary})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"User": i.User, "Entrypoint": []string{"/" + name}, "Cmd": i.Args, "WorkingDir": "/"},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return err
	}
	configName, layerName := digest(config)+".json", digest(layer)+".tar"
	manifest, err := json.Marshal([]map[string]any{{
		"Config": configName, "RepoTags": []string{i.Tag}, "Layers": []string{layerName},
	}})
	if err != nil {
		return err
	}
	archive, err := tarOf(file{layerName, 0o644, layer}, file{configName, 0o644, config}, file{"manifest.json", 0o644, manifest})
	if err != nil {
		return err
	}
	_, err = w.Write(archive)
	return err
}

// WriteFile writes the archive to a new file.
func (i Image) WriteFile(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := i.Write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func tarOf(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
