//go:build mutant_no_lookup

package charges

const mutantNoLookup = true
