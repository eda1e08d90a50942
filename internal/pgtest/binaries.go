package pgtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// findBinaries is the directory with initdb and postgres to use: the
// machine's own if there are any, else downloaded ones.
func findBinaries() (string, error) {
	if dir, ok := installedBinaries("/usr/lib/postgresql"); ok {
		return dir, nil
	}
	dir, err := downloadedBinaries()
	if err != nil {
		return "", fmt.Errorf("no Postgres for the tests: install the server (apt-get install postgresql, brew install postgresql), "+
			"or set TEST_DATABASE_URL to one that may be used; the download failed too: %w", err)
	}
	return dir, nil
}

// installedBinaries looks where Debian and Ubuntu keep each major version,
// then in PATH.
func installedBinaries(versions string) (string, bool) {
	dirs, _ := filepath.Glob(filepath.Join(versions, "*", "bin"))
	slices.SortFunc(dirs, func(a, b string) int { return majorVersion(b) - majorVersion(a) })
	for _, dir := range dirs {
		if hasBinaries(dir) {
			return dir, true
		}
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return "", false
	}
	// A link into the version's folder would hide the binaries beside it.
	if real, err := filepath.EvalSymlinks(initdb); err == nil {
		initdb = real
	}
	dir := filepath.Dir(initdb)
	return dir, hasBinaries(dir)
}

func majorVersion(binDir string) int {
	major, _ := strconv.Atoi(filepath.Base(filepath.Dir(binDir)))
	return major
}

func hasBinaries(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// downloadedBinaries has embedded-postgres download and unpack its binaries
// once per user. Only its binaries are used: its own servers outlive a killed
// test process.
func downloadedBinaries() (string, error) {
	const version = embeddedpostgres.V17
	cache, err := binariesCache()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "postgres-"+string(version))
	bin := filepath.Join(home, "bin")
	lock, err := lockFile(filepath.Join(cache, "download.lock"), syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if hasBinaries(bin) {
		return bin, nil
	}

	scratch, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	port, err := freePort()
	if err != nil {
		return "", err
	}
	unpacked := filepath.Join(scratch, "postgres")
	once := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).
		Port(uint32(port)).
		CachePath(filepath.Join(scratch, "archive")).
		RuntimePath(filepath.Join(scratch, "run")).
		BinariesPath(unpacked).
		Logger(io.Discard))
	// For root it fails, but only after it has unpacked what we want.
	err = once.Start()
	if err == nil {
		err = once.Stop()
	}
	if !hasBinaries(filepath.Join(unpacked, "bin")) {
		return "", errors.Join(errors.New("download Postgres"), err)
	}
	if err := os.Chmod(scratch, 0o755); err != nil {
		return "", err
	}
	if err := os.RemoveAll(home); err != nil {
		return "", err
	}
	if err := os.Rename(unpacked, home); err != nil {
		return "", fmt.Errorf("keep the downloaded Postgres: %w", err)
	}
	return bin, nil
}

// binariesCache is where downloaded binaries are kept. Root's own cache would
// be out of reach for the user that the server runs as.
func binariesCache() (string, error) {
	dir := "/var/cache/duesday"
	if os.Geteuid() != 0 {
		var err error
		if dir, err = cacheDir(); err != nil {
			return "", err
		}
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// cacheDir is this package's folder in the user's cache.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, "duesday", "pgtest")
	return dir, os.MkdirAll(dir, 0o755)
}
