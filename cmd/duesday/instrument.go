//go:build !bench

package main

// instrument does nothing but in the benchmarks' build.
func (p *program) instrument() (end func()) { return func() {} }
