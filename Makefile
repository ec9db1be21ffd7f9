GO ?= go

.PHONY: build quick bench
build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/mcp-lease-gateway ./cmd/mcp-lease-gateway

quick:
	$(GO) vet ./...
	$(GO) test ./...

# Ratios to httputil.ReverseProxy, on loopback; takes three minutes.
bench: build
	$(GO) run ./testservers/bench -gateway bin/mcp-lease-gateway $(BENCHFLAGS)
