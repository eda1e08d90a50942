package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMigrateJob_createsTheSchemaAndMayRunAgain(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	tables := func() int {
		return b.count(t, `SELECT count(*) FROM pg_tables WHERE schemaname = 'duesday' AND tablename IN ('customers', 'dues', 'charges', 'attempts', 'periods', 'totals', 'runs')`)
	}
	require.Zero(t, tables())
	b.install(t, ofPastPeriod())
	require.Equal(t, 7, tables())
	b.add(t, 3)

	b.kubectl(t, "delete", "job", "duesday-migrate")
	b.apply(t, ofPastPeriod())
	b.awaitComplete(t, "duesday-migrate")
	require.Equal(t, 3, b.count(t, `SELECT count(*) FROM duesday.customers`))
}

// Without the schema a run can never work.
func TestRun_withoutTheSchemaSaysWhatToDo(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	b.secrets(t)
	b.apply(t, ofPastPeriod())
	b.awaitComplete(t, "duesday-migrate")
	b.db.Exec(t, `DROP SCHEMA duesday CASCADE`)
	b.run(t, "early")
	b.requireFailedAtOnce(t, "early", 2)
	require.Contains(t, b.said(t, "early", saysEnded)[0]["error"], "duesday migrate")
}

func TestImage_runsWithoutRootAndCannotWrite(t *testing.T) {
	t.Parallel()
	b := installed(t, 3)
	if !b.cluster.Own() {
		return // its processes are not ours to look at
	}
	arrived, release := b.hold(t, 1)
	b.run(t, "looked-at")
	arrived()
	process := b.process(t, b.leader(t))
	status := read(t, process+"/status")
	require.Regexp(t, regexp.MustCompile(`(?m)^Uid:\s+65532\s+65532\s+65532\s+65532$`), status)
	// The group is the container runtime's to choose: of the image's user a
	// kubelet reads the first number alone.
	require.Regexp(t, regexp.MustCompile(`(?m)^CapEff:\s+0+$`), status)
	require.Regexp(t, regexp.MustCompile(`(?m)^CapBnd:\s+0+$`), status)
	require.Regexp(t, regexp.MustCompile(`(?m)^NoNewPrivs:\s+1$`), status)
	require.Regexp(t, regexp.MustCompile(`(?m)^Seccomp:\s+2$`), status)
	root := regexp.MustCompile(`(?m)^\S+ \S+ \S+ \S+ / (\S+)`).FindStringSubmatch(read(t, process+"/mountinfo"))
	require.Len(t, root, 2)
	require.Contains(t, strings.Split(root[1], ","), "ro")
	release()
	b.awaitComplete(t, "looked-at")
	b.requireBilled(t, 3)
}

// process is the folder in /proc of a pod's process: a cluster of ours has its
// own process ids, but the machine sees them all.
func (b *team) process(t *testing.T, pod string) string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	var found []string
	for _, path := range all {
		environ, err := os.ReadFile(path)
		if err == nil && strings.Contains("\x00"+string(environ), fmt.Sprintf("\x00POD_NAME=%s\x00", pod)) {
			found = append(found, filepath.Dir(path))
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}
