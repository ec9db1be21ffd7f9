//go:build linux

package stdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// programs are what the tests run: this test binary again, as another program.
var programs = map[string]func(args []string){
	"echo":      echoProgram,
	"deaf":      deafProgram,
	"stubborn":  stubbornProgram,
	"daemonize": daemonizeProgram,
	"daemon":    daemonProgram,
	"where":     whereProgram,
	"flood":     floodProgram,
	"die":       dieProgram,
	"gateway":   gatewayProgram,
	"lines":     linesProgram,
	"protected": protectedProgram,
	"peep":      peepProgram,
	"mcp":       mcpProgram,
	"answer":    answerProgram,
}

const programMark = "stdio-test-program"

func TestMain(m *testing.M) {
	MaybeRunGuard()
	if len(os.Args) > 2 && os.Args[1] == programMark {
		programs[os.Args[2]](os.Args[3:])
		syscall.Exit(0) // os.Exit waits a second in a race build
	}
	os.Exit(m.Run())
}

func program(t testing.TB, name string, args ...string) []string {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{exe, programMark, name}, args...)
}

func start(t testing.TB, c Command) *Process {
	t.Helper()
	p, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

// echoProgram answers every line with itself until its input ends.
func echoProgram([]string) {
	r := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		_, _ = os.Stdout.Write(line)
	}
}

// deafProgram reads nothing until it gets SIGUSR1, then echoes.
func deafProgram([]string) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	fmt.Println("ready")
	<-c
	echoProgram(nil)
}

// stubbornProgram ignores the end of its input and SIGTERM.
func stubbornProgram([]string) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// daemonizeProgram starts a child that leaves: it is in a session of its own, and
// its parent ends. The grandchild's pid is printed. Then it echoes.
func daemonizeProgram([]string) {
	exe, _ := os.Executable()
	c := exec.Command(exe, programMark, "daemon", "fork")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := c.Output() // the pid, written by the middle process, which ends
	if err != nil {
		fmt.Println("daemonize:", err)
		return
	}
	os.Stdout.Write(out)
	echoProgram(nil)
}

func daemonProgram(args []string) {
	if len(args) == 0 {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		time.Sleep(time.Hour)
	}
	exe, _ := os.Executable()
	c := exec.Command(exe, programMark, "daemon")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		os.Exit(1)
	}
	fmt.Println(c.Process.Pid)
}

// whereProgram says what it was given.
func whereProgram([]string) {
	dir, _ := os.Getwd()
	fds := []string{}
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
		for _, e := range entries {
			target, err := os.Readlink("/proc/self/fd/" + e.Name())
			// The Go runtime's own, made after the start.
			own := strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/proc/") || strings.HasPrefix(target, "/sys/fs/cgroup")
			if err == nil && !own {
				fds = append(fds, e.Name())
			}
		}
	}
	ignored := []int{}
	for s := 1; s < 32; s++ {
		if signal.Ignored(syscall.Signal(s)) {
			ignored = append(ignored, s)
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(where{Dir: dir, Env: os.Environ(), FDs: fds, Ignored: ignored})
	echoProgram(nil)
}

type where struct {
	Dir     string
	Env     []string
	FDs     []string
	Ignored []int
}

// floodProgram writes n lines to standard error, with a secret in each.
func floodProgram(args []string) {
	n, _ := strconv.Atoi(args[0])
	w := bufio.NewWriter(os.Stderr)
	for i := range n {
		fmt.Fprintf(w, "line %d token %s\n", i, os.Getenv("TOKEN"))
	}
	fmt.Fprintln(w, strings.Repeat("x", 1<<20))
	w.Flush()
	fmt.Println("done")
	echoProgram(nil)
}

func dieProgram(args []string) {
	fmt.Fprintln(os.Stderr, "the last words with", os.Getenv("TOKEN"))
	code, _ := strconv.Atoi(args[0])
	os.Exit(code)
}

// linesProgram writes one line of each length given.
func linesProgram(args []string) {
	for _, a := range args {
		n, _ := strconv.Atoi(a)
		b := bytes.Repeat([]byte("y"), n)
		os.Stdout.Write(append(b, '\n'))
	}
}

// gatewayProgram is a gateway that starts a program, says which processes there
// are, and waits to be killed.
func gatewayProgram(args []string) {
	if err := Protect(); err != nil {
		fmt.Println(err)
		return
	}
	p, err := Start(context.Background(), Command{Args: args})
	if err != nil {
		fmt.Println(err)
		return
	}
	line, err := p.Next(context.Background())
	fmt.Println(p.Pid(), p.guard.Process.Pid, p.home, string(line), err)
	time.Sleep(time.Hour)
}

// protectedProgram holds a secret that others of its user must not read.
func protectedProgram(args []string) {
	if args[0] == "yes" {
		if err := Protect(); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// peepProgram tries to read another process' environment.
func peepProgram(args []string) {
	b, err := os.ReadFile("/proc/" + args[0] + "/environ")
	fmt.Println(bytes.Contains(b, []byte("SECRET=x")), os.IsPermission(err))
}

// alive reports whether the process runs; a zombie does.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// zombies lists this process' children that are dead and not reaped.
func zombies(t *testing.T) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		s := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if s[0] == "Z" && s[1] == strconv.Itoa(os.Getpid()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			found = append(found, pid)
		}
	}
	return found
}

func next(t *testing.T, p *Process) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b, err := p.Next(ctx)
	if err != nil {
		t.Fatalf("Next: %v (%v)", err, p.Err())
	}
	return string(b)
}

