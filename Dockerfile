# The same image as `make image` makes without a container engine:
#   docker build --build-arg VERSION=v1.2.3 -t duesday:v1.2.3 .
ARG GO_VERSION=1.26
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
ARG TARGETOS=linux
ARG TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -buildid= -X main.version=$VERSION" -o /duesday ./cmd/duesday

# Nothing but the binary: CA roots and time zones are in it.
FROM scratch
ARG VERSION=dev
LABEL org.opencontainers.image.title=duesday \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /duesday /duesday
WORKDIR /
USER 65532:65532
ENTRYPOINT ["/duesday"]
