package helmtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"
)

func TestHelmLintHasNothingToSay(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			for _, m := range lint.RunAll(chartDir, values(t, name), "tools").Messages {
				if m.Severity > support.InfoSev {
					t.Errorf("%s", m)
				}
			}
		})
	}
}

func TestEveryObjectIsWellFormed(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			r := rendered(t, values(t, name))
			seen := map[string]bool{}
			for _, o := range r.objects {
				m, err := meta.Accessor(o)
				if err != nil {
					t.Fatal(err)
				}
				id := fmt.Sprintf("%T %s", o, m.GetName())
				if seen[id] {
					t.Errorf("%s is there twice", id)
				}
				seen[id] = true
				if wrong := validation.IsDNS1123Label(m.GetName()); wrong != nil {
					t.Errorf("%s: %v", id, wrong)
				}
				if m.GetNamespace() != "" {
					t.Errorf("%s names the namespace %s, which is the release's to choose", id, m.GetNamespace())
				}
				for k, v := range m.GetLabels() {
					if wrong := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); wrong != nil {
						t.Errorf("%s, label %s=%s: %v", id, k, v, wrong)
					}
				}
			}
			for _, c := range all[*core.ConfigMap](r) {
				for key := range c.Data {
					if wrong := validation.IsConfigMapKey(key); wrong != nil {
						t.Errorf("%s, key %s: %v", c.Name, key, wrong)
					}
				}
			}
		})
	}
}

func TestSelectorsSelectThePods(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			r := rendered(t, values(t, name))
			d := one[*apps.Deployment](r)
			selectors := map[string]map[string]string{"deployment": d.Spec.Selector.MatchLabels}
			for _, s := range all[*core.Service](r) {
				selectors["service "+s.Name] = s.Spec.Selector
			}
			for _, b := range all[*policy.PodDisruptionBudget](r) {
				selectors["budget"] = b.Spec.Selector.MatchLabels
			}
			for _, n := range all[*networking.NetworkPolicy](r) {
				selectors["network policy"] = n.Spec.PodSelector.MatchLabels
			}
			for _, m := range all[*monitoring.PodMonitor](r) {
				selectors["pod monitor"] = m.Spec.Selector.MatchLabels
			}
			for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
				selectors["spread"] = c.LabelSelector.MatchLabels
			}
			for what, s := range selectors {
				if len(s) == 0 || !labels.SelectorFromSet(s).Matches(labels.Set(d.Spec.Template.Labels)) {
					t.Errorf("the %s selects %v, the pods are %v", what, s, d.Spec.Template.Labels)
				}
			}
		})
	}
}

func TestPortsProbesAndServicesAgree(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			r := rendered(t, values(t, name))
			con := r.pod().Containers[0]
			ports := map[string]int32{}
			for _, p := range con.Ports {
				ports[p.Name] = p.ContainerPort
			}
			scheme := core.URISchemeHTTP
			if name == "everything" {
				scheme = core.URISchemeHTTPS
			}
			for what, p := range map[string]*core.Probe{"/readyz": con.ReadinessProbe, "/healthz": con.LivenessProbe} {
				if p.HTTPGet.Path != what || p.HTTPGet.Port.StrVal != "internal" || p.HTTPGet.Scheme != scheme {
					t.Errorf("probe %s: %+v", what, p.HTTPGet)
				}
			}
			for _, s := range all[*core.Service](r) {
				for _, p := range s.Spec.Ports {
					if ports[p.TargetPort.StrVal] == 0 {
						t.Errorf("service %s leads to port %v", s.Name, p.TargetPort)
					}
					inside := s.Spec.ClusterIP == core.ClusterIPNone
					if inside != (p.TargetPort.StrVal == "internal") || inside != s.Spec.PublishNotReadyAddresses {
						t.Errorf("service %s: %+v", s.Name, s.Spec)
					}
				}
			}
			in := one[*networking.NetworkPolicy](r).Spec.Ingress
			if in[0].Ports[0].Port.StrVal != "clients" || len(in[0].Ports) != 1 || (name == "everything") != (len(in[0].From) == 1) {
				t.Errorf("the clients' port: %+v", in[0])
			}
			if len(in) != 2 || in[1].Ports[0].Port.StrVal != "internal" || len(in[1].From) != 3 {
				t.Errorf("the internal port: %+v", in)
			}
		})
	}
}

