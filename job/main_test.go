package job_test

import (
	"testing"

	"github.com/duesday/duesday/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }
