package kvcache

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A tenant's token opens its blocks for ever. To workers it may issue others, which end by themselves and are for one cache:
//
//	weft1.CLAIM.MAC    base64url; MAC = HMAC-SHA256(the tenant's token, "weft kv token 1" and the claim)
//
// The fields of a claim have their lengths before them, so that no two claims are the same bytes.

// Claim is who a token speaks for.
type Claim struct {
	Tenant     string
	Audience   string    // the name of the cache that it is for
	Agent      string    // the only one whose memory may be named in calls; empty for any
	Generation uint64    // of that agent; 0 for any
	Until      time.Time // to the second; zero for the tenant's own token
}

const issued = "weft1."

func (c Claim) put() []byte {
	var b []byte
	for _, s := range []string{c.Tenant, c.Audience, c.Agent} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return binary.AppendVarint(binary.AppendUvarint(b, c.Generation), c.Until.Unix())
}

var errClaim = errors.New("not a claim")

// get decodes a claim. Whoever calls it has checked the signature; what is malformed all the same is errClaim.
func (c *Claim) get(b []byte) error {
	for _, to := range []*string{&c.Tenant, &c.Audience, &c.Agent} {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return errClaim
		}
		*to, b = string(b[k:k+int(n)]), b[k+int(n):]
	}
	generation, k := binary.Uvarint(b)
	if k <= 0 {
		return errClaim
	}
	until, n := binary.Varint(b[k:])
	if n <= 0 || k+n != len(b) {
		return errClaim
	}
	c.Generation, c.Until = generation, time.Unix(until, 0)
	return nil
}

func sealClaim(key string, claim []byte) []byte {
	m := hmac.New(sha256.New, []byte(key))
	m.Write([]byte("weft kv token 1"))
	m.Write(claim)
	return m.Sum(nil)
}

// Issue makes a token of a tenant, whose own token is the key.
func Issue(key string, c Claim) string {
	b, text := c.put(), base64.RawURLEncoding
	return issued + text.EncodeToString(b) + "." + text.EncodeToString(sealClaim(key, b))
}

// Tenant finds out for whom a token speaks; without tenants everybody is the only one.
func (c *Cache) Tenant(token string) (Claim, bool) {
	if rest, ok := strings.CutPrefix(token, issued); ok {
		if claim, ok := c.claimed(rest, time.Now()); ok {
			return claim, true
		}
	}
	for _, t := range c.tenants {
		if subtle.ConstantTimeCompare([]byte(t.Token), []byte(token)) == 1 {
			return Claim{Tenant: t.Name}, true
		}
	}
	return Claim{}, false
}

// claimed checks a token that was issued.
func (c *Cache) claimed(text string, now time.Time) (claim Claim, ok bool) {
	body, mac, _ := strings.Cut(text, ".")
	b, err1 := base64.RawURLEncoding.Strict().DecodeString(body)
	sum, err2 := base64.RawURLEncoding.Strict().DecodeString(mac)
	if err1 != nil || err2 != nil || claim.get(b) != nil {
		return Claim{}, false
	}
	t := c.tenants[claim.Tenant]
	if t == nil || t.Token == "" || !hmac.Equal(sum, sealClaim(t.Token, b)) {
		return Claim{}, false
	}
	if claim.Audience != c.o.Name || !now.Before(claim.Until) {
		return Claim{}, false
	}
	return claim, true
}

// covers says why a call may not name memory of an agent.
func (c Claim) covers(description json.RawMessage) error {
	var d struct {
		Name       string `json:"name"`
		Generation uint64 `json:"generation"`
	}
	if c.Agent == "" {
		return nil
	}
	if err := json.Unmarshal(description, &d); err != nil {
		return err
	}
	if d.Name != c.Agent || c.Generation != 0 && d.Generation != c.Generation {
		return fmt.Errorf("the token is for agent %s, generation %x; the call is about %s, generation %x",
			c.Agent, c.Generation, d.Name, d.Generation)
	}
	return nil
}
