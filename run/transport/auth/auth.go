// Package auth is how two processes of a cluster recognise one another on a
// new connection: both prove that they know the cluster's token, and neither
// sends it. Everything that is exchanged has a fixed, small size.
//
//	dialer                                   listener
//	  hello: who, what for, a nonce      ->
//	                                     <-    challenge: a nonce
//	  proof: MAC(dialer, both)           ->
//	                                     <-    verdict, MAC(listener, both, verdict)
//
// A MAC is HMAC-SHA256 under the token over role, hello and challenge, so a
// recorded exchange is worth nothing on a later connection, in the other
// direction or for another purpose. What is not a hello is turned away, counted
// by kind and logged once per kind; it costs the listener one goroutine for at
// most the handshake's time limit.
package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// Purpose is what a connection is for.
type Purpose uint8

// The purposes of connections.
const (
	Meet    Purpose = 1 // the rendezvous, where ranks find one another
	Stream  Purpose = 2 // data between two ranks
	Move    Purpose = 3 // transfers between two agents (package xfer)
	Witness Purpose = 4 // a vote (package run/transport/witness)
)

// Hello is what a dialer says about itself.
type Hello struct {
	Purpose    Purpose
	Rank, Size int      // of the dialer
	World      [16]byte // which world it belongs to; zero where there is none yet
	Epoch      uint64   // of an elastic job; 0 for none
	Extra      [16]byte // what the purpose needs to know besides
	Secret     Secret   // of the connection; not sent, known to both ends once they have proven themselves
}

// The sizes of what is exchanged, in bytes.
const (
	HelloSize     = 96
	challengeSize = 40
	proofSize     = sha256.Size
	verdictSize   = 2 + textSize + sha256.Size
	textSize      = 222
)

// Timeout is how long a handshake may take. Both ends are awake when it starts;
// what is left to wait for is the network and the scheduler.
const Timeout = 5 * time.Second

// magic is not text, ends lines in both conventions and stops a terminal, so
// that no other protocol begins with it; its last byte is the version.
var magic = [8]byte{0x89, 'w', 'e', 'f', 't', '\r', 0x1a, 3}

// tlsHandshake is the first byte of a connection under TLS.
const tlsHandshake = 0x16

const sameTLS = "give all ranks the same WEFT_TLS"

// ErrToken is a peer that has another token.
var ErrToken = errors.New("the cluster tokens differ: set WEFT_TOKEN to the same value on all ranks")

// OtherEpoch is a listener of another epoch of an elastic job. Each epoch has a token of its own, so neither end can prove what it says.
type OtherEpoch struct{ Here, There uint64 }

func (o *OtherEpoch) Error() string {
	return fmt.Sprintf("who listens there belongs to epoch %d of the job, this rank to epoch %d", o.There, o.Here)
}

// Late reports whether this end belongs to the earlier epoch, which no longer meets.
func (o *OtherEpoch) Late() bool { return o.Here < o.There }

// otherEpoch compares what the two ends of a connection say of their epochs; nil if they say the same, or one says nothing.
func otherEpoch(here, there uint64) *OtherEpoch {
	if here == there || here == 0 || there == 0 {
		return nil
	}
	return &OtherEpoch{here, there}
}

// Refusal is a listener that recognised the dialer and did not want it.
type Refusal struct{ Why string }

func (r *Refusal) Error() string { return "refused: " + r.Why }

// Stranger is a listener that does not speak this protocol.
type Stranger struct{ Got []byte }

func (s *Stranger) Error() string {
	return fmt.Sprintf("what listens there is not weft: it answered %q", s.Got)
}

// put encodes the hello with a nonce.
func (h *Hello) put(b *[HelloSize]byte, nonce [32]byte) {
	le := binary.LittleEndian
	copy(b[:], magic[:])
	b[8] = byte(h.Purpose)
	le.PutUint32(b[12:], uint32(h.Rank))
	le.PutUint32(b[16:], uint32(h.Size))
	copy(b[24:40], h.World[:])
	copy(b[40:56], h.Extra[:])
	copy(b[56:88], nonce[:])
	le.PutUint64(b[88:], h.Epoch)
}

