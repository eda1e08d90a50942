package image

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// buildBinary builds the static binary of package pkg, a path in the module at
// dir, into the file out.
func buildBinary(ctx context.Context, dir, pkg, out string, c Config) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -buildid= -X main.version="+c.Version, "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+c.Arch, "GOFLAGS=")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, said)
	}
	return nil
}
