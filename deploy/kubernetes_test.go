package deploy

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// The parts of the Kubernetes API that the manifests use, and no more: decoding
// refuses whatever else stands there.
type (
	meta struct {
		Name        string
		Labels      map[string]string
		Annotations map[string]string
	}
	selector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	configMap struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Data       map[string]string
	}
	deployment struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			Replicas int
			Selector selector
			Strategy struct {
				Type          string
				RollingUpdate struct {
					MaxUnavailable int `yaml:"maxUnavailable"`
					MaxSurge       int `yaml:"maxSurge"`
				} `yaml:"rollingUpdate"`
			}
			Template struct {
				Metadata meta
				Spec     podSpec
			}
		}
	}
	podSpec struct {
		AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
			RunAsUser      int                   `yaml:"runAsUser"`
			RunAsGroup     int                   `yaml:"runAsGroup"`
			FSGroup        int                   `yaml:"fsGroup"`
			SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		TopologySpreadConstraints []struct {
			MaxSkew           int      `yaml:"maxSkew"`
			TopologyKey       string   `yaml:"topologyKey"`
			WhenUnsatisfiable string   `yaml:"whenUnsatisfiable"`
			LabelSelector     selector `yaml:"labelSelector"`
		} `yaml:"topologySpreadConstraints"`
		Containers []container
		Volumes    []struct {
			Name      string
			ConfigMap *struct {
				Name  string
				Items []struct{ Key, Path string }
			} `yaml:"configMap"`
			EmptyDir *struct {
				SizeLimit string `yaml:"sizeLimit"`
			} `yaml:"emptyDir"`
		}
	}
	container struct {
		Name, Image string
		Args        []string
		Env         []struct {
			Name      string
			ValueFrom struct {
				FieldRef struct {
					FieldPath string `yaml:"fieldPath"`
				} `yaml:"fieldRef"`
			} `yaml:"valueFrom"`
		}
		EnvFrom []struct {
			SecretRef struct{ Name string } `yaml:"secretRef"`
		} `yaml:"envFrom"`
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		Lifecycle      struct {
			PreStop struct {
				Sleep struct{ Seconds int }
			} `yaml:"preStop"`
		}
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		Resources    struct{ Requests, Limits map[string]string }
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	probe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int                         `yaml:"periodSeconds"`
		TimeoutSeconds   int                         `yaml:"timeoutSeconds"`
		FailureThreshold int                         `yaml:"failureThreshold"`
	}
	service struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			Selector map[string]string
			Ports    []struct {
				Name       string
				Port       int
				TargetPort string `yaml:"targetPort"`
			}
		}
	}
	disruptionBudget struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			MaxUnavailable int `yaml:"maxUnavailable"`
			Selector       selector
		}
	}
	networkPolicy struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			PodSelector selector `yaml:"podSelector"`
			PolicyTypes []string `yaml:"policyTypes"`
			Ingress     []struct {
				From []struct {
					PodSelector       *selector `yaml:"podSelector"`
					NamespaceSelector *selector `yaml:"namespaceSelector"`
				}
				Ports []struct {
					Port     int
					Protocol string
				}
			}
		}
	}
)

// cluster is the manifest, decoded.
type cluster struct {
	config     configMap
	deployment deployment
	services   []service
	budget     disruptionBudget
	policy     networkPolicy
}

// strict decodes one document and refuses keys that v does not have.
func strict(t *testing.T, text []byte, v any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}

func readCluster(t *testing.T) *cluster {
	t.Helper()
	file, err := os.ReadFile("kubernetes/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{}
	d := yaml.NewDecoder(bytes.NewReader(file))
	for {
		var n yaml.Node
		if err := d.Decode(&n); errors.Is(err, io.EOF) {
			return c
		} else if err != nil {
			t.Fatal(err)
		}
		var head struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
		}
		if err := n.Decode(&head); err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(&n)
		if err != nil {
			t.Fatal(err)
		}
		switch head.APIVersion + " " + head.Kind {
		case "v1 ConfigMap":
			strict(t, text, &c.config)
		case "apps/v1 Deployment":
			strict(t, text, &c.deployment)
		case "v1 Service":
			var s service
			strict(t, text, &s)
			c.services = append(c.services, s)
		case "policy/v1 PodDisruptionBudget":
			strict(t, text, &c.budget)
		case "networking.k8s.io/v1 NetworkPolicy":
			strict(t, text, &c.policy)
		default:
			t.Fatalf("%s %s is not expected", head.APIVersion, head.Kind)
		}
	}
}

func TestSelectorsSelectThePods(t *testing.T) {
	c := readCluster(t)
	labels := c.deployment.Spec.Template.Metadata.Labels
	if len(labels) == 0 {
		t.Fatal("the pods have no labels")
	}
	spec := c.deployment.Spec.Template.Spec
	for name, s := range map[string]map[string]string{
		"deployment": c.deployment.Spec.Selector.MatchLabels, "budget": c.budget.Spec.Selector.MatchLabels,
		"network policy": c.policy.Spec.PodSelector.MatchLabels, "spread": spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
		"first service": c.services[0].Spec.Selector, "second service": c.services[1].Spec.Selector,
	} {
		if !maps.Equal(s, labels) {
			t.Errorf("the %s selects %v, the pods are %v", name, s, labels)
		}
	}
}

