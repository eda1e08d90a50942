// Package image makes the container image without a container engine: a tar
// that is both an OCI image layout and a docker archive, so that `docker load`,
// `podman load`, `ctr images import`, `kind load image-archive` and skopeo all
// take it.
//
// The same source, Go toolchain and Config give the same bytes: nothing in the
// tar depends on when or where it was made. The Dockerfile describes the same
// image for those who have an engine.
package image
