package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// said is what a command line that needs no database ends with.
func said(t testing.TB, env map[string]string, args ...string) (code int, out, err string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := program{out: &stdout, err: &stderr, env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		environ: func() (all []string) {
			for name, value := range env {
				all = append(all, name+"="+value)
			}
			return all
		}}
	code = p.run(t.Context(), args)
	return code, stdout.String(), stderr.String()
}

func TestCommandLine_saysWhatWasExpected(t *testing.T) {
	for line, want := range map[string]string{
		"run --max-amount usd":            `invalid argument "usd" for "--max-amount" flag: want currencies with amounts in their smallest unit, like usd=50000,jpy=90000, got "usd"`,
		"run --max-amount usd=1,eur=x":    `got "eur=x"`,
		"run --raise-cap-to=usd=1.5":      `got "usd=1.5"`,
		"run --retry-schedule 1":          `invalid argument "1" for "--retry-schedule" flag: want durations with a unit, like 72h,120h, got "1"`,
		"run --leader-elect false":        `unexpected argument "false": a switch takes its value with =, like --leader-elect=false`,
		"run --reopen --allow-empty true": `like --some-switch=true`,
		"run --raet=5":                    `unknown flag: --raet: did you mean --rate?`,
		"run --nothing-like-it":           "unknown flag: --nothing-like-it\n",
		"rum":                             `unknown command "rum", did you mean run?: see duesday --help`,
		"completion tcsh":                 `unknown shell "tcsh": want bash, fish, powershell or zsh`,
		"help nonsense":                   `unknown command "nonsense": see duesday --help`,
		"help run nonsense":               `unknown command "nonsense": see duesday --help`,
		"run now":                         `unexpected argument "now": want flags only`,
		"key --customer a:b":              `--customer "a:b": id has a character other than printable ASCII, or a space, quote, colon or backslash`,
		"key --customer a --output=yaml":  `--output "yaml": want table or json`,
		"version --output=":               `--output "": want table or json`,
	} {
		code, _, err := said(t, nil, strings.Split(line, " ")...)
		require.Equal(t, 2, code, line)
		require.Contains(t, err, want, line)
		require.Equal(t, 1, strings.Count(err, "\n"), err)
	}
}

func TestValues_addUpAndPrintAsTheyAreRead(t *testing.T) {
	var (
		money    map[string]int64
		schedule = []time.Duration{72 * time.Hour, 90 * time.Minute, 1500 * time.Millisecond}
	)
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	amountsVar(flags, &money, "money", "")
	flags.Var(&pauses{to: &schedule}, "schedule", "")
	require.Equal(t, "72h,1h30m,1.5s", flags.Lookup("schedule").DefValue)
	require.NoError(t, flags.Parse([]string{"--money=usd=1,eur=-2", "--money", " jpy = 3", "--schedule=1h", "--schedule=2h,3m"}))
	require.Equal(t, map[string]int64{"usd": 1, "eur": -2, "jpy": 3}, money)
	require.Equal(t, []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Minute}, schedule, "the default gives way")
	require.Equal(t, "eur=-2,jpy=3,usd=1", flags.Lookup("money").Value.String())
	require.NoError(t, flags.Set("money", flags.Lookup("money").Value.String()))
	require.NoError(t, flags.Set("schedule", ""))
}

func TestUnknownVariables_areToldAndChangeNothing(t *testing.T) {
	code, out, err := said(t, map[string]string{
		"DUESDAY_DATABASE_URL": "secret", "DUESDAY_RAET": "secret", "DUESDAY_NOTHING_LIKE_IT_AT_ALL": "1", "HOME": "/",
		// Right, of another command, a Service's, or a test's.
		"DUESDAY_RATE": "5", "DUESDAY_ADMIN_TOKEN_FILE": "x", "DUESDAY_QUIET": "false", "DUESDAY_MUTANT": "",
		"DUESDAY_PROXY_SERVICE_HOST": "10.0.0.1", "DUESDAY_PROXY_SERVICE_PORT_ADMIN": "8081", "DUESDAY_PROXY_PORT": "tcp://10.0.0.1:8080", "DUESDAY_PROXY_PORT_8080_TCP_ADDR": "10.0.0.1",
	}, "version")
	require.Equal(t, 0, code)
	require.Contains(t, out, "duesday dev")
	require.Equal(t, "duesday version: warning: no flag has the name of the variable DUESDAY_DATABASE_URL: did you mean DATABASE_URL, without the prefix?\n"+
		"duesday version: warning: no flag has the name of the variable DUESDAY_NOTHING_LIKE_IT_AT_ALL\n"+
		"duesday version: warning: no flag has the name of the variable DUESDAY_RAET: did you mean DUESDAY_RATE?\n", err)

	// A log stays a log.
	_, _, err = said(t, map[string]string{"DUESDAY_SPEND_CAP_FAKTOR": "2"}, "run", "--workers=1")
	first, _, _ := strings.Cut(err, "\n")
	require.Equal(t, "DUESDAY_SPEND_CAP_FACTOR", decode[map[string]any](t, first)["did_you_mean"])
}

