package main

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTerminationLog_thatIsNoFileHoldsUpNobody(t *testing.T) {
	t.Parallel()
	write := func(path string) error {
		done := make(chan error, 1)
		f := tellFlags{termination: path}
		go func() { done <- f.terminate(told{Outcome: endSettled, Text: "x"}) }()
		return await(t, "the termination message", done)
	}
	require.NoError(t, write("/dev/null"))
	require.NoError(t, write(filepath.Join(t.TempDir(), "none")))

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	require.ErrorIs(t, write(fifo), syscall.ENXIO, "nobody reads")
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	require.NoError(t, write(fifo))
	full, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, full.Close()) }()
	for room := bytes.Repeat([]byte{'x'}, 4096); err == nil; {
		_, err = syscall.Write(int(full.Fd()), room)
	}
	require.ErrorIs(t, write(fifo), os.ErrDeadlineExceeded, "nobody empties it")
}