// stopSeconds is how long the program takes to stop at most, from its source.
func stopSeconds(t *testing.T) int64 {
	t.Helper()
	sum := int64(0)
	for file, form := range map[string]string{
		"pod.go":   `(?:drainTime|closeTime) = (\d+) \* time\.Second`,
		"serve.go": `stopTime = drainTime \+ closeTime \+ (\d+)\*time\.Second`,
	} {
		source, err := os.ReadFile(filepath.Join("../../cmd/mcp-lease-gateway", file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(form).FindAllStringSubmatch(string(source), -1)
		if want := map[string]int{"pod.go": 2, "serve.go": 1}[file]; len(found) != want {
			t.Fatalf("%s has %d of %s", file, len(found), form)
		}
		for _, m := range found {
			n, err := strconv.ParseInt(m[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

func TestARollingUpdateLosesNobody(t *testing.T) {
	r := rendered(t, values(t, "plain"))
	d := one[*apps.Deployment](r)
	if u := d.Spec.Strategy.RollingUpdate; u == nil || u.MaxUnavailable.IntVal != 0 || u.MaxSurge.IntVal < 1 {
		t.Errorf("strategy %+v", d.Spec.Strategy)
	}
	sleep := r.pod().Containers[0].Lifecycle.PreStop.Sleep.Seconds
	if grace := *r.pod().TerminationGracePeriodSeconds; sleep < 5 || grace <= sleep+stopSeconds(t) {
		t.Errorf("grace %d s, of which preStop takes %d s and the program up to %d s", grace, sleep, stopSeconds(t))
	}
	if *d.Spec.Replicas < 2 || one[*policy.PodDisruptionBudget](r).Spec.MaxUnavailable.IntVal != 1 {
		t.Errorf("%d replicas", *d.Spec.Replicas)
	}
	if !strings.Contains(one[*core.ConfigMap](r).Data["gateway.yaml"], "onShutdown: handover") {
		t.Error("sessions are not handed over")
	}
}

func TestThePodsAreConfined(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			spec := rendered(t, values(t, name)).pod()
			p, c := spec.SecurityContext, spec.Containers[0].SecurityContext
			if !*p.RunAsNonRoot || *p.RunAsUser == 0 || *p.RunAsGroup == 0 || p.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%+v", p)
			}
			if *c.AllowPrivilegeEscalation || *c.Privileged || !*c.ReadOnlyRootFilesystem || !slices.Equal(c.Capabilities.Drop, []core.Capability{"ALL"}) {
				t.Errorf("%+v", c)
			}
			if *spec.AutomountServiceAccountToken || *spec.EnableServiceLinks || spec.HostNetwork {
				t.Errorf("%+v", spec)
			}
		})
	}
}

func TestTheHeapsLimitStaysBelowTheContainers(t *testing.T) {
	for limit, want := range map[string][2]int64{"1Gi": {900 << 20, 1000 << 20}, "256Mi": {230 << 20, 250 << 20}, "2Gi": {1800 << 20, 2000 << 20}} {
		v := values(t, "plain")
		v["resources"] = map[string]any{"limits": map[string]any{"memory": limit}}
		env := rendered(t, v).environment()
		i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, "GOMEMLIMIT=") })
		if i < 0 {
			t.Fatal("GOMEMLIMIT is not set")
		}
		got, err := strconv.ParseInt(strings.TrimPrefix(env[i], "GOMEMLIMIT="), 10, 64)
		if err != nil || got < want[0] || got > want[1] {
			t.Errorf("limit %s: %s, %v", limit, env[i], err)
		}
	}
}

// mount writes the projected volume of the configuration into a folder.
func (r *release) mount(dir string) {
	r.Helper()
	maps := map[string]*core.ConfigMap{}
	for _, c := range all[*core.ConfigMap](r) {
		maps[c.Name] = c
	}
	write := func(path, text string) {
		path = filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			r.Fatal(err)
		}
	}
	i := slices.IndexFunc(r.pod().Volumes, func(v core.Volume) bool { return v.Name == "config" })
	for _, s := range r.pod().Volumes[i].Projected.Sources {
		if s.ConfigMap != nil {
			for _, item := range s.ConfigMap.Items {
				text, ok := maps[s.ConfigMap.Name].Data[item.Key]
				if !ok {
					r.Errorf("%s is not in the ConfigMap %s", item.Key, s.ConfigMap.Name)
				}
				write(item.Path, text)
			}
			if n := len(maps[s.ConfigMap.Name].Data); n != len(s.ConfigMap.Items) {
				r.Errorf("%d of %d keys are mounted", len(s.ConfigMap.Items), n)
			}
			continue
		}
		for _, item := range s.Secret.Items {
			write(item.Path, "what the cluster has")
		}
	}
}

