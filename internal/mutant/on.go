//go:build mutant

package mutant

import "os"

// Is reports whether DUESDAY_MUTANT names the mistake.
func Is(name string) bool { return os.Getenv("DUESDAY_MUTANT") == name }
