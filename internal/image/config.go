package image

import (
	"fmt"
	"regexp"
	"strings"
)

// user is numeric, so that a kubelet can tell that it is not root.
const user = "65532:65532"

// Config says what image to make.
type Config struct {
	Tag     string // name:tag
	Version string // what `duesday version` prints
	Arch    string // amd64 or arm64
}

var (
	tagForm     = regexp.MustCompile(`^[a-z0-9]+([._/:-]+[a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	versionForm = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._+-]*$`)
)

func (c Config) check() error {
	if !tagForm.MatchString(c.Tag) {
		return fmt.Errorf("tag %q: want name:tag, like duesday:dev", c.Tag)
	}
	if !versionForm.MatchString(c.Version) {
		return fmt.Errorf("version %q: want one word, like v1.2.3", c.Version)
	}
	if c.Arch != "amd64" && c.Arch != "arm64" {
		return fmt.Errorf("architecture %q: want amd64 or arm64", c.Arch)
	}
	return nil
}

// fullName is the tag as containerd and Kubernetes resolve it: with Docker's
// registry where none is named.
func (c Config) fullName() string {
	host, _, found := strings.Cut(c.Tag, "/")
	switch {
	case !found:
		return "docker.io/library/" + c.Tag
	case strings.ContainsAny(host, ".:") || host == "localhost":
		return c.Tag
	}
	return "docker.io/" + c.Tag
}