func waitDone(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the process is not done after 20 s")
	}
}

func TestMessages(t *testing.T) {
	p := start(t, Command{Args: program(t, "echo")})

	t.Run("come back as they went", func(t *testing.T) {
		for i := range 100 {
			want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i)
			if err := p.Send(t.Context(), []byte(want)); err != nil {
				t.Fatal(err)
			}
			if got := next(t, p); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
	})
	t.Run("with line breaks between tokens become one line", func(t *testing.T) {
		in := []byte("{\r\n\"a\": 1\n}")
		if err := p.Send(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if got, want := next(t, p), `{  "a": 1 }`; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		if string(in) != "{\r\n\"a\": 1\n}" {
			t.Fatal("the caller's bytes were changed")
		}
	})
	t.Run("of 32 MiB pass in both directions", func(t *testing.T) {
		big := bytes.Repeat([]byte("z"), MaxLine)
		sent := make(chan error, 1)
		go func() { sent <- p.Send(t.Context(), big) }()
		got := next(t, p)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if got != string(big) {
			t.Fatalf("got %d bytes, want the %d sent", len(got), len(big))
		}
	})
	t.Run("over 32 MiB are refused", func(t *testing.T) {
		if err := p.Send(t.Context(), make([]byte, MaxLine+1)); !errors.Is(err, ErrTooLong) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("of many senders never mix", func(t *testing.T) {
		var wg sync.WaitGroup
		want := map[string]bool{}
		for i := range 16 {
			line := strings.Repeat(string(rune('a'+i)), 100_000)
			want[line] = true
			wg.Go(func() {
				if err := p.Send(t.Context(), []byte(line)); err != nil {
					t.Error(err)
				}
			})
		}
		for range 16 {
			delete(want, next(t, p))
		}
		wg.Wait()
		if len(want) != 0 {
			t.Fatalf("%d lines did not come back whole", len(want))
		}
	})
}

func TestALineOver32MiBFromTheProgramIsDroppedAndTheNextIsRead(t *testing.T) {
	t.Parallel()
	p := start(t, Command{Args: program(t, "lines", "5", strconv.Itoa(MaxLine+1), "0", strconv.Itoa(MaxLine), "7")})
	if got := next(t, p); got != "yyyyy" {
		t.Fatalf("got %q", got)
	}
	if _, err := p.Next(t.Context()); !errors.Is(err, ErrTooLong) {
		t.Fatalf("got %v", err)
	}
	if got := next(t, p); len(got) != MaxLine {
		t.Fatalf("got %d bytes", len(got))
	}
	if got := next(t, p); got != "yyyyyyy" {
		t.Fatalf("got %q", got)
	}
	if _, err := p.Next(t.Context()); err != io.EOF {
		t.Fatalf("got %v, want EOF", err)
	}
}

func TestABlockedWriteEndsWithItsContextAndNothingIsTorn(t *testing.T) {
	t.Parallel()
	p := start(t, Command{Args: program(t, "deaf")})
	if got := next(t, p); got != "ready" {
		t.Fatal(got)
	}
	// The first does not fit into the pipe: it has begun when its context ends.
	begun := bytes.Repeat([]byte("b"), 1<<20)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Send(ctx, begun); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	copy(begun, "overwritten") // the line is not kept
	// The second waits behind it and is withdrawn.
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Send(ctx, []byte("withdrawn")); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if err := syscall.Kill(p.Pid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got, want := next(t, p), strings.Repeat("b", 1<<20); got != want {
		t.Fatalf("the line that had begun came as %d bytes beginning %.20q", len(got), got)
	}
	if err := p.Send(t.Context(), []byte("third")); err != nil {
		t.Fatal(err)
	}
	if got := next(t, p); got != "third" {
		t.Fatalf("got %q", got)
	}
}

func TestNextEndsWithItsContextAndLosesNothing(t *testing.T) {
	p := start(t, Command{Args: program(t, "echo")})
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := p.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		cancel()
	}
	if err := p.Send(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := next(t, p); got != "x" {
		t.Fatalf("got %q", got)
	}
}

func TestClose(t *testing.T) {
	t.Run("of a program that ends with its input is graceful", func(t *testing.T) {
		p := start(t, Command{Args: program(t, "echo")})
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Err(); err != nil {
			t.Fatalf("got %v, want status 0", err)
		}
		if err := p.Send(t.Context(), []byte("x")); !errors.Is(err, ErrClosed) {
			t.Fatalf("Send after Close: %v", err)
		}
		if _, err := p.Next(t.Context()); err != io.EOF {
			t.Fatalf("Next after Close: %v", err)
		}
	})
	t.Run("with an ended context kills a stubborn program at once", func(t *testing.T) {
		p := start(t, Command{Args: program(t, "stubborn")})
		next(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
		var exit *ExitError
		if !errors.As(p.Err(), &exit) || exit.Signal != "killed" {
			t.Fatalf("got %v", p.Err())
		}
	})
	t.Run("gives a stubborn program its graces and then kills it", func(t *testing.T) {
		t.Parallel()
		p := start(t, Command{Args: program(t, "stubborn")})
		next(t, p)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if alive(p.Pid()) {
			t.Fatal("still alive")
		}
	})
	t.Run("takes a daemonized grandchild along and leaves no zombie and no HOME", func(t *testing.T) {
		p := start(t, Command{Args: program(t, "daemonize")})
		grandchild, err := strconv.Atoi(next(t, p))
		if err != nil {
			t.Fatal(err)
		}
		if !alive(grandchild) {
			t.Fatal("the grandchild does not run")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
		for name, pid := range map[string]int{"program": p.Pid(), "grandchild": grandchild, "guard": p.guard.Process.Pid} {
			if alive(pid) {
				t.Errorf("the %s is still there", name)
			}
		}
		if z := zombies(t); len(z) > 0 {
			t.Errorf("zombies: %v", z)
		}
		if _, err := os.Stat(p.home); !os.IsNotExist(err) {
			t.Errorf("HOME is still there: %v", err)
		}
	})
	t.Run("ends a blocked Send", func(t *testing.T) {
		p := start(t, Command{Args: program(t, "deaf")})
		next(t, p)
		sent := make(chan error, 1)
		go func() { sent <- p.Send(context.Background(), make([]byte, 1<<20)) }()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; !errors.Is(err, ErrClosed) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("by many at once is one", func(t *testing.T) {
		p := start(t, Command{Args: program(t, "echo")})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := p.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestAProgramThatEndsTakesItsTreeAlong(t *testing.T) {
	t.Parallel()
	p := start(t, Command{Args: program(t, "daemonize")})
	grandchild, err := strconv.Atoi(next(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitDone(t, p)
	if alive(grandchild) {
		t.Fatal("the grandchild is still there")
	}
	var exit *ExitError
	if !errors.As(p.Err(), &exit) || exit.Signal != "killed" {
		t.Fatalf("got %v", p.Err())
	}
}

func TestAStoppedTreeAndAStoppedGuardAreKilled(t *testing.T) {
	p := start(t, Command{Args: program(t, "stubborn")})
	next(t, p)
	for _, pid := range []int{p.Pid(), p.guard.Process.Pid} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if alive(p.Pid()) {
		t.Fatal("still alive")
	}
}

func TestSIGTERMToTheGuardEndsTheTree(t *testing.T) {
	p := start(t, Command{Args: program(t, "echo")})
	if err := syscall.Kill(p.guard.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitDone(t, p)
	var exit *ExitError
	if !errors.As(p.Err(), &exit) || exit.Signal != "terminated" {
		t.Fatalf("got %v", p.Err())
	}
}

func TestAKilledGuardTakesTheProgramAlong(t *testing.T) {
	t.Parallel()
	p := start(t, Command{Args: program(t, "stubborn")})
	next(t, p)
	if err := syscall.Kill(p.guard.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitDone(t, p)
	waitGone(t, p.Pid())
	if p.Err() == nil {
		t.Fatal("no error")
	}
	if _, err := os.Stat(p.home); !os.IsNotExist(err) {
		t.Errorf("HOME is still there: %v", err)
	}
}

// waitGone waits for the death of a process that is not this one's child.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n == 0:
			t.Fatalf("process %d is still there (%v)", pid, err)
		default:
			return
		}
	}
}

func TestAfterKill9OfTheGatewayNothingIsLeft(t *testing.T) {
	for _, name := range []string{"stubborn", "daemonize"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := program(t, "gateway", program(t, name)...)
			gateway := exec.Command(args[0], args[1:]...)
			out, err := gateway.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := gateway.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			f := strings.Fields(line)
			if len(f) != 5 {
				t.Fatalf("the gateway said %q", line)
			}
			if err := gateway.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = gateway.Wait()
			pids := []string{f[0], f[1]}
			if name == "daemonize" {
				pids = append(pids, f[3])
			}
			for _, s := range pids {
				pid, err := strconv.Atoi(s)
				if err != nil {
					t.Fatal(err)
				}
				waitGone(t, pid)
			}
			if _, err := os.Stat(f[2]); !os.IsNotExist(err) {
				t.Errorf("HOME %s is still there: %v", f[2], err)
			}
		})
	}
}

func TestTheProgramIsGivenNothingOfTheGateway(t *testing.T) {
	t.Setenv("SESSION_KEY", "do not pass this on")
	t.Setenv("LANG", "de_DE.UTF-8")
	inherited, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	// A descriptor that the gateway was started with is not closed on exec.
	if fd, err := syscall.Dup(int(inherited.Fd())); err != nil {
		t.Fatal(err)
	} else {
		defer syscall.Close(fd)
	}

	p := start(t, Command{Args: program(t, "where"), Env: map[string]string{"EXTRA": "1"}})
	var got where
	if err := json.Unmarshal([]byte(next(t, p)), &got); err != nil {
		t.Fatal(err)
	}
	want := []string{"EXTRA=1", "HOME=" + p.home, "LANG=de_DE.UTF-8", "PATH=" + os.Getenv("PATH")}
	if slices.Sort(got.Env); !slices.Equal(got.Env, want) {
		t.Errorf("environment %q, want %q", got.Env, want)
	}
	if got.Dir != p.home {
		t.Errorf("working directory %q, want HOME %q", got.Dir, p.home)
	}
	if !slices.Equal(got.FDs, []string{"0", "1", "2"}) {
		t.Errorf("descriptors %v", got.FDs)
	}
	if len(got.Ignored) > 0 {
		t.Errorf("ignored signals %v", got.Ignored)
	}
	if st, err := os.Stat(p.home); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("HOME: %v %v", st, err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.guard.Process.Pid)) // only root may
	if (err != nil && !os.IsPermission(err)) || bytes.Contains(b, []byte("SESSION_KEY")) {
		t.Errorf("the guard's environment: %q %v", b, err)
	}
}

func TestAProtectedProcessCannotBeReadByItsUser(t *testing.T) {
	// Root may read everything, so root becomes somebody else, with a copy of this
	// binary that everybody may run.
	args := program(t, "protected")
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		dir, err := os.MkdirTemp("", "stdio-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		exe, err := os.ReadFile(args[0])
		if err != nil {
			t.Fatal(err)
		}
		args[0] = filepath.Join(dir, "program")
		if err := errors.Join(os.WriteFile(args[0], exe, 0o755), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		attr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	for protected, want := range map[string]string{"no": "true false", "yes": "false true"} {
		t.Run("protected "+protected, func(t *testing.T) {
			secret := exec.CommandContext(t.Context(), args[0], append(args[1:], protected)...)
			secret.Env, secret.SysProcAttr = []string{"SECRET=x"}, attr
			out, err := secret.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := secret.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = secret.Process.Kill(); _ = secret.Wait() }()
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				t.Fatalf("%q %v", line, err)
			}
			peep := exec.CommandContext(t.Context(), args[0], programMark, "peep", strconv.Itoa(secret.Process.Pid))
			peep.SysProcAttr = attr
			got, err := peep.Output()
			if err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("got %q (%v), want %q: read, refused", got, err, want)
			}
		})
	}
}

func TestTheDocumentsDirAndHomeWin(t *testing.T) {
	dir := t.TempDir()
	home := t.TempDir()
	p := start(t, Command{Args: program(t, "where"), Dir: dir, Env: map[string]string{"HOME": home, "PATH": "/nowhere"}})
	var got where
	if err := json.Unmarshal([]byte(next(t, p)), &got); err != nil {
		t.Fatal(err)
	}
	if got.Dir != dir || !slices.Contains(got.Env, "HOME="+home) || !slices.Contains(got.Env, "PATH=/nowhere") {
		t.Errorf("got %+v", got)
	}
	if n := slices.IndexFunc(got.Env, func(s string) bool { return strings.HasPrefix(s, "HOME=") && s != "HOME="+home }); n >= 0 {
		t.Errorf("two HOMEs: %q", got.Env)
	}
}

func TestStartRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		command Command
		says    string
	}{
		"no command":                     {Command{}, "no command"},
		"a program that is not in PATH":  {Command{Args: []string{"no-such-program-here"}}, `"no-such-program-here" is not in PATH`},
		"a program that is not there":    {Command{Args: []string{"/no/such/program"}}, "/no/such/program"},
		"a directory that is not there":  {Command{Args: []string{"/bin/sh"}, Dir: "/no/such/dir"}, "/no/such/dir"},
		"a program only in another PATH": {Command{Args: []string{"sh"}, Env: map[string]string{"PATH": "/nowhere"}}, `"sh" is not in PATH`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Start(t.Context(), c.command)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v, want it to say %q", err, c.says)
			}
		})
	}
	t.Run("an ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Start(ctx, Command{Args: program(t, "echo")}); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
	})
	if z := zombies(t); len(z) > 0 {
		t.Errorf("zombies: %v", z)
	}
}

func TestAStderrFloodNeitherBlocksTheProgramNorFillsTheLog(t *testing.T) {
	t.Parallel()
	var logged output.Buffer
	p := start(t, Command{
		Args: program(t, "flood", "100000"),
		Env:  map[string]string{"TOKEN": "s3cr3t-value"},
		Log:  slog.New(slog.NewTextHandler(&logged, nil)),
	})
	if got := next(t, p); got != "done" {
		t.Fatal(got)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := logged.String()
	if n := strings.Count(s, "\n"); n < 100 || n > 1000 {
		t.Errorf("%d lines in the log", n)
	}
	if !strings.Contains(s, "dropped=") {
		t.Error("the log does not say that lines are missing")
	}
	if strings.Contains(s, "s3cr3t") {
		t.Error("a value of the environment is in the log")
	}
	for line := range strings.Lines(s) {
		if len(line) > stderrLine+500 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

func TestAnExitErrorTellsStatusAndLastWordsWithoutSecrets(t *testing.T) {
	p := start(t, Command{Args: program(t, "die", "7"), Env: map[string]string{"TOKEN": "s3cr3t-value"}})
	waitDone(t, p)
	var exit *ExitError
	if !errors.As(p.Err(), &exit) {
		t.Fatalf("got %v", p.Err())
	}
	if exit.Code != 7 || !slices.Equal(exit.Stderr, []string{"the last words with ***"}) {
		t.Fatalf("got %+v", exit)
	}
}

func TestManyProcessesLeaveNoZombieAndNoDescriptor(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	run := func() {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				p, err := Start(t.Context(), Command{Args: program(t, "echo")})
				if err != nil {
					t.Error(err)
					return
				}
				if err := p.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	run()
	before := count()
	for range 4 {
		run()
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if z := zombies(t); len(z) > 0 {
		t.Errorf("zombies: %v", z)
	}
}

func FuzzOneLine(f *testing.F) {
	f.Add([]byte("a\nb\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := slices.Clone(b)
		oneLine(c)
		if len(c) != len(b) || bytes.ContainsAny(c, "\r\n") {
			t.Fatalf("%q became %q", b, c)
		}
	})
}

// TestAChainOfShortLivedProcessesIsCaught is about a tree of which no member
// lives longer than it takes to start the next, each in a session of its own.
func TestAChainOfShortLivedProcessesIsCaught(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Fatal("setsid is missing: it is in Debian's util-linux")
	}
	script := filepath.Join(t.TempDir(), "chain.sh")
	if err := os.WriteFile(script, []byte("setsid sh \"$0\" &\nexit 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, Command{Args: []string{"sh", "-c", "setsid sh " + script + " & echo ready; cat"}})
	next(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// On a machine that is busy the chain can outrun its guard for longer than
	// Close waits; the guard goes on for a minute.
	if err := p.Close(ctx); err != nil {
		t.Log(err)
	}
	left := func() (found []string) {
		stats, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range stats {
			if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(script)) {
				found = append(found, fmt.Sprintf("%s %q", f, b))
			}
		}
		return found
	}
	deadline := time.Now().Add(time.Minute)
	for found := left(); len(found) > 0; found = left() {
		if time.Now().After(deadline) {
			t.Fatalf("the chain goes on: %v", found)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
