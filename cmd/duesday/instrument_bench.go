//go:build bench

package main

import (
	"fmt"
	"os"
	"runtime/pprof"

	"k8s.io/client-go/rest"

	"github.com/duesday/duesday/leader"
)

// instrument is for internal/bench alone: a CPU profile into the file that
// DUESDAY_BENCH_PROFILE names, and the cluster that the address in
// DUESDAY_BENCH_CLUSTER stands for, where a pod finds its own by its files.
func (p *program) instrument() (end func()) {
	if address := os.Getenv("DUESDAY_BENCH_CLUSTER"); address != "" {
		p.inCluster = func(namespace string) (*leader.Cluster, error) {
			return &leader.Cluster{Config: &rest.Config{Host: address}, Namespace: namespace}, nil
		}
	}
	name := os.Getenv("DUESDAY_BENCH_PROFILE")
	if name == "" {
		return func() {}
	}
	file, err := os.Create(name)
	if err == nil {
		err = pprof.StartCPUProfile(file)
	}
	if err != nil {
		fmt.Fprintln(p.err, "no profile:", err)
		return func() {}
	}
	return func() {
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			fmt.Fprintln(p.err, "no profile:", err)
		}
	}
}
