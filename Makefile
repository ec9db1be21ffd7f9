GO ?= go

.PHONY: build quick
build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/mcp-lease-gateway ./cmd/mcp-lease-gateway

quick:
	$(GO) vet ./...
	$(GO) test ./...
