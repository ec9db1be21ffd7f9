package telemetry

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// auditFile is an appended file that follows its name. Several processes may
// append to it: a line is one write.
type auditFile struct {
	path   string
	beside bool // a file that is made belongs to whom its folder belongs to
	f      *os.File
	looked time.Time
	torn   bool // the file ends in half a line
}

// lookEvery is how often it is checked whether the file was moved away.
const lookEvery = time.Second

// openAuditFile opens the file or makes it, 0600. beside: the process is not the
// gateway whose log it is.
func openAuditFile(path string, beside bool) (*auditFile, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	// Whether it is new is known for certain only where it must be.
	f, err := os.OpenFile(path, flags|os.O_EXCL, 0o600)
	created := err == nil
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(path, flags, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if created && beside {
		if err := giveToFolder(f, path); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return &auditFile{path: path, beside: beside, f: f, looked: time.Now(), torn: !created && endsInHalfALine(path)}, nil
}

// endsInHalfALine reports whether somebody's last write was cut short, by a full
// disk or a crash. A file that may not be read is taken to be whole.
func endsInHalfALine(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	last := make([]byte, 1)
	_, err = f.ReadAt(last, info.Size()-1)
	return err == nil && last[0] != '\n'
}

// Write appends one line. Half a line before it, which a full disk has left,
// does not take it along.
func (a *auditFile) Write(line []byte) (int, error) {
	if a.f == nil || time.Since(a.looked) >= lookEvery {
		if err := a.follow(); err != nil {
			return 0, err
		}
	}
	if a.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := a.f.Write(line)
	if n > 0 {
		a.torn = line[n-1] != '\n'
	}
	return n, err
}

// follow opens the file anew where its name is another file's or nobody's.
func (a *auditFile) follow() error {
	a.looked = time.Now()
	if a.f != nil {
		here, err := a.f.Stat()
		there, statErr := os.Stat(a.path)
		if err == nil && statErr == nil && os.SameFile(here, there) {
			return nil
		}
	}
	fresh, err := openAuditFile(a.path, a.beside)
	if err != nil {
		return err
	}
	err = a.close()
	a.f, a.torn = fresh.f, fresh.torn
	return err
}

func (a *auditFile) close() error {
	if a.f == nil {
		return nil
	}
	var err error
	// Pipes and devices such as /dev/stdout have nothing to sync and refuse it.
	if info, statErr := a.f.Stat(); statErr == nil && info.Mode().IsRegular() {
		err = a.f.Sync()
	}
	err = errors.Join(err, a.f.Close())
	a.f = nil
	return err
}
