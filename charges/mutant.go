//go:build !mutant_no_lookup

package charges

// mutantNoLookup is true in a build that is wrong on purpose: it sends old
// slots without a look. A test proves that the look is what holds.
const mutantNoLookup = false
