package helmtest

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"
)

const chartDir = "../helm/mcp-lease-gateway"

// names of the values files in the chart's folder ci.
var cases = []string{"plain", "everything", "one-pod"}

// release is a rendered chart.
type release struct {
	*testing.T
	files   map[string]string // template → text
	objects []runtime.Object
}

// values reads a values file of the chart's folder ci.
func values(t *testing.T, name string) map[string]any {
	t.Helper()
	v, err := common.ReadValuesFile(filepath.Join(chartDir, "ci", name+"-values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// render is `helm template mcp-lease-gateway` in the namespace tools.
func render(values map[string]any) (map[string]string, error) {
	c, err := loader.Load(chartDir)
	if err != nil {
		return nil, err
	}
	all, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "mcp-lease-gateway", Namespace: "tools", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	out, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, text := range out {
		files[filepath.Base(name)] = text
	}
	return files, nil
}

func rendered(t *testing.T, values map[string]any) *release {
	t.Helper()
	files, err := render(values)
	if err != nil {
		t.Fatal(err)
	}
	r := &release{T: t, files: files}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			r.objects = append(r.objects, decode(t, name, files[name])...)
		}
	}
	return r
}

// strictly decodes into the API types and refuses unknown and double fields.
var strictly = func() runtime.Decoder {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		core.AddToScheme, apps.AddToScheme, networking.AddToScheme, policy.AddToScheme, autoscaling.AddToScheme,
		monitoring.AddToScheme, gatewayapi.Install,
	} {
		utilruntime.Must(add(s))
	}
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
}()

func decode(t *testing.T, name, text string) []runtime.Object {
	t.Helper()
	var out []runtime.Object
	docs := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text)))
	buffer := make([]byte, len(text)+1)
	for {
		n, err := docs.Read(buffer)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !holdsAnything(string(buffer[:n])) {
			continue
		}
		o, _, err := strictly.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, buffer[:n])
		}
		out = append(out, o)
	}
}

func holdsAnything(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return true
		}
	}
	return false
}

// all are the rendered objects of a type.
func all[T runtime.Object](r *release) []T {
	var out []T
	for _, o := range r.objects {
		if v, ok := o.(T); ok {
			out = append(out, v)
		}
	}
	return out
}

// one is the only rendered object of a type.
func one[T runtime.Object](r *release) T {
	r.Helper()
	out := all[T](r)
	if len(out) != 1 {
		r.Fatalf("%d objects of the type %T", len(out), *new(T))
	}
	return out[0]
}

func (r *release) pod() core.PodSpec { r.Helper(); return one[*apps.Deployment](r).Spec.Template.Spec }

// sameAs demands that a generated file has the text want. UPDATE=1 in the environment
// writes it anew.
func sameAs(t *testing.T, path, want string) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is stale; `UPDATE=1 make helm` writes it anew", path)
	}
}