// parse decodes a hello. The values are only claims until the proof is there.
func parse(b *[HelloSize]byte) (Hello, error) {
	le := binary.LittleEndian
	if err := checkMagic(b[:8]); err != nil {
		return Hello{}, err
	}
	if b[9]|b[10]|b[11] != 0 || le.Uint32(b[20:]) != 0 {
		return Hello{}, &turned{kind: Garbage, why: "reserved bytes of the hello are set"}
	}
	h := Hello{Purpose: Purpose(b[8]), Rank: int(int32(le.Uint32(b[12:]))), Size: int(int32(le.Uint32(b[16:]))), Epoch: le.Uint64(b[88:])}
	copy(h.World[:], b[24:40])
	copy(h.Extra[:], b[40:56])
	return h, nil
}

// checkMagic compares the first bytes with ours. The errors tell another version and TLS from strangers, because those
// are mistakes of configuration that people can mend.
func checkMagic(b []byte) error {
	for i, c := range b {
		if c == magic[i] {
			continue
		}
		if i == 7 {
			return &turned{kind: Version, why: fmt.Sprintf("protocol version %d, this is %d", c, magic[7])}
		}
		if i == 0 && c == tlsHandshake {
			return &turned{kind: TLS, why: "it begins with TLS, and this end has none: " + sameTLS}
		}
		return &turned{kind: Garbage, why: fmt.Sprintf("began with %q", b)}
	}
	return nil
}

// mac is the MAC of a role over everything that was said so far.
func mac(token, role string, said ...[]byte) []byte {
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte("weft " + role + "\x00"))
	for _, s := range said {
		m.Write(s)
	}
	return m.Sum(nil)
}

// Dial says hello on a new connection and returns once the listener has proven
// itself and let the dialer in, with the secret of the connection. The connection is left open on failure.
func Dial(conn net.Conn, token string, h Hello) (Secret, error) {
	var secret Secret
	err := dial(conn, token, h, &secret)
	return secret, err
}

// Secret is known to the two ends of a connection that have the same token, and differs from
// connection to connection.
type Secret [sha256.Size]byte

// of is a secret of its own for a purpose.
func (s *Secret) of(purpose string) []byte { return mac(string(s[:]), purpose) }

// secretOf is the secret of a connection.
func secretOf(token string, hello, challenge []byte) Secret {
	return Secret(mac(token, "secret", hello, challenge))
}

// dial proves to a listener that this end knows the token, and has it prove the same, without sending the token. secret
// receives what later messages of the connection are signed with. On an error the caller closes the connection.
func dial(conn net.Conn, token string, h Hello, secret *Secret) error {
	if err := conn.SetDeadline(time.Now().Add(Timeout)); err != nil {
		return err
	}
	var hello [HelloSize]byte
	var nonce [32]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return err
	}
	h.put(&hello, nonce)
	if _, err := conn.Write(hello[:]); err != nil {
		return err
	}
	var challenge [challengeSize]byte
	if n, err := io.ReadFull(conn, challenge[:]); err != nil {
		if n > 0 && checkMagic(challenge[:min(n, 8)]) != nil {
			return &Stranger{Got: challenge[:n]}
		}
		return err
	}
	if checkMagic(challenge[:8]) != nil {
		return &Stranger{Got: challenge[:]}
	}
	if _, err := conn.Write(mac(token, "dialer", hello[:], challenge[:])); err != nil {
		return err
	}
	var verdict [verdictSize]byte
	if _, err := io.ReadFull(conn, verdict[:]); err != nil {
		return err
	}
	said := verdict[:verdictSize-sha256.Size]
	if !hmac.Equal(verdict[len(said):], mac(token, "listener", hello[:], challenge[:], said)) {
		if other := otherEpoch(h.Epoch, binary.LittleEndian.Uint64(said[2:])); other != nil {
			return other
		}
		return ErrToken
	}
	if said[0] != 0 {
		return &Refusal{Why: string(said[2 : 2+min(int(said[1]), textSize)])}
	}
	*secret = secretOf(token, hello[:], challenge[:])
	return conn.SetDeadline(time.Time{})
}

