package spendcap

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"
)

// A vault key is its id, which may be shown, and a secret of 256 random bits.
var keyShape = regexp.MustCompile(`^(vk_[0-9a-f]{16})_([A-Za-z0-9_-]{43})$`)

// newSecret returns a key's id, the key as its holder gets it, and what is
// stored of it. One SHA-256 is enough to store: a slow hash protects secrets
// that can be guessed, and these cannot.
func newSecret() (id, key string, hash []byte) {
	var random [8 + 32]byte
	rand.Read(random[:]) // never fails
	id = "vk_" + hex.EncodeToString(random[:8])
	secret := base64.RawURLEncoding.EncodeToString(random[8:])
	return id, id + "_" + secret, hashSecret(secret)
}

func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// credential finds the vault key in a request: Bearer, or Basic with the key
// for a user and no password.
func credential(r *http.Request) (id string, hash []byte, ok bool) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", nil, false
	}
	scheme, key, _ := strings.Cut(values[0], " ")
	if user, password, basic := r.BasicAuth(); basic {
		if password != "" {
			return "", nil, false
		}
		key = user
	} else if !strings.EqualFold(scheme, "Bearer") {
		return "", nil, false
	}
	m := keyShape.FindStringSubmatch(key)
	if m == nil {
		return "", nil, false
	}
	return m[1], hashSecret(m[2]), true
}
