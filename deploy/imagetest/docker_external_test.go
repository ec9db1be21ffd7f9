//go:build external

package imagetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// imagesVariable names the folder of the images where this program is run as
// `docker`: it takes the lines of README.md and has crun do what they say.
const imagesVariable = "IMAGETEST_IMAGES"

func TestMain(m *testing.M) {
	images := os.Getenv(imagesVariable)
	if images == "" {
		os.Exit(m.Run())
	}
	if err := docker(images, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "docker:", err)
		os.Exit(1)
	}
}

// docker is as much of Docker as README.md uses. What it does not know it refuses,
// so that no argument is tried without effect. The network is the caller's own.
func docker(images string, args []string) error {
	switch {
	case len(args) == 6 && args[0] == "build" && args[1] == "--target" && args[3] == "-t" && args[5] == ".":
		return os.Symlink(filepath.Join(images, args[2]), filepath.Join(images, "tag-"+args[4])) // built by .ci/image from the same file
	case len(args) > 1 && args[0] == "run":
		return run(images, args[1:])
	case len(args) > 2 && args[0] == "exec":
		return crun(images, append([]string{"exec"}, args[1:]...)...)
	}
	return fmt.Errorf("not known here: %q", args)
}

func crun(images string, args ...string) error {
	c := exec.Command("crun", append([]string{"--root", filepath.Join(images, "crun"), "--cgroup-manager=disabled"}, args...)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c.Run()
}

// imageConfig is what `buildah inspect` says of an image.
type imageConfig struct {
	Docker struct {
		Config struct {
			User, WorkingDir     string
			Env, Entrypoint, Cmd []string
			StopSignal           string
			ExposedPorts         map[string]struct{}
			Healthcheck          struct{ Test []string }
		} `json:"config"`
	}
}

func readImage(dir string) (*imageConfig, error) {
	text, err := os.ReadFile(filepath.Join(dir, "image.json"))
	if err != nil {
		return nil, err
	}
	c := &imageConfig{}
	return c, json.Unmarshal(text, c)
}

// The parts of an OCI bundle that `docker run` fills in.
type (
	bundle struct {
		OCIVersion string        `json:"ociVersion"`
		Process    bundleProcess `json:"process"`
		Root       struct {
			Path     string `json:"path"`
			Readonly bool   `json:"readonly"`
		} `json:"root"`
		Hostname string        `json:"hostname"`
		Mounts   []bundleMount `json:"mounts"`
		Linux    struct {
			Namespaces []map[string]string `json:"namespaces"`
		} `json:"linux"`
	}
	bundleProcess struct {
		User struct {
			UID int `json:"uid"`
			GID int `json:"gid"`
		} `json:"user"`
		Args            []string            `json:"args"`
		Env             []string            `json:"env"`
		Cwd             string              `json:"cwd"`
		NoNewPrivileges bool                `json:"noNewPrivileges"`
		Capabilities    map[string][]string `json:"capabilities"`
	}
	bundleMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options"`
	}
)

// container is what the arguments of `docker run` ask for.
type container struct {
	bundle
	images, name, image string
	hosts               string
	dropped             bool
}

func run(images string, args []string) error {
	c := &container{images: images, hosts: "127.0.0.1 localhost\n"}
	flags := map[string]func(string) error{
		"--name":         func(v string) error { c.name = v; return nil },
		"--env-file":     c.envFile,
		"-v":             c.volume,
		"--add-host":     c.addHost,
		"-p":             c.publish,
		"--tmpfs":        c.tmpfs,
		"--cap-drop":     func(v string) error { c.dropped = v == "ALL"; return nil },
		"--security-opt": func(v string) error { c.Process.NoNewPrivileges = v == "no-new-privileges"; return nil },
	}
	// The image comes last and says what volumes are filled with.
	c.image = filepath.Join(images, "tag-"+args[len(args)-1])
	for args = args[:len(args)-1]; len(args) > 0; {
		switch f := flags[args[0]]; {
		case args[0] == "-d":
			args = args[1:]
		case args[0] == "--read-only":
			c.Root.Readonly, args = true, args[1:]
		case f != nil && len(args) > 1:
			if err := f(args[1]); err != nil {
				return fmt.Errorf("%s %s: %w", args[0], args[1], err)
			}
			args = args[2:]
		default:
			return fmt.Errorf("run: not known here: %q", args)
		}
	}
	return c.start()
}