// answer is the listener's half of Dial. admit judges a dialer that has proven
// itself; the text of its error is told to the dialer.
func answer(conn net.Conn, token string, epoch uint64, admit func(Hello) error) (Hello, error) {
	if err := conn.SetDeadline(time.Now().Add(Timeout)); err != nil {
		return Hello{}, err
	}
	var hello [HelloSize]byte
	for n := 0; n < HelloSize; {
		k, err := conn.Read(hello[n:])
		n += k
		if bad := checkMagic(hello[:min(n, 8)]); bad != nil {
			return Hello{}, bad
		}
		if err != nil && n < HelloSize {
			return Hello{}, cut(n, err)
		}
	}
	h, err := parse(&hello)
	if err != nil {
		return Hello{}, err
	}
	var challenge [challengeSize]byte
	copy(challenge[:], magic[:])
	if _, err := rand.Read(challenge[8:]); err != nil {
		return Hello{}, err
	}
	if _, err := conn.Write(challenge[:]); err != nil {
		return Hello{}, &turned{kind: Truncated, why: err.Error()}
	}
	var proof [proofSize]byte
	if n, err := io.ReadFull(conn, proof[:]); err != nil {
		return Hello{}, cut(HelloSize+n, err)
	}
	var verdict [verdictSize]byte
	said := verdict[:verdictSize-sha256.Size]
	if !hmac.Equal(proof[:], mac(token, "dialer", hello[:], challenge[:])) {
		// The MAC stays zero: whoever does not know the token learns nothing but the epoch,
		// and a dialer whose token differs finds that out.
		said[0] = 1
		no := h.stranger(epoch)
		if no.kind == Epoch {
			binary.LittleEndian.PutUint64(said[2:], epoch)
		}
		_, _ = conn.Write(verdict[:])
		return Hello{}, no
	}
	no := admit(h)
	if no != nil {
		said[0], said[1] = 1, byte(copy(said[2:], no.Error()))
	}
	copy(verdict[len(said):], mac(token, "listener", hello[:], challenge[:], said))
	if _, err := conn.Write(verdict[:]); err != nil && no == nil {
		return h, &turned{kind: Truncated, why: err.Error()}
	}
	if no != nil {
		_, over := errors.AsType[Over](no)
		return h, &turned{kind: Refused, why: no.Error(), over: over}
	}
	h.Secret = secretOf(token, hello[:], challenge[:])
	return h, conn.SetDeadline(time.Time{})
}

// stranger says what is known of a dialer that could not prove itself to a listener of an epoch.
func (h *Hello) stranger(epoch uint64) *turned {
	if other := otherEpoch(epoch, h.Epoch); other != nil {
		return &turned{kind: Epoch, why: fmt.Sprintf("rank %d of %d belongs to epoch %d of the job, this is epoch %d", h.Rank, h.Size,
			other.There, other.Here)}
	}
	return &turned{kind: Token, why: fmt.Sprintf("wrong token from one that says it is rank %d of %d", h.Rank, h.Size)}
}

// cut says what a hello that ends too soon is.
func cut(n int, err error) error {
	var t net.Error
	switch {
	case errors.As(err, &t) && t.Timeout():
		return &turned{kind: Silent, why: fmt.Sprintf("%d bytes of a hello, then nothing for %s", n, Timeout)}
	case n == 0:
		return &turned{kind: Empty, why: "closed without a word"}
	}
	return &turned{kind: Truncated, why: fmt.Sprintf("%d bytes of a hello", n)}
}

// CheckToken refuses an empty token unless the address is one that only this
// host reaches, or open says that it is meant.
func CheckToken(token, host string, open bool) error {
	if token != "" || open || host == "localhost" {
		return nil
	}
	if a, err := netip.ParseAddr(host); err == nil && a.IsLoopback() {
		return nil
	}
	return fmt.Errorf("address %q can be reached from other hosts, but there is no cluster token; set WEFT_TOKEN to the same secret on all ranks",
		host)
}
