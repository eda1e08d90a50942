package exitcode_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/exitcode"
)

func TestOf_readsTheOutermostCode(t *testing.T) {
	plain := errors.New("no route to host")
	require.Equal(t, exitcode.OK, exitcode.Of(nil))
	require.Equal(t, exitcode.Unfinished, exitcode.Of(plain))

	stopped := exitcode.With(exitcode.Stopped, plain)
	require.Equal(t, exitcode.Stopped, exitcode.Of(fmt.Errorf("charge: %w", stopped)))
	require.ErrorIs(t, stopped, plain)
	require.Equal(t, plain.Error(), stopped.Error())

	require.Equal(t, exitcode.Misconfigured, exitcode.Of(exitcode.With(exitcode.Misconfigured, stopped)))
	require.NoError(t, exitcode.With(exitcode.Stopped, nil))
}
