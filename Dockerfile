# syntax=docker/dockerfile:1
# Two images: `gateway` is one static program and nothing else; `gateway-node`
# has Node besides, for servers that are started with npx.
#
#   docker build --target gateway -t mcp-lease-gateway .
#
# README.md has the line that runs it. `make image-test` builds both without Docker
# and without a registry, on base images that it makes itself, and runs them.
ARG GO_IMAGE=golang:1.26-bookworm
ARG NODE_IMAGE=node:22-bookworm-slim

FROM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=0.1.0
# What COPY makes on its way to a folder is root's and closed to others, so the
# folders are made here and copied as a whole.
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/root/usr/local/bin/mcp-lease-gateway ./cmd/mcp-lease-gateway \
 && mkdir -p /out/root/tmp /out/root/var/lib /out/data && chmod 1777 /out/root/tmp

FROM ${NODE_IMAGE} AS gateway-node
COPY --from=build /out/root/usr/local/bin/ /usr/local/bin/
COPY --from=build --chown=65532:65532 /out/data /var/lib/mcp-lease-gateway
USER 65532:65532
WORKDIR /var/lib/mcp-lease-gateway
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/local/bin/mcp-lease-gateway", "healthcheck", "--config", "/etc/mcp-lease-gateway/gateway.yaml"]
ENTRYPOINT ["/usr/local/bin/mcp-lease-gateway"]
CMD ["serve", "--config", "/etc/mcp-lease-gateway/gateway.yaml"]

# Last, so that it is what a build without --target makes.
FROM scratch AS gateway
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/root/ /
COPY --from=build --chown=65532:65532 /out/data /var/lib/mcp-lease-gateway
ENV PATH=/usr/local/bin
USER 65532:65532
WORKDIR /var/lib/mcp-lease-gateway
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/local/bin/mcp-lease-gateway", "healthcheck", "--config", "/etc/mcp-lease-gateway/gateway.yaml"]
ENTRYPOINT ["/usr/local/bin/mcp-lease-gateway"]
CMD ["serve", "--config", "/etc/mcp-lease-gateway/gateway.yaml"]
