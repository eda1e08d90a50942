// Command image writes Duesday's container image to a tar, without a container
// engine. Run it in the module's folder.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"

	"github.com/duesday/duesday/internal/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var c image.Config
	out := flag.String("o", "dist/duesday.tar", "`file` to write")
	flag.StringVar(&c.Tag, "tag", "duesday:dev", "`name:tag` of the image")
	flag.StringVar(&c.Version, "version", "dev", "`version` to stamp")
	flag.StringVar(&c.Arch, "arch", runtime.GOARCH, "`architecture`: amd64 or arm64")
	flag.Parse()

	var tar bytes.Buffer
	if err := image.Build(ctx, ".", c, &tar); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(*out, tar.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %s, linux/%s, %.1f MB\n", *out, c.Tag, c.Arch, float64(tar.Len())/1e6)
	return nil
}