// environment is that of the container, as the kubelet makes it: the downward API
// is asked, and a variable may name those that stand before it. What the secret
// has is what NOTES.txt says to put into it.
func (r *release) environment() []string {
	r.Helper()
	env := []string{"MONGODB_URI=mongodb://db/", "SESSION_KEY=bWFrZS15b3VyLW93bi1rZXktb2YtMzItYnl0ZXMhISE=", "VANCE_INTERNAL_TOKEN=token-of-a-good-length"}
	known := map[string]string{}
	con := r.pod().Containers[0]
	for _, e := range con.Env {
		value := e.Value
		for name, v := range known {
			value = strings.ReplaceAll(value, "$("+name+")", v)
		}
		if from := e.ValueFrom; from != nil {
			switch {
			case from.FieldRef != nil && from.FieldRef.FieldPath == "status.podIP":
				value = "10.1.2.3"
			case from.ResourceFieldRef != nil && from.ResourceFieldRef.Resource == "limits.memory" && from.ResourceFieldRef.ContainerName == con.Name:
				value = strconv.FormatInt(con.Resources.Limits.Memory().Value()/from.ResourceFieldRef.Divisor.Value(), 10)
			case from.SecretKeyRef != nil:
				value = "what the cluster has"
			default:
				r.Fatalf("%s is from %+v", e.Name, from)
			}
		}
		known[e.Name] = value
		env = append(env, e.Name+"="+value)
	}
	return env
}

func gateway(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "mcp-lease-gateway")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/mcp-lease-gateway")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func check(ctx context.Context, program, dir string, env []string) (string, error) {
	c := exec.CommandContext(ctx, program, "check", "--config", filepath.Join(dir, "gateway.yaml"))
	c.Env = env
	out, err := c.CombinedOutput()
	return string(out), err
}

