package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/duesday/duesday/internal/image"
)

const (
	root   = "../.."
	maxTar = 40_000_000
)

// entry is a file of a tar.
type entry struct {
	header  *tar.Header
	content []byte
}

func untar(t *testing.T, archive []byte) map[string]entry {
	files := map[string]entry{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NotContains(t, files, h.Name)
		files[h.Name] = entry{h, content}
	}
}

func decode[T any](t *testing.T, content []byte) T {
	var doc T
	require.NoError(t, json.Unmarshal(content, &doc))
	return doc
}

func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}

type ref struct {
	MediaType, Digest string
	Size              int
	Platform          struct{ Architecture, OS string }
	Annotations       map[string]string
}

// made is an image as the readers of an OCI layout and of a docker archive see
// it.
type made struct {
	archive []byte
	files   map[string]entry
	index   struct{ Manifests []ref }
	image   struct {
		Config ref
		Layers []ref
	}
	config struct {
		Architecture, OS string
		Created          time.Time
		Config           struct {
			User       string
			Entrypoint []string
			Cmd        []string
			Env        []string
			WorkingDir string
			Labels     map[string]string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	docker []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	layer  []byte
	binary entry
}

func build(t *testing.T, c image.Config) made {
	var out bytes.Buffer
	require.NoError(t, image.Build(t.Context(), root, c, &out))
	m := made{archive: out.Bytes(), files: untar(t, out.Bytes())}

	m.index = decode[struct{ Manifests []ref }](t, m.files["index.json"].content)
	require.Len(t, m.index.Manifests, 1)
	require.NoError(t, json.Unmarshal(m.blob(t, m.index.Manifests[0]), &m.image))
	require.NoError(t, json.Unmarshal(m.blob(t, m.image.Config), &m.config))
	require.NoError(t, json.Unmarshal(m.files["manifest.json"].content, &m.docker))

	require.Len(t, m.image.Layers, 1)
	z, err := gzip.NewReader(bytes.NewReader(m.blob(t, m.image.Layers[0])))
	require.NoError(t, err)
	m.layer, err = io.ReadAll(z)
	require.NoError(t, err)
	files := untar(t, m.layer)
	require.Len(t, files, 1)
	m.binary = files["duesday"]
	return m
}

// blob finds what ref refers to, and checks it.
func (m made) blob(t *testing.T, r ref) []byte {
	algorithm, hash, _ := strings.Cut(r.Digest, ":")
	require.Equal(t, "sha256", algorithm)
	require.Contains(t, m.files, "blobs/sha256/"+hash)
	content := m.files["blobs/sha256/"+hash].content
	require.Equal(t, hash, sum(content))
	require.Len(t, content, r.Size)
	return content
}

func TestBuild(t *testing.T) {
	m := build(t, image.Config{Tag: "duesday:dev", Version: "v1.2.3-test", Arch: "amd64"})

	t.Run("is an OCI layout", func(t *testing.T) {
		require.JSONEq(t, `{"imageLayoutVersion":"1.0.0"}`, string(m.files["oci-layout"].content))
		require.Equal(t, "amd64", m.index.Manifests[0].Platform.Architecture)
		require.Equal(t, "linux", m.index.Manifests[0].Platform.OS)
		require.Equal(t, "docker.io/library/duesday:dev", m.index.Manifests[0].Annotations["io.containerd.image.name"])
		require.Equal(t, "dev", m.index.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
		require.Equal(t, []string{"sha256:" + sum(m.layer)}, m.config.RootFS.DiffIDs)
	})
	t.Run("is a docker archive", func(t *testing.T) {
		require.Len(t, m.docker, 1)
		require.Equal(t, []string{"duesday:dev"}, m.docker[0].RepoTags)
		require.Equal(t, "blobs/"+strings.Replace(m.image.Config.Digest, ":", "/", 1), m.docker[0].Config)
		require.Equal(t, []string{"blobs/" + strings.Replace(m.image.Layers[0].Digest, ":", "/", 1)}, m.docker[0].Layers)
	})
	t.Run("runs the binary as a numeric user that is not root", func(t *testing.T) {
		require.Equal(t, "65532:65532", m.config.Config.User)
		require.Equal(t, []string{"/duesday"}, m.config.Config.Entrypoint)
		require.Empty(t, m.config.Config.Cmd)
		require.Empty(t, m.config.Config.Env)
		require.Equal(t, "v1.2.3-test", m.config.Config.Labels["org.opencontainers.image.version"])
		require.Equal(t, int64(0o755), m.binary.header.Mode)
		require.Equal(t, 0, m.binary.header.Uid)
	})
	// The linker keeps every exported method of every type, a third more, if
	// something looks methods up by name.
	t.Run("runs no template", func(t *testing.T) {
		require.False(t, bytes.Contains(m.binary.content, []byte("text/template.(*state).evalField")),
			"a template of html/template or text/template is executed somewhere: go build -ldflags '-s -w -dumpdep' ./cmd/duesday 2>&1 | grep template.*Execute")
	})
	t.Run("is small", func(t *testing.T) {
		const why = "what grew it? go build -ldflags '-s -w -dumpdep' ./cmd/duesday 2>&1 | grep ReflectMethod shows what keeps all methods"
		require.Less(t, len(m.archive), maxTar, why)
		require.Less(t, len(m.layer), maxTar, "unpacked: "+why)
	})
	t.Run("tells nothing of when or where it was made", func(t *testing.T) {
		require.True(t, m.config.Created.Equal(time.Unix(0, 0)))
		for name, f := range m.files {
			require.True(t, f.header.ModTime.Equal(time.Unix(0, 0)), name)
		}
		require.True(t, m.binary.header.ModTime.Equal(time.Unix(0, 0)))
		here, err := filepath.Abs(root)
		require.NoError(t, err)
		require.NotContains(t, string(m.binary.content), here)
	})
	t.Run("has the same bytes each time", func(t *testing.T) {
		again := build(t, image.Config{Tag: "duesday:dev", Version: "v1.2.3-test", Arch: "amd64"})
		require.Equal(t, sum(m.archive), sum(again.archive))
	})
	t.Run("is a static binary", func(t *testing.T) {
		requireStatic(t, m.binary.content, elf.EM_X86_64)
	})
	t.Run("holds the CA roots", func(t *testing.T) {
		count := 0
		for r := range bundle.Roots() {
			require.True(t, bytes.Contains(m.binary.content, r.Certificate))
			count++
		}
		require.Greater(t, count, 50)
		info, err := buildinfo.Read(bytes.NewReader(m.binary.content))
		require.NoError(t, err)
		var modules []string
		for _, d := range info.Deps {
			modules = append(modules, d.Path)
		}
		require.Contains(t, modules, "golang.org/x/crypto/x509roots/fallback")
	})
	t.Run("holds the time zones", func(t *testing.T) {
		require.Contains(t, string(m.binary.content), "Asia/Kathmandu")
	})
}

func TestBuild_forArm64(t *testing.T) {
	m := build(t, image.Config{Tag: "registry.example.com/billing/duesday:v1", Version: "v1", Arch: "arm64"})
	require.Equal(t, "arm64", m.config.Architecture)
	require.Equal(t, "arm64", m.index.Manifests[0].Platform.Architecture)
	require.Equal(t, "registry.example.com/billing/duesday:v1", m.index.Manifests[0].Annotations["io.containerd.image.name"])
	requireStatic(t, m.binary.content, elf.EM_AARCH64)
}

func requireStatic(t *testing.T, binary []byte, machine elf.Machine) {
	f, err := elf.NewFile(bytes.NewReader(binary))
	require.NoError(t, err)
	require.Equal(t, machine, f.Machine)
	libraries, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type)
	}
}

// The binary runs in a root of its own where the test may make one: there is
// no file but itself there, as in the image.
func TestBinary_runsAlone(t *testing.T) {
	c := image.Config{Tag: "duesday:dev", Version: "v1.2.3-test", Arch: hostArch(t)}
	m := build(t, c)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "duesday")
	require.NoError(t, os.WriteFile(path, m.binary.content, 0o755))

	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Env = []string{}
		if os.Geteuid() == 0 {
			cmd.Path, cmd.Dir = "/duesday", "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	require.Contains(t, run("version"), "duesday v1.2.3-test (")
	require.Contains(t, run("key", "--customer", "cust_123", "--period", "2026-10", "--time-zone", "Asia/Kathmandu"),
		"90d385dacce954d9262d71a98c4bf72d")
}

func hostArch(t *testing.T) string {
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOHOSTARCH").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

func TestBuild_refuses(t *testing.T) {
	for name, c := range map[string]image.Config{
		"a name without tag":         {Tag: "duesday", Version: "v1", Arch: "amd64"},
		"a tag with spaces":          {Tag: "duesday:a b", Version: "v1", Arch: "amd64"},
		"linker flags":               {Tag: "duesday:dev", Version: "v1 -X main.other=1", Arch: "amd64"},
		"no version":                 {Tag: "duesday:dev", Arch: "amd64"},
		"an architecture it has not": {Tag: "duesday:dev", Version: "v1", Arch: "s390x"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.Error(t, image.Build(t.Context(), root, c, &out))
			require.Empty(t, out.Bytes())
		})
	}
}

// The Dockerfile and this package describe one image.
func TestDockerfile(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	stages := strings.Split(strings.ReplaceAll(string(content), "\\\n", ""), "\nFROM ")
	require.Len(t, stages, 3)
	first, last := stages[1], stages[2]
	require.Contains(t, first, "CGO_ENABLED=0")
	require.Contains(t, first, "go build -trimpath -buildvcs=false")
	require.Contains(t, first, `-ldflags "-s -w -buildid= -X main.version=$VERSION"`)
	require.True(t, strings.HasPrefix(last, "scratch\n"))
	require.Contains(t, last, "\nUSER 65532:65532\n")
	require.Contains(t, last, "\nENTRYPOINT [\"/duesday\"]\n")
	require.Equal(t, 1, strings.Count(last, "COPY "))
}
