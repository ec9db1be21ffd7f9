//go:build external

package clients

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// patience bounds every step; nothing here takes long when it works.
const patience = 60 * time.Second

// driver is a program that drives one client.
type driver struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan []byte
	log   *output.Buffer
}

// command is a step; driver.mjs says what each means.
type command struct {
	Do        string         `json:"do"`
	As        string         `json:"as,omitempty"`
	URL       string         `json:"url,omitempty"`
	Token     string         `json:"token,omitempty"`
	Name      string         `json:"name,omitempty"`
	Arguments map[string]any `json:"arguments,omitempty"`
	Progress  bool           `json:"progress,omitempty"`
}

// answer is what a client gave its caller.
type answer struct {
	Text        string
	IsError     bool
	Progress    int
	Tools       []string
	Version     string
	Elicitation bool // it can answer one
	Events      bool // it can show progress
}

// brokenDriver is an error that is the driver's and no client's.
type brokenDriver struct{ what string }

func (b brokenDriver) Error() string { return b.what }

// goDriver builds the driver of the Go clients once for each test process.
var goDriver = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mcp-lease-gateway-driver-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "driver")
	out, err := exec.Command("go", "build", "-o", path, "./driver").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the Go clients: %w\n%s", err, out)
	}
	return path, nil
})

// part is the absolute path of what `make parts` has installed.
func part(t *testing.T, path string) string {
	t.Helper()
	absolute, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(absolute); err != nil {
		t.Fatalf("%s is missing: make parts installs it", path)
	}
	return absolute
}

// commandOf is the program that drives a client.
func commandOf(t *testing.T, language, name string) *exec.Cmd {
	t.Helper()
	switch language {
	case "node":
		cmd := exec.Command(part(t, "../node/node_modules/.bin/node"), "driver.mjs", name)
		cmd.Dir = "../node"
		return cmd
	case "python-1", "python-2":
		venv := ".venv-" + language[len("python-"):]
		cmd := exec.Command(part(t, "python/"+venv+"/bin/python"), "driver.py", name)
		cmd.Dir = "python"
		return cmd
	case "java":
		target := part(t, "java/"+name+"/target")
		return exec.Command("java", "-XX:TieredStopAtLevel=1", "-cp", target+"/classes:"+target+"/lib/*", "drive.Driver")
	case "go":
		path, err := goDriver()
		if err != nil {
			t.Fatal(err)
		}
		return exec.Command(path, name)
	}
	t.Fatalf("no driver in %q", language)
	return nil
}

// start starts a client's driver, which ends with the test.
func start(t *testing.T, language, name string) *driver {
	t.Helper()
	d := &driver{cmd: commandOf(t, language, name), lines: make(chan []byte), log: &output.Buffer{}}
	d.cmd.Stderr = d.log
	d.cmd.WaitDelay = time.Second
	in, err := d.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.in = in
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go d.read(out)
	t.Cleanup(d.kill)
	return d
}

// read takes the driver's lines off its pipe; the channel is closed at its end.
func (d *driver) read(out io.Reader) {
	defer close(d.lines)
	r := bufio.NewReaderSize(out, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		d.lines <- line
	}
}

// kill ends the client as a crash does.
func (d *driver) kill() {
	_ = d.cmd.Process.Kill() // it may have ended
	for range d.lines {
	}
	_ = d.cmd.Wait()
}

// do takes a step. An error is what the client's caller read, or a brokenDriver.
func (d *driver) do(c command) (answer, error) {
	line, err := json.Marshal(c)
	if err != nil {
		return answer{}, brokenDriver{err.Error()}
	}
	if _, err := d.in.Write(append(line, '\n')); err != nil {
		return answer{}, brokenDriver{fmt.Sprintf("the driver has ended: %v\n%s", err, d.log.String())}
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case line, ok := <-d.lines:
		if !ok {
			return answer{}, brokenDriver{fmt.Sprintf("the driver ended in %s:\n%s", c.Do, d.log.String())}
		}
		var a struct {
			OK    answer
			Error string
		}
		if err := json.Unmarshal(line, &a); err != nil {
			return answer{}, brokenDriver{fmt.Sprintf("the driver answered %s: %v", line, err)}
		}
		if a.Error != "" {
			return answer{}, errors.New(a.Error)
		}
		return a.OK, nil
	case <-timeout.C:
		return answer{}, brokenDriver{fmt.Sprintf("no answer to %s within %s:\n%s", line, patience, d.log.String())}
	}
}