func TestTheMountedConfigurationPassesTheGatewaysOwnCheck(t *testing.T) {
	program := gateway(t)
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			r := rendered(t, values(t, name))
			dir := t.TempDir()
			r.mount(dir)
			out, err := check(t.Context(), program, dir, r.environment())
			if err != nil || strings.Contains(out, "warning") {
				t.Errorf("%v\n%s", err, out)
			}
			documents, _ := values(t, name)["documents"].(map[string]any)
			if !strings.Contains(out, fmt.Sprintf("%d documents of your own", len(documents))) {
				t.Errorf("%d documents: %s", len(documents), out)
			}
			con := r.pod().Containers[0]
			if args := strings.Join(con.Args, " "); args != "serve --config /etc/mcp-lease-gateway/gateway.yaml" || con.VolumeMounts[0].MountPath != "/etc/mcp-lease-gateway" {
				t.Errorf("args %s, mounts %+v", args, con.VolumeMounts)
			}
			mounts := map[string]bool{}
			for _, v := range r.pod().Volumes {
				mounts[v.Name] = true
			}
			for _, m := range con.VolumeMounts {
				if !mounts[m.Name] {
					t.Errorf("%s is mounted and no volume", m.Name)
				}
			}
		})
	}
	t.Run("without a document", func(t *testing.T) {
		v := values(t, "plain")
		delete(v, "documents")
		r := rendered(t, v)
		dir := t.TempDir()
		r.mount(dir)
		if out, err := check(t.Context(), program, dir, r.environment()); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

func TestOnlyWhatARestartTakesInRollsThePods(t *testing.T) {
	sum := func(change func(v map[string]any)) string {
		v := values(t, "plain")
		change(v)
		return one[*apps.Deployment](rendered(t, v)).Spec.Template.Annotations["checksum/config"]
	}
	before := sum(func(map[string]any) {})
	if sum(func(v map[string]any) { delete(v["config"].(map[string]any), "identity") }) != before {
		t.Error("a changed key rolls the pods")
	}
	if sum(func(v map[string]any) { delete(v, "documents") }) != before {
		t.Error("a changed document rolls the pods")
	}
	if sum(func(v map[string]any) { v["config"].(map[string]any)["publicURL"] = "https://other.example.com" }) == before {
		t.Error("a changed publicURL does not roll the pods")
	}
}

func TestWhatCanBeSwitchedOn(t *testing.T) {
	r := rendered(t, values(t, "everything"))
	if image := r.pod().Containers[0].Image; image != "registry.example.com/tools/mcp-lease-gateway@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" {
		t.Errorf("image %s", image)
	}
	if d := one[*apps.Deployment](r); d.Spec.Replicas != nil {
		t.Error("the autoscaler and the deployment both say how many pods there are")
	}
	if h := one[*autoscaling.HorizontalPodAutoscaler](r); h.Spec.ScaleTargetRef.Name != one[*apps.Deployment](r).Name || *h.Spec.Metrics[0].Resource.Target.AverageUtilization != 70 {
		t.Errorf("%+v", h.Spec)
	}
	if m := one[*monitoring.PodMonitor](r).Spec.PodMetricsEndpoints[0]; *m.Port != "internal" || m.Path != "/metrics" || *m.Scheme != "https" {
		t.Errorf("%+v", m)
	}
	in := one[*networking.Ingress](r)
	for key, want := range map[string]string{"proxy-buffering": "off", "proxy-read-timeout": "3600", "proxy-http-version": "1.1"} {
		if got := in.Annotations["nginx.ingress.kubernetes.io/"+key]; got != want {
			t.Errorf("%s is %q", key, got)
		}
	}
	route := one[*gatewayapi.HTTPRoute](r).Spec.Rules[0]
	if *route.Timeouts.Request != "0s" || *route.Timeouts.BackendRequest != "0s" {
		t.Errorf("timeouts %+v", route.Timeouts)
	}
	services := map[string]int32{}
	for _, s := range all[*core.Service](r) {
		services[s.Name] = s.Spec.Ports[0].Port
	}
	if b := route.BackendRefs[0]; services[string(b.Name)] != int32(*b.Port) {
		t.Errorf("the route leads to %s:%d of %v", b.Name, *b.Port, services)
	}
	if b := in.Spec.Rules[0].HTTP.Paths[0].Backend.Service; services[b.Name] == 0 || b.Port.Name != "clients" {
		t.Errorf("the ingress leads to %+v of %v", b, services)
	}
	if rules := one[*monitoring.PrometheusRule](r).Spec.Groups; len(rules) != 1 || len(rules[0].Rules) < 8 {
		t.Errorf("rules %+v", rules)
	}
}

func TestOnePodKeepsItsStore(t *testing.T) {
	r := rendered(t, values(t, "one-pod"))
	d := one[*apps.Deployment](r)
	if d.Spec.Strategy.Type != apps.RecreateDeploymentStrategyType || *d.Spec.Replicas != 1 {
		t.Errorf("%+v", d.Spec)
	}
	claim := one[*core.PersistentVolumeClaim](r)
	if claim.Annotations["helm.sh/resource-policy"] != "keep" || *claim.Spec.StorageClassName != "fast" {
		t.Errorf("%+v", claim)
	}
	if !slices.ContainsFunc(r.pod().Volumes, func(v core.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
	}) {
		t.Error("the claim is not mounted")
	}
}

func TestValuesThatCannotBeRightAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		set  map[string]any
		says string
	}{
		"a misspelt key":                       {map[string]any{"replicas": 2}, "replicas"},
		"a digest that is none":                {map[string]any{"image": map[string]any{"digest": "latest"}}, "digest"},
		"no memory limit":                      {map[string]any{"resources": map[string]any{"limits": map[string]any{"memory": nil}}}, "memory"},
		"a port that the probes do not ask":    {map[string]any{"config": map[string]any{"internal": map[string]any{"listen": "0.0.0.0:9000"}}}, "listen"},
		"an ingress without a host":            {map[string]any{"ingress": map[string]any{"enabled": true}}, "hosts"},
		"a document outside of the folder":     {map[string]any{"documents": map[string]any{"../etc/passwd.yaml": "x"}}, "invalid propertyName"},
		"a certificate that is not mounted":    {map[string]any{"config": map[string]any{"tls": map[string]any{"cert": "x"}}}, "config"},
		"three pods on an embedded store":      {map[string]any{"config": map[string]any{"store": map[string]any{"kind": "embedded"}}}, "set replicaCount to 1"},
		"an embedded store that does not last": {map[string]any{"replicaCount": 1, "config": map[string]any{"store": map[string]any{"kind": "embedded"}}}, "set persistence.enabled"},
		"a volume that nobody uses":            {map[string]any{"persistence": map[string]any{"enabled": true}}, "persistence is for"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := render(c.set); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTheNotesSayWhatIsToBeDone(t *testing.T) {
	for name, want := range map[string][]string{
		"plain":      {"create secret generic mcp-lease-gateway", "MONGODB_URI", "http://mcp-lease-gateway.tools/mcp/<tenant>/<project>/<server>"},
		"everything": {"https://gateway.example.com/mcp/<tenant>/<project>/<server>"},
		"one-pod":    {"SESSION_KEY"},
	} {
		notes := rendered(t, values(t, name)).files["NOTES.txt"]
		for _, w := range want {
			if !strings.Contains(notes, w) {
				t.Errorf("%s: %q is not in\n%s", name, w, notes)
			}
		}
		if (name == "everything") == strings.Contains(notes, "create secret") || (name == "one-pod") == strings.Contains(notes, "MONGODB_URI") && name != "everything" {
			t.Errorf("%s:\n%s", name, notes)
		}
	}
	if notes := rendered(t, nil).files["NOTES.txt"]; !strings.Contains(notes, "config.identity names nobody") {
		t.Errorf("%s", notes)
	}
}

// head stands above the plain manifest.
const head = `# The Helm chart, rendered for those who have no Helm: three pods on a MongoDB that
# is there already, rolled one after the other with their sessions handed over.
# Needs Kubernetes 1.30. Generated from deploy/helm; change a copy of it.
#
#   kubectl create namespace mcp-lease-gateway
#   kubectl -n mcp-lease-gateway create secret generic mcp-lease-gateway \
#     --from-literal=MONGODB_URI='mongodb://…' \
#     --from-literal=SESSION_KEY="$(openssl rand -base64 32)" \
#     --from-literal=VANCE_INTERNAL_TOKEN="$(openssl rand -hex 32)"
#   kubectl -n mcp-lease-gateway apply -f deploy/kubernetes/gateway.yaml
`

func TestThePlainManifestIsTheChart(t *testing.T) {
	files := rendered(t, values(t, "plain")).files
	var b strings.Builder
	b.WriteString(head)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && holdsAnything(files[name]) {
			b.WriteString("---\n" + strings.TrimSpace(files[name]) + "\n")
		}
	}
	sameAs(t, "../kubernetes/gateway.yaml", b.String())
	if len(decode(t, "gateway.yaml", b.String())) != 7 {
		t.Error("the manifest does not have its seven objects")
	}
}

func TestTheChartHasTheRulesAndTheDashboard(t *testing.T) {
	for from, to := range map[string]string{"../prometheus/rules.yaml": "rules.yaml", "../grafana/dashboard.json": "dashboard.json"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		sameAs(t, filepath.Join(chartDir, "files", to), string(text))
	}
}

// The chart's image is the release of this tree.
func TestOneVersionEverywhere(t *testing.T) {
	for file, form := range map[string]string{
		chartDir + "/Chart.yaml":                 `(?m)^appVersion: "(.+)"$`,
		"../../cmd/mcp-lease-gateway/version.go": `var version = "(.+)"`,
		"../../Makefile":                         `(?m)^VERSION \?= (.+)$`,
		"../../Dockerfile":                       `(?m)^ARG VERSION=(.+)$`,
		"../../CHANGELOG.md":                     `(?m)^## (\d.*)$`,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(form).FindSubmatch(text); m == nil || string(m[1]) != "0.1.0" {
			t.Errorf("%s: %s", file, m)
		}
	}
}

// What init writes for Kubernetes: its values, and a Secret that the chart takes.
func TestInitForKubernetesFillsTheChart(t *testing.T) {
	program, dir := gateway(t), t.TempDir()
	if out, err := exec.CommandContext(t.Context(), program, "init", "--for", "kubernetes", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	values, err := common.ReadValuesFile(filepath.Join(dir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r := rendered(t, values)
	text, err := os.ReadFile(filepath.Join(dir, "secret.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	secret, ok := decode(t, "secret.yaml", string(text))[0].(*core.Secret)
	if !ok || secret.Name != r.pod().Containers[0].EnvFrom[0].SecretRef.Name {
		t.Fatalf("%+v", secret)
	}
	env := r.environment()
	for k, v := range secret.StringData {
		env = append(env, k+"="+v)
	}
	mounted := t.TempDir()
	r.mount(mounted)
	if out, err := check(t.Context(), program, mounted, env); err != nil || strings.Contains(out, "warning") || !strings.Contains(out, "2 documents of your own") {
		t.Errorf("%v\n%s", err, out)
	}
}