func TestPortsProbesAndServicesAgree(t *testing.T) {
	c := readCluster(t)
	con := c.deployment.Spec.Template.Spec.Containers[0]
	ports := map[string]int{}
	for _, p := range con.Ports {
		ports[p.Name] = p.ContainerPort
	}
	g := loadMapped(t, c)
	if !strings.HasSuffix(g.Listen, ":8080") || ports["clients"] != 8080 || !strings.HasSuffix(g.Internal.Listen, ":8081") || ports["internal"] != 8081 {
		t.Errorf("the gateway listens on %s and %s, the container has %v", g.Listen, g.Internal.Listen, ports)
	}
	if con.ReadinessProbe.HTTPGet.Path != "/readyz" || con.LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("probes %+v %+v", con.ReadinessProbe, con.LivenessProbe)
	}
	for _, p := range []string{con.ReadinessProbe.HTTPGet.Port, con.LivenessProbe.HTTPGet.Port} {
		if p != "internal" {
			t.Errorf("a probe asks port %s", p)
		}
	}
	for _, s := range c.services {
		for _, p := range s.Spec.Ports {
			if ports[p.TargetPort] == 0 {
				t.Errorf("service %s leads to port %q", s.Metadata.Name, p.TargetPort)
			}
			if p.TargetPort == "internal" && s.Metadata.Name == "mcp-lease-gateway" {
				t.Error("the clients' service leads to the internal port")
			}
		}
	}
	if open := c.policy.Spec.Ingress[0]; len(open.From) != 0 || len(open.Ports) != 1 || open.Ports[0].Port != 8080 {
		t.Errorf("open to everybody: %+v", open)
	}
	if inside := c.policy.Spec.Ingress[1]; len(inside.From) != 3 || len(inside.Ports) != 1 || inside.Ports[0].Port != 8081 {
		t.Errorf("the internal port: %+v", inside)
	}
}

func TestARollingUpdateLosesNobody(t *testing.T) {
	c := readCluster(t)
	s := c.deployment.Spec
	if s.Strategy.Type != "RollingUpdate" || s.Strategy.RollingUpdate.MaxUnavailable != 0 || s.Strategy.RollingUpdate.MaxSurge < 1 {
		t.Errorf("strategy %+v", s.Strategy)
	}
	sleep := s.Template.Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds
	if grace := s.Template.Spec.TerminationGracePeriodSeconds; sleep < 5 || grace < sleep+15+10+15 {
		t.Errorf("grace %d s, of which preStop takes %d s", grace, sleep)
	}
	if g := loadMapped(t, c); g.Session.OnShutdown != "handover" || s.Replicas < 2 {
		t.Errorf("onShutdown %s with %d replicas", g.Session.OnShutdown, s.Replicas)
	}
	if c.budget.Spec.MaxUnavailable != 1 {
		t.Errorf("budget %+v", c.budget.Spec)
	}
}

func TestThePodsAreConfined(t *testing.T) {
	spec := readCluster(t).deployment.Spec.Template.Spec
	con := spec.Containers[0].SecurityContext
	if !spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.RunAsUser == 0 || spec.SecurityContext.SeccompProfile.Type != "RuntimeDefault" ||
		con.AllowPrivilegeEscalation == nil || *con.AllowPrivilegeEscalation || !con.ReadOnlyRootFilesystem || len(con.Capabilities.Drop) != 1 || con.Capabilities.Drop[0] != "ALL" ||
		spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Errorf("%+v %+v", spec.SecurityContext, con)
	}
}

// loadMapped reads the mounted gateway.yaml with the environment that the
// manifest gives.
func loadMapped(t *testing.T, c *cluster) *config.Gateway {
	t.Helper()
	con := c.deployment.Spec.Template.Spec.Containers[0]
	text := c.config.Data["gateway.yaml"]
	env := map[string]string{
		// What the comment at the top says to put into the secret.
		"MONGODB_URI": "mongodb://db/", "SESSION_KEY": "bWFrZS15b3VyLW93bi1rZXktb2YtMzItYnl0ZXMhISE=", "VANCE_INTERNAL_TOKEN": "token-of-a-good-length",
	}
	for _, e := range con.Env {
		env[e.Name] = "10.1.2.3"
	}
	g, err := config.Parse("gateway.yaml", []byte(text), func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestTheMountedConfigurationIsOneThatServeTakes(t *testing.T) {
	c := readCluster(t)
	loadMapped(t, c)
	spec := c.deployment.Spec.Template.Spec
	if spec.Containers[0].EnvFrom[0].SecretRef.Name != "mcp-lease-gateway" {
		t.Error("the secret is another than the comment makes")
	}
	mounted := map[string]bool{}
	for _, v := range spec.Volumes {
		mounted[v.Name] = true
		if v.ConfigMap == nil {
			continue
		}
		if v.ConfigMap.Name != c.config.Metadata.Name {
			t.Errorf("volume %s is of the ConfigMap %s", v.Name, v.ConfigMap.Name)
		}
		seen := map[string]bool{}
		for _, i := range v.ConfigMap.Items {
			seen[i.Key] = true
			if _, ok := c.config.Data[i.Key]; !ok {
				t.Errorf("%s is not in the ConfigMap", i.Key)
			}
			if strings.HasPrefix(i.Path, "/") || strings.Contains(i.Path, "..") {
				t.Errorf("path %s", i.Path)
			}
		}
		for k := range c.config.Data {
			if !seen[k] {
				t.Errorf("%s is not mounted", k)
			}
		}
	}
	for _, m := range spec.Containers[0].VolumeMounts {
		if !mounted[m.Name] {
			t.Errorf("%s is mounted and is no volume", m.Name)
		}
	}
	if args := strings.Join(spec.Containers[0].Args, " "); args != "serve --config /etc/mcp-lease-gateway/gateway.yaml" {
		t.Errorf("args %s", args)
	}
	checkDocuments(t, map[string]string{
		"_vance/_tenant/_vance/config/lease/browser.yaml": c.config.Data["lease-browser.yaml"],
		"_vance/_tenant/_vance/server-tools/browser.yaml": c.config.Data["server-browser.yaml"],
	})
}
