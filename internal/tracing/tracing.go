package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// w3c is the only form in which contexts come and go.
var w3c = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// current is the tracer in use; nil while traces are off.
var current atomic.Pointer[trace.Tracer]

// Options configures traces.
type Options struct {
	// Endpoint is the URL of an OTLP/HTTP collector, such as
	// http://collector:4318; without a path, /v1/traces is meant.
	Endpoint string
	// Ratio is the share of the traces that begin here and are kept, 0 to 1. A
	// trace that began elsewhere is kept where its beginning was.
	Ratio   float64
	Pod     string
	Version string
	Log     *slog.Logger
}

// Start turns traces on. Stop sends what is left, as long as ctx lets it, and
// turns them off. A collector that does not answer costs spans and nothing
// else: they wait in a bounded queue and are dropped.
func Start(ctx context.Context, opt Options) (stop func(context.Context) error, err error) {
	u, err := url.Parse(opt.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("telemetry.otlpEndpoint must be the http or https URL of a collector")
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithTimeout(10*time.Second))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	if opt.Log != nil {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { opt.Log.Warn("traces could not be sent", "error", err) }))
	}
	return use(sdktrace.WithBatcher(exporter), opt), nil
}

// use makes a provider with an exporter the one in use.
func use(exporter sdktrace.TracerProviderOption, opt Options) (stop func(context.Context) error) {
	provider := sdktrace.NewTracerProvider(exporter,
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(opt.Ratio))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "mcp-lease-gateway"),
			attribute.String("service.version", opt.Version),
			attribute.String("service.instance.id", opt.Pod),
		)))
	t := provider.Tracer("github.com/vancetope/mcp-lease-gateway")
	current.Store(&t)
	return func(ctx context.Context) error {
		current.CompareAndSwap(&t, nil)
		return provider.Shutdown(ctx)
	}
}