func TestHelp_isStillThere(t *testing.T) {
	for line, want := range map[string]string{
		"help": "Exit codes:", "help run": "--spend-cap-factor", "help completion bash": "bash", "completion": "zsh", "run --help": "Bill one period",
	} {
		code, out, err := said(t, nil, strings.Split(line, " ")...)
		require.Equal(t, 0, code, line)
		require.Contains(t, out, want, line)
		require.Empty(t, err, line)
	}
}

func TestQuiet_leavesWhatWasAskedFor(t *testing.T) {
	_, loud, _ := said(t, nil, "key", "--customer=cust_123", "--period=2026-10")
	_, quiet, err := said(t, nil, "key", "--customer=cust_123", "--period=2026-10", "-q")
	require.Equal(t, loud, quiet)
	require.Empty(t, err)
	p := program{quiet: true, err: new(bytes.Buffer), out: new(bytes.Buffer)}
	p.logger("json", false).Info("not this")
	p.say("nor this")
	p.logger("json", false).Warn("but this")
	require.Contains(t, p.err.(*bytes.Buffer).String(), "but this")
	require.NotContains(t, p.err.(*bytes.Buffer).String(), "not this")
	require.Empty(t, p.out.(*bytes.Buffer).String())
}

func TestOutput_ofSmallCommands(t *testing.T) {
	_, out, _ := said(t, nil, "key", "--customer=cust_123", "--period=2026-10", "--output=json")
	require.Equal(t, map[string]string{"idempotency_key": "90d385dacce954d9262d71a98c4bf72d", "lock_id": lockID}, decode[map[string]string](t, out))
	_, out, _ = said(t, nil, "version", "--output=json")
	require.Equal(t, "dev", decode[map[string]any](t, out)["version"])
}

// A shell is never offered files for what is no file, and offers every choice.
func TestCompletion_offersChoices(t *testing.T) {
	for line, want := range map[string]string{
		"report --format ":          "table\ncsv\njson\nhtml\n:4\n",
		"run --stripe-method ":      "charges\npayment_intents\n:4\n",
		"proxy --log-format ":       "json\nconsole\n:4\n",
		"status --output ":          "table\njson\n:4\n",
		"run --period ":             ":4\n",
		"run ":                      ":4\n",
		"run --notify-secret-file ": ":0\n",
	} {
		_, out, _ := said(t, nil, append([]string{cobra.ShellCompRequestCmd}, strings.Split(line, " ")...)...)
		require.Equal(t, want, out, line)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, out, _ := said(t, nil, "completion", shell)
		require.Equal(t, 0, code)
		require.Contains(t, out, "duesday")
	}
}

func TestMan_readsWell(t *testing.T) {
	dir := t.TempDir()
	code, _, err := said(t, nil, "man", "--dir="+dir)
	require.Equal(t, 0, code, err)
	for _, cmd := range (&program{}).command().Commands() {
		if !cmd.Hidden {
			require.FileExists(t, filepath.Join(dir, "duesday-"+cmd.Name()+".1"))
		}
	}
	require.NoFileExists(t, filepath.Join(dir, "duesday-man.1"))
	root, fail := os.ReadFile(filepath.Join(dir, "duesday.1"))
	require.NoError(t, fail)
	// In blocks whose lines are kept.
	require.Regexp(t, `(?s)\.EX\n0  the period is settled.*\n1  unfinished.*\.EE`, string(root))

	man, fail := exec.LookPath("man")
	if fail != nil {
		return // the pages were written; there is nobody to read them
	}
	read := exec.CommandContext(t.Context(), man, "--warnings", "-l", filepath.Join(dir, "duesday-run.1"))
	read.Env = append(os.Environ(), "MANWIDTH=80", "LC_ALL=C.UTF-8", "PAGER=cat", "MANPAGER=cat")
	var complaints bytes.Buffer
	read.Stderr = &complaints
	text, fail := read.Output()
	require.NoError(t, fail, complaints.String())
	require.Empty(t, complaints.String())
	require.Contains(t, string(text), "DUESDAY-RUN(1)")
}

func TestDistance(t *testing.T) {
	for pair, want := range map[[2]string]int{{"", ""}: 0, {"a", ""}: 1, {"RAET", "RATE"}: 2, {"FAKTOR", "FACTOR"}: 1, {"kitten", "sitting"}: 3} {
		require.Equal(t, want, distance(pair[0], pair[1]), pair)
		require.Equal(t, want, distance(pair[1], pair[0]), pair)
	}
}
