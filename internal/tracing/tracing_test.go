package tracing

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	parent = "4bf92f3577b34da6a3ce929d0e0e4736"
	sent   = "00-" + parent + "-00f067aa0ba902b7-01"
)

// proxy is a server that passes its requests on with RoundTrip.
func proxy(t *testing.T, upstream http.HandlerFunc) *httptest.Server {
	t.Helper()
	up := httptest.NewServer(upstream)
	t.Cleanup(up.Close)
	front := httptest.NewServer(Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, up.URL+"/secret-path?key=hunter2", r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = r.Header.Clone()
		res, err := RoundTrip(http.DefaultTransport, req)
		if err != nil {
			http.Error(w, "no answer", http.StatusBadGateway)
			return
		}
		defer func() { _ = res.Body.Close() }()
		w.WriteHeader(res.StatusCode)
		if _, ok := w.(http.Flusher); !ok {
			t.Error("the writer cannot be flushed")
		}
		_, _ = io.Copy(w, res.Body)
	})))
	t.Cleanup(front.Close)
	return front
}

func ask(t *testing.T, url string, header ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode
}

func TestOffAContextPassesThrough(t *testing.T) {
	var got string
	front := proxy(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("traceparent") })
	ask(t, front.URL+"/mcp/acme/thesis/browser", "traceparent", sent)
	if got != sent {
		t.Errorf("upstream got %q", got)
	}
}

func TestOnTheUpstreamGetsTheSpansContext(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	stop := use(sdktrace.WithSyncer(spans), Options{Ratio: 0})
	defer func() { _ = stop(t.Context()) }()
	var got, baggage string
	front := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		got, baggage = r.Header.Get("traceparent"), r.Header.Get("baggage")
		w.WriteHeader(503)
	})
	if status := ask(t, front.URL+"/mcp/acme/thesis/@alice/browser?token=hunter2", "traceparent", sent, "baggage", "k=v", "Authorization", "Bearer hunter2"); status != 503 {
		t.Errorf("status %d", status)
	}
	ended := spans.GetSpans()
	if len(ended) != 2 {
		t.Fatalf("%d spans, want the server's and the upstream's", len(ended))
	}
	up, srv := ended[0], ended[1]
	if srv.Name != "POST /mcp" || up.Name != "upstream POST" {
		t.Errorf("names %q and %q", srv.Name, up.Name)
	}
	if srv.SpanContext.TraceID().String() != parent || srv.Parent.SpanID().String() != "00f067aa0ba902b7" || up.Parent.SpanID() != srv.SpanContext.SpanID() {
		t.Errorf("the spans are not one below the other: %v %v", srv, up)
	}
	if want := "00-" + parent + "-" + up.SpanContext.SpanID().String() + "-01"; got != want || baggage != "k=v" {
		t.Errorf("upstream got %q and %q, want %q", got, baggage, want)
	}
	for _, s := range ended {
		if s.Status.Code.String() != "Error" {
			t.Errorf("%s: a 503 is status %v", s.Name, s.Status)
		}
		for _, a := range s.Attributes {
			for _, secret := range []string{"hunter2", "alice", "acme", "secret-path"} {
				if strings.Contains(a.Value.String(), secret) {
					t.Errorf("%s: %s = %s", s.Name, a.Key, a.Value.String())
				}
			}
		}
	}
}

func TestWhatDidNotBeginElsewhereIsKeptByRatio(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	stop := use(sdktrace.WithSyncer(spans), Options{Ratio: 0})
	front := proxy(t, func(http.ResponseWriter, *http.Request) {})
	ask(t, front.URL+"/tex/a/b/c/")
	if n := len(spans.GetSpans()); n != 0 {
		t.Errorf("ratio 0 kept %d spans", n)
	}
	_ = stop(t.Context())
	stop = use(sdktrace.WithSyncer(spans), Options{Ratio: 1})
	defer func() { _ = stop(t.Context()) }()
	ask(t, front.URL+"/tex/a/b/c/")
	if n := len(spans.GetSpans()); n != 2 {
		t.Errorf("ratio 1 kept %d spans", n)
	}
}

func TestSpansReachACollector(t *testing.T) {
	got := make(chan *collector.ExportTraceServiceRequest, 1)
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var req collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &req); err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		got <- &req
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer sink.Close()
	stop, err := Start(t.Context(), Options{Endpoint: sink.URL, Ratio: 1, Pod: "pod-a", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	front := proxy(t, func(http.ResponseWriter, *http.Request) {})
	ask(t, front.URL+"/mcp/acme/thesis/browser")
	if err := stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := (<-got).String()
	for _, want := range []string{"mcp-lease-gateway", "pod-a", "POST /mcp", "upstream POST"} {
		if !strings.Contains(text, want) {
			t.Errorf("the collector got no %q", want)
		}
	}
	if current.Load() != nil {
		t.Error("traces are still on")
	}
}

func TestAWrongEndpointIsRefused(t *testing.T) {
	for _, e := range []string{"collector:4318", "", "ftp://collector", "://"} {
		if _, err := Start(t.Context(), Options{Endpoint: e}); err == nil || !strings.Contains(err.Error(), "otlpEndpoint") {
			t.Errorf("%q: %v", e, err)
		}
	}
}
