package texproxy

import (
	"os"
	"slices"
	"sync"
	"time"
)

const (
	sparesAtMost = 2
	spareSize    = 64 << 20
	spareFor     = 10 * time.Second
)

// spares are files of uploads that have ended, kept for a moment for the next
// ones: to make a file's pages and to free them costs more than to write them.
// What is in one is overwritten before it is read, since an upload is never read
// beyond what has been written of it.
type spares struct {
	mu    sync.Mutex
	files []*spare // the last that was put first
}

type spare struct {
	file *os.File
	end  *time.Timer
}

// take returns a file without a name, or nil where there is none.
func (s *spares) take() *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.files) == 0 {
		return nil
	}
	one := s.files[0]
	s.files = s.files[1:]
	one.end.Stop()
	return one.file
}

// put keeps a file, of size bytes and without a name, or closes it.
func (s *spares) put(f *os.File, size int64) {
	if size > spareSize || !s.keep(f) {
		f.Close()
	}
}

func (s *spares) keep(f *os.File) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.files) >= sparesAtMost {
		return false
	}
	one := &spare{file: f}
	one.end = time.AfterFunc(spareFor, func() { s.close(one) })
	s.files = slices.Insert(s.files, 0, one)
	return true
}

// close closes one that nobody has taken, or all.
func (s *spares) close(only *spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = slices.DeleteFunc(s.files, func(one *spare) bool {
		if only != nil && one != only {
			return false
		}
		one.end.Stop()
		one.file.Close()
		return true
	})
}
