# make run and make test are all that a newcomer needs; see README.md.

GO      ?= go
VERSION ?= 0.1.0
LDFLAGS  = -s -w -X main.version=$(VERSION)

# The packages whose tests need MongoDB, Chromium, Node or TeX carry the build
# tag external: they run in `make test`, where a missing part is a failure.
EXTERNAL = -tags external
TIMEOUT ?= 20m
FUZZTIME ?= 20s

.PHONY: build run test quick race schedules lint tidy bench explore fuzz image image-test parts helm clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/mcp-lease-gateway ./cmd/mcp-lease-gateway
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/testserver-stdio ./testservers/cmd/stdio

# The gateway in front of a test server: a lease at work, then it goes on serving.
# It takes make's place in the shell, so that Ctrl-C reaches it once, and ends with 0.
run: build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/demo ./testservers/demo
	@exec bin/demo

# Everything: all schedules, each fuzz target for a moment, and every test with the
# race detector and every part from outside.
test: build parts schedules helm
	./.ci/told $(MAKE) --no-print-directory fuzz FUZZTIME=3s
	./.ci/told ./.ci/with-mongo env GATEWAY_BINARY= $(GO) test -race $(EXTERNAL) -timeout $(TIMEOUT) ./...

# No part from outside: what to run while working.
quick:
	$(GO) vet ./...
	$(GO) test -timeout 5m ./...

race:
	$(GO) test -race -timeout $(TIMEOUT) ./...

lint:
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted by gofmt:"; echo "$$out"; exit 1; fi
	$(GO) mod tidy -diff
	cd deploy/helmtest && $(GO) mod tidy -diff
	$(GO) vet -tags external,mutants ./...
	$(GO) tool -modfile=tools.mod staticcheck -tags external,mutants ./...

tidy:
	gofmt -w .
	$(GO) mod tidy

# Ratios to httputil.ReverseProxy on loopback, which take three minutes, and the
# engine on both stores.
bench: build
	$(GO) run ./testservers/bench -gateway bin/mcp-lease-gateway $(BENCHFLAGS)
	./.ci/with-mongo $(GO) test $(EXTERNAL) -run '^$$' -bench . -benchtime 2s ./lease/...
	$(GO) test -run '^$$' -bench . -benchtime 2s ./texproxy

# What the race detector is too slow for: all schedules of the lease engine with
# up to two preemptions, every operation failing, the mutants. Four minutes.
schedules:
	LEASE_PREEMPTIONS=2 $(GO) test -tags mutants -timeout $(TIMEOUT) -v -run 'Explore|EveryOperation|Mutants' ./lease

# All schedules with up to three preemptions: minutes to hours.
explore:
	LEASE_PREEMPTIONS=3 $(GO) test -timeout 0 -v -run Explore ./lease/...

# Every fuzz target for FUZZTIME.
fuzz:
	GO=$(GO) ./.ci/fuzz $(FUZZTIME)

# The Helm chart, rendered and decoded; UPDATE=1 writes what is made from it. It
# builds the program by itself, which go test's cache does not see.
helm:
	cd deploy/helmtest && $(GO) test -count=1 -timeout $(TIMEOUT) ./...

image:
	docker build --target gateway --build-arg VERSION=$(VERSION) -t mcp-lease-gateway:$(VERSION) .
	docker build --target gateway-node --build-arg VERSION=$(VERSION) -t mcp-lease-gateway:$(VERSION)-node .

# Both images without Docker: built by buildah on base images that are made here,
# and run by crun through the lines of README.md. It is a part of `make test`.
image-test: parts
	$(GO) test $(EXTERNAL) -count=1 -v -timeout $(TIMEOUT) ./deploy/imagetest

# What the tests need from outside: Debian's packages and Node's.
parts:
	./.ci/parts

clean:
	rm -rf bin out testservers/node/node_modules