func (c *container) envFile(path string) error {
	text, err := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			c.Process.Env = append(c.Process.Env, line)
		}
	}
	return err
}

// volume mounts a folder, or a named volume, which is filled with what the image
// has at that place.
func (c *container) volume(v string) error {
	parts := strings.Split(v, ":")
	if len(parts) < 2 {
		return errors.New("not a volume")
	}
	from, options := parts[0], []string{"rbind", "rw"}
	if len(parts) == 3 && parts[2] == "ro" {
		options = []string{"rbind", "ro"}
	}
	if !filepath.IsAbs(from) {
		from = filepath.Join(c.images, "volume-"+from)
		if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
			if out, err := exec.Command("cp", "-a", filepath.Join(c.image, "rootfs", parts[1]), from).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
	}
	c.Mounts = append(c.Mounts, bundleMount{parts[1], "bind", from, options})
	return nil
}

func (c *container) addHost(v string) error {
	name, address, _ := strings.Cut(v, ":")
	if address != "host-gateway" {
		return errors.New("not known here")
	}
	c.hosts += "127.0.0.1 " + name + "\n"
	return nil
}

// publish demands that the image exposes the port; here it is the host's already.
func (c *container) publish(v string) error {
	image, err := readImage(c.image)
	if err != nil {
		return err
	}
	parts := strings.Split(v, ":")
	if _, ok := image.Docker.Config.ExposedPorts[parts[len(parts)-1]+"/tcp"]; !ok || parts[0] != "127.0.0.1" || parts[1] != parts[2] {
		return errors.New("the image does not expose it, or it is open to others")
	}
	return nil
}

func (c *container) tmpfs(path string) error {
	c.Mounts = append(c.Mounts, bundleMount{path, "tmpfs", "tmpfs", []string{"noexec", "nosuid", "nodev", "mode=1777"}})
	return nil
}

func (c *container) start() error {
	image, err := readImage(c.image)
	if err != nil {
		return err
	}
	conf := image.Docker.Config
	if c.name == "" || !c.dropped {
		return errors.New("run: a name and --cap-drop ALL are expected")
	}
	if _, err := fmt.Sscanf(conf.User, "%d:%d", &c.Process.User.UID, &c.Process.User.GID); err != nil {
		return fmt.Errorf("the image's user %q: %w", conf.User, err)
	}
	c.OCIVersion, c.Hostname = "1.0.2", c.name
	c.Root.Path = filepath.Join(c.image, "rootfs")
	c.Process.Args, c.Process.Cwd = slices.Concat(conf.Entrypoint, conf.Cmd), conf.WorkingDir
	c.Process.Env = append(slices.Clone(conf.Env), c.Process.Env...)
	c.Process.Capabilities = map[string][]string{"bounding": {}, "effective": {}, "permitted": {}}
	for _, n := range []string{"pid", "ipc", "uts", "mount"} {
		c.Linux.Namespaces = append(c.Linux.Namespaces, map[string]string{"type": n})
	}
	dir := filepath.Join(c.images, "container-"+c.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	hosts := filepath.Join(dir, "hosts")
	if err := os.WriteFile(hosts, []byte(c.hosts), 0o644); err != nil {
		return err
	}
	c.Mounts = append([]bundleMount{
		{"/proc", "proc", "proc", nil},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
		{"/etc/hosts", "bind", hosts, []string{"bind", "ro"}},
	}, c.Mounts...)
	text, err := json.Marshal(c.bundle)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		return err
	}
	return c.detach(dir)
}

// detach leaves the container running behind this program, with its log in dir.
func (c *container) detach(dir string) error {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	r := exec.Command("crun", "--root", filepath.Join(c.images, "crun"), "--cgroup-manager=disabled", "run", "--bundle", dir, c.name)
	r.Stdout, r.Stderr = log, log
	r.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	return r.Start()
}
