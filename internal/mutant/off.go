//go:build !mutant

// Package mutant switches on one mistake at a time, in builds with the tag
// mutant and in no other. A promise that no mistake breaks is not tested: the
// list in package mutants says which test notices each.
package mutant

// Is reports whether the mistake is switched on. In a build without the tag it
// is the constant false, and the compiler drops what stands behind it.
func Is(string) bool { return false }
