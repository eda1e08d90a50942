package charges

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/duesday/duesday/internal/mutant"
)

var attemptSuffix = regexp.MustCompile(`^attempt-[0-9]+$`)

// ValidateNamespace refuses a key namespace with which two different charges
// could share a key: one with a colon (the key's separator), an empty one, and
// one that looks like the suffix of a later attempt.
func ValidateNamespace(namespace string) error {
	switch {
	case namespace == "":
		return errors.New("want a literal such as monthly-billing, got an empty string")
	case strings.Contains(namespace, ":"):
		return fmt.Errorf("%q contains a colon, which separates the parts of a key", namespace)
	case attemptSuffix.MatchString(namespace):
		return fmt.Errorf("%q is how a later attempt is marked in a key; choose another literal", namespace)
	case len(namespace) > 100:
		return fmt.Errorf("%d bytes are too long, want at most 100", len(namespace))
	}
	for _, r := range namespace {
		if r < '!' || r > '~' {
			return fmt.Errorf("%q: want printable ASCII without spaces", namespace)
		}
	}
	return nil
}

// Key is the idempotency key of an attempt to charge a customer for a period:
// the first 32 hex digits of SHA-256 over "customer:period:namespace", and from
// the second attempt on over "customer:period:namespace:attempt-n". It depends
// on these alone, so every process, now and after any crash, computes the same.
func Key(customer string, period Period, namespace string, attempt int) string {
	s := customer + ":" + period.String() + ":" + namespace
	if attempt > 1 {
		s = fmt.Sprintf("%s:attempt-%d", s, attempt)
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// keySQL is Key in SQL, for the statement that claims. The arguments are SQL
// expressions: texts, and an integer for attempt.
func keySQL(customer, period, namespace, attempt string) string {
	if mutant.Is("random-key") {
		customer = "random()::text || " + customer
	}
	return fmt.Sprintf(
		`encode(substr(sha256(convert_to(%s || ':' || %s || ':' || %s || CASE WHEN %s > 1 THEN ':attempt-' || %[4]s ELSE '' END, 'UTF8')), 1, 16), 'hex')`,
		customer, period, namespace, attempt)
}

// LockID is the id of a period's advisory lock: the first eight bytes,
// big-endian, of SHA-256 over "namespace:period".
func LockID(namespace, period string) int64 {
	sum := sha256.Sum256([]byte(namespace + ":" + period))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}
