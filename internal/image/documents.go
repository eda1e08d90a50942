package image

import (
	"encoding/json"
	"strings"
	"time"
)

// The documents of the OCI image specification, v1.1, and docker's own
// manifest.json, as far as they are used.

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type indexDoc struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifestDoc struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type imageDoc struct {
	Created time.Time `json:"created"`
	platform
	Config  runDoc       `json:"config"`
	RootFS  rootDoc      `json:"rootfs"`
	History []historyDoc `json:"history"`
}

type runDoc struct {
	User       string            `json:"User"`
	Entrypoint []string          `json:"Entrypoint"`
	WorkingDir string            `json:"WorkingDir"`
	Labels     map[string]string `json:"Labels"`
}

type rootDoc struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type historyDoc struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

type dockerDoc struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

func configDoc(c Config, diffID string) imageDoc {
	return imageDoc{
		Created:  epoch,
		platform: platform{Architecture: c.Arch, OS: "linux"},
		Config: runDoc{
			User:       user,
			Entrypoint: []string{"/duesday"},
			WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.title":    "duesday",
				"org.opencontainers.image.version":  c.Version,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
		RootFS:  rootDoc{Type: "layers", DiffIDs: []string{diffID}},
		History: []historyDoc{{Created: epoch, CreatedBy: "duesday/internal/image"}},
	}
}

// blob is a content-addressed file of the layout.
type blob struct {
	mediaType string
	content   []byte
}

func newBlob(mediaType string, content []byte) blob {
	return blob{mediaType: mediaType, content: content}
}

func jsonBlob(mediaType string, doc any) (blob, error) {
	content, err := json.Marshal(doc)
	return newBlob(mediaType, content), err
}

func (b blob) descriptor() descriptor {
	return descriptor{MediaType: b.mediaType, Digest: digest(b.content), Size: len(b.content)}
}

func (b blob) path() string {
	return "blobs/" + strings.Replace(digest(b.content), ":", "/", 1)
}
