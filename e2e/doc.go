// Package e2e tests the product on a real cluster.
//
// The tests of this package share one cluster, which TestMain brings up and
// takes down; a test gets at it by onCluster, and works in a namespace of its
// own by newNamespace. Which cluster that is:
//
//	go test ./...                      one of our own (root, Linux): package cluster
//	KUBECONFIG=… go test .             one that is there
//	DUESDAY_E2E_HOST_IP=…              by what address its pods reach this machine
//	DUESDAY_E2E_LOAD=…                 the command that loads an image, "kind load image-archive"
//	DUESDAY_E2E_LOGS=…                 a folder that keeps the logs of our own
//
// The first run builds Kubernetes' own programs into
// ${XDG_CACHE_HOME:-~/.cache}/duesday/e2e; give it a -timeout of an hour.
package e2e
