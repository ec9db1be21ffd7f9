package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// format is what bucketMeta says about the file's layout.
const format = "mcp-lease-gateway leases, format 1"

// lockWait is how long Open waits for another process to let go of the file: a
// process that is just ending, not one that lives.
const lockWait = 300 * time.Millisecond

// flushEvery is how often touches go to disk.
const flushEvery = time.Second

// ErrLocked says that another process has the file open.
var ErrLocked = errors.New("another process has it open")

// ErrDamaged says that the file is not, or is no longer, a lease store.
var ErrDamaged = errors.New("it is not a lease store that can be read")

// ErrClosed says that the store was closed.
var ErrClosed = errors.New("the embedded lease store is closed")

// Store is the embedded lease.Store. It is safe for concurrent use.
type Store struct {
	db    *bolt.DB
	path  string
	start time.Time // with monotonic reading; see now

	ops  chan *op
	stop chan struct{} // closed by Close
	done chan struct{} // closed when the writer has ended and the file is closed
	once sync.Once
	end  error // of closing the file, set before done is closed

	seats seats
}

var _ lease.Store = (*Store)(nil)

// Open opens the lease file at path, making it and its directory where they are
// missing. It refuses quickly, and with a sentence, a file that another process
// has open (ErrLocked) and one that is damaged or not a lease store (ErrDamaged).
func Open(ctx context.Context, path string) (*Store, error) {
	return open(ctx, path, 0)
}

// open is Open with a bound on the file's size, for tests of a full disk.
func open(ctx context.Context, path string, maxSize int) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("lease store %s: %w", path, err)
	}
	if path == "" {
		return nil, errors.New("lease store: no path is given (store.path)")
	}
	if err := prepare(path); err != nil {
		return nil, err
	}
	db, err := openFile(path, maxSize)
	if err != nil {
		return nil, err
	}
	s := &Store{
		db:    db,
		path:  path,
		start: time.Now(),
		ops:   make(chan *op, maxBatch),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	if err := s.load(); err != nil {
		_ = db.Close() // the file is of no use; why is in err
		return nil, err
	}
	go s.write()
	return s, nil
}

// prepare makes the directory, and takes the file away from other users: it
// holds tokens and session ids.
func prepare(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("lease store %s: its directory cannot be made: %w", path, err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("lease store %s: %w", path, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("lease store %s: this is not a file; store.path names the file itself", path)
	case info.Mode().Perm()&0o077 != 0:
		if err := os.Chmod(path, 0o600); err != nil {
			return fmt.Errorf("lease store %s: other users can read it, and that cannot be changed: %w", path, err)
		}
	}
	return nil
}

// openFile opens and verifies the database. bbolt answers many kinds of damage
// with a panic and a file that was cut short with a memory fault, so both are
// turned into errors here, where nothing depends on the database yet.
func openFile(path string, maxSize int) (db *bolt.DB, err error) {
	var file *os.File
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			if file != nil {
				_ = file.Close() // the map that bbolt leaves behind goes with the process
			}
			db, err = nil, damaged(path, fmt.Errorf("%v", p))
		}
	}()
	_, statErr := os.Stat(path)
	db, err = bolt.Open(path, 0o600, &bolt.Options{
		Timeout:         lockWait,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: 64 << 20, // remapping stops all readers
		MaxSize:         maxSize,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag, mode)
			file = f
			return f, err
		},
	})
	switch {
	case err == nil:
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("lease store %s: %w: an embedded store serves one gateway process; stop the other one, or use store.kind mongodb for several", path, ErrLocked)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("lease store %s: this user may not read and write it: %w", path, err)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, damaged(path, err)
	default:
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			return nil, fmt.Errorf("lease store %s: %w", path, err)
		}
		return nil, damaged(path, err)
	}
	if err := verify(db, file); err != nil {
		_ = db.Close() // the file is of no use; why is in err
		return nil, damaged(path, err)
	}
	if statErr != nil { // the file is new; make its name durable too
		if err := syncDir(filepath.Dir(path)); err != nil {
			_ = db.Close()
			return nil, fmt.Errorf("lease store %s: %w", path, err)
		}
	}
	return db, nil
}

// verify looks at every page, so that damage shows now and not in the middle of
// an acquire.
func verify(db *bolt.DB, file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return db.View(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("it was cut short: %d of %d bytes are left", info.Size(), tx.Size())
		}
		var first error
		for err := range tx.Check() { // the channel must be drained
			if first == nil {
				first = err
			}
		}
		return first
	})
}

func damaged(path string, err error) error {
	return fmt.Errorf("lease store %s: %w (%v): move the file away and start anew, all leases are then free; the upstream sessions they stood for are left to their own end", path, ErrDamaged, err)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load makes the buckets, refuses another program's file and takes a seat for
// every HELD holder, touched now.
func (s *Store) load() error {
	tx, err := s.db.Begin(true)
	if err != nil {
		return fmt.Errorf("lease store %s: %w", s.path, err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := layOut(tx); err != nil {
		return damaged(s.path, err)
	}
	x := s.txn(tx)
	if err := x.clampCounters(); err != nil {
		return damaged(s.path, err)
	}
	held := map[lease.Token]seat{}
	if err := x.eachHolder(func(t lease.Token, h *holderDoc) error {
		if h.State == lease.Held {
			held[t] = seat{seen: x.now, pod: h.Pod, podBound: h.PodBound}
		}
		return nil
	}); err != nil {
		return damaged(s.path, err)
	}
	s.seats.reset(held)
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("lease store %s: it cannot be written: %w", s.path, err)
	}
	return nil
}

// layOut makes what is missing in a new file and refuses a file that is not ours.
func layOut(tx *bolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		if k, _ := tx.Cursor().First(); k != nil {
			return errors.New("it belongs to another program")
		}
		var err error
		if meta, err = tx.CreateBucket(bucketMeta); err != nil {
			return err
		}
		if err := meta.Put(keyFormat, []byte(format)); err != nil {
			return err
		}
	}
	if got := string(meta.Get(keyFormat)); got != format {
		return fmt.Errorf("it says %q, and this gateway knows %q", got, format)
	}
	for _, b := range dataBuckets {
		if _, err := tx.CreateBucketIfNotExists(b); err != nil {
			return err
		}
	}
	return nil
}

// now is store time in nanoseconds. A clock that is set while the store is open
// does not move it.
func (s *Store) now() int64 {
	return s.start.Add(time.Since(s.start)).UnixNano()
}

// Ping reports whether the store can be read.
func (s *Store) Ping(ctx context.Context) error {
	_, err := read(ctx, s, func(*txn) (struct{}, error) { return struct{}{}, nil })
	return err
}

// SinglePod is true: the file lock proves that no other process uses the store.
func (s *Store) SinglePod() bool { return true }

// Close writes the touches that are still in memory and closes the file. It
// returns at ctx's end at the latest; the file is then closed a little later.
func (s *Store) Close(ctx context.Context) error {
	s.once.Do(func() { close(s.stop) })
	select {
	case <-s.done:
		return s.end
	case <-ctx.Done():
		return fmt.Errorf("lease store %s: closing it takes longer than allowed: %w", s.path, ctx.Err())
	}
}
