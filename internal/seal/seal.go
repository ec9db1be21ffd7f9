package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// KeySize is the length of a session key in bytes.
const KeySize = 32

const keyIDSize = 4

// ErrSeal says that a text was not sealed by these keys for this purpose and
// additional data. It does not say which of them differs.
var ErrSeal = errors.New("seal: not a text of this gateway")

// Ring holds the keys of session.keys: the first seals, all open.
type Ring struct{ keys [][]byte }

// NewRing takes one or more keys of KeySize bytes.
func NewRing(keys ...[]byte) (*Ring, error) {
	if len(keys) == 0 {
		return nil, errors.New("seal: no key")
	}
	for i, k := range keys {
		if len(k) != KeySize {
			return nil, fmt.Errorf("seal: key %d has %d bytes, want %d", i+1, len(k), KeySize)
		}
	}
	return &Ring{keys: keys}, nil
}

// Box seals and opens texts of one purpose. It is safe for concurrent use.
type Box struct{ keys []boxKey }

type boxKey struct {
	id   [keyIDSize]byte
	aead cipher.AEAD
}

// Box derives the keys of a purpose, such as "session" or "insights".
func (r *Ring) Box(purpose string) *Box {
	b := &Box{}
	for _, k := range r.keys {
		// HKDF and AES fail only on sizes, and those were checked or are constants.
		derived, err := hkdf.Key(sha256.New, k, nil, "mcp-lease-gateway/"+purpose, KeySize+keyIDSize)
		if err != nil {
			panic(err)
		}
		block, err := aes.NewCipher(derived[:KeySize])
		if err != nil {
			panic(err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			panic(err)
		}
		b.keys = append(b.keys, boxKey{id: [keyIDSize]byte(derived[KeySize:]), aead: aead})
	}
	return b
}

// Seal returns plain in a form of URL-safe ASCII that opens with the same
// purpose and additional data only. Sealing the same text twice gives two texts.
func (b *Box) Seal(plain, additional []byte) string {
	k := b.keys[0]
	out := make([]byte, keyIDSize+k.aead.NonceSize(), keyIDSize+k.aead.NonceSize()+len(plain)+k.aead.Overhead())
	copy(out, k.id[:])
	nonce := out[keyIDSize:]
	if _, err := rand.Read(nonce); err != nil {
		panic(err) // crypto/rand never returns an error on systems Go supports
	}
	return base64.RawURLEncoding.EncodeToString(k.aead.Seal(out, nonce, plain, additional))
}

// Open returns what was sealed, or ErrSeal.
func (b *Box) Open(sealed string, additional []byte) ([]byte, error) {
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil || len(raw) < keyIDSize {
		return nil, ErrSeal
	}
	for _, k := range b.keys {
		if [keyIDSize]byte(raw[:keyIDSize]) != k.id || len(raw) < keyIDSize+k.aead.NonceSize() {
			continue
		}
		body := raw[keyIDSize:]
		n := k.aead.NonceSize()
		plain, err := k.aead.Open(nil, body[:n], body[n:], additional)
		if err == nil {
			return plain, nil
		}
	}
	return nil, ErrSeal
}
