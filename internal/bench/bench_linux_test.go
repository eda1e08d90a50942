package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadStat_survivesANameWithSpacesAndParentheses(t *testing.T) {
	name := filepath.Join(t.TempDir(), "stat")
	const content = "42 (postgres: a) b) S 7 42 42 0 -1 4194560 3209 0 0 0 150 50 1000 2000 20 0 1 0 12345 0\n"
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	got := readStat(name)
	require.Equal(t, "42", got[0])
	require.Equal(t, "7", got[3], "its parent")
	require.InDelta(t, 2, got.seconds(13, 15), 1e-9)
	require.InDelta(t, 32, got.seconds(13, 17), 1e-9)
	require.Nil(t, readStat(name+"-of-one-that-ended"))
}

func TestPeakMemory(t *testing.T) {
	got, err := peakMemory(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, got, int64(1<<20))
	_, err = peakMemory(-1)
	require.Error(t, err)
}

func TestChoose(t *testing.T) {
	all, err := choose("")
	require.NoError(t, err)
	require.Len(t, all, len(figures))
	some, err := choose("claims, bare")
	require.NoError(t, err)
	require.Equal(t, []string{"claims", "bare"}, []string{some[0].name, some[1].name})
	_, err = choose("bear")
	require.ErrorContains(t, err, "bear")
}

func TestTurns_swapEachRound(t *testing.T) {
	var order string
	side := func(name string) func() error {
		return func() error {
			order += name
			return nil
		}
	}
	require.NoError(t, turns(3, side("a"), side("b")))
	require.Equal(t, "abbaab", order)
}
