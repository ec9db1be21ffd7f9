package document

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// closeTimeout bounds giving a cursor back.
const closeTimeout = 2 * time.Second

// Watch calls changed for every document that changes until ctx ends, removed
// ones too. It polls every pollEvery and compares texts, since whoever edits a
// document by hand moves no version with it; change streams would need a
// replica set. The first poll says that anything may have changed.
func (m *Mongo) Watch(ctx context.Context, log *slog.Logger, changed func(...Change)) {
	m.watch(ctx, log, changed, &poller{coll: m.coll, hash: serverHash, most: maxFiles}, pollEvery)
}

func (m *Mongo) watch(ctx context.Context, log *slog.Logger, changed func(...Change), l *poller, every time.Duration) {
	log = log.With("collection", m.coll.Name())
	indexed, complained := false, false
	read := func(ctx context.Context) (snapshot, error) {
		if !indexed {
			if err := m.EnsureIndex(ctx); err != nil && ctx.Err() == nil && !complained {
				log.Warn("the index of the documents collection could not be made; reads may be slow", "err", err)
				complained = true
			}
		}
		s, err := l.poll(ctx)
		indexed = indexed || err == nil
		return s, err
	}
	polling{read: read, changed: changed, log: log, every: every}.run(ctx)
}

// serverHash is the operator that gives 64 bits for a text, so that a poll of
// ten thousand documents moves one megabyte and not their texts. MongoDB has it
// since version 7.
const serverHash = "$toHashedIndexKey"

// The ways in which a poller's fingerprints are made.
const (
	byHash = "hash"
	byText = "text"
)

// poller reads a collection.
type poller struct {
	coll  *mongo.Collection
	hash  string // the server's operator
	most  int    // documents; more are not watched
	texts bool   // the server has no such operator
}

// poll takes a fingerprint of every document below _vance/. A server that cannot hash
// is asked for the texts from then on.
func (l *poller) poll(ctx context.Context) (snapshot, error) {
	if !l.texts {
		found, err := l.fingerprints(ctx, bson.D{{Key: l.hash, Value: "$content"}})
		if !l.unknown(err) {
			return snapshot{by: byHash, fingerprints: found}, err
		}
		l.texts = true
	}
	found, err := l.fingerprints(ctx, readable)
	return snapshot{by: byText, fingerprints: found}, err
}

// unknown reports whether err says that the server does not have the operator.
func (l *poller) unknown(err error) bool {
	var se mongo.ServerError
	return errors.As(err, &se) && strings.Contains(err.Error(), l.hash)
}

// readable is the text where Read can read it, and else what Read complains of:
// what is too long is not moved at every poll.
var readable = bson.D{{Key: "$cond", Value: bson.A{
	bson.D{{Key: "$ne", Value: bson.A{bson.D{{Key: "$type", Value: "$content"}}, "string"}}},
	1,
	bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$gt", Value: bson.A{bson.D{{Key: "$strLenBytes", Value: "$content"}}, MaxSize}}},
		2,
		"$content",
	}}},
}}}

// twice is the fingerprint of a key that has several documents. Whatever they say,
// Read refuses them.
var twice = fingerprint(sha256.Sum256([]byte("more than one")))

// fingerprints maps the keys below _vance/ to the fingerprints of what is computed for each.
func (l *poller) fingerprints(ctx context.Context, computed any) (_ map[Key]fingerprint, err error) {
	cursor, err := l.coll.Aggregate(ctx, bson.A{
		bson.D{{Key: "$match", Value: belowVance}},
		bson.D{{Key: "$limit", Value: l.most + 1}},
		bson.D{{Key: "$project", Value: bson.D{
			{Key: "_id", Value: 0}, {Key: "tenantId", Value: 1}, {Key: "projectId", Value: 1}, {Key: "path", Value: 1},
			{Key: "fingerprint", Value: computed},
		}}},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		// The poll's own time may be over, and the server must not keep the cursor.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, cursor.Close(ctx))
	}()
	found := map[Key]fingerprint{}
	for n := 1; cursor.Next(ctx); n++ {
		if n > l.most {
			return nil, fmt.Errorf("the collection has more than %d documents below _vance/", l.most)
		}
		key, ok := keyOf(cursor.Current)
		if !ok {
			continue
		}
		if _, more := found[key]; more {
			found[key] = twice
			continue
		}
		found[key] = fingerprintOf(cursor.Current.Lookup("fingerprint"))
	}
	return found, cursor.Err()
}

func fingerprintOf(v bson.RawValue) (p fingerprint) {
	h := sha256.New()
	h.Write([]byte{byte(v.Type)})
	h.Write(v.Value)
	h.Sum(p[:0])
	return p
}
