# syntax=docker/dockerfile:1
# Two images: `gateway` is one static program and nothing else; `gateway-node`
# has Node besides, for servers that are started with npx.
#
#   docker build --target gateway -t mcp-lease-gateway .
#   docker run -v ./gateway:/etc/mcp-lease-gateway -p 8080:8080 mcp-lease-gateway

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/mcp-lease-gateway ./cmd/mcp-lease-gateway \
 && mkdir -p /out/data /out/tmp && chmod 1777 /out/tmp

FROM node:22-bookworm-slim AS gateway-node
COPY --from=build /out/mcp-lease-gateway /usr/local/bin/mcp-lease-gateway
RUN mkdir -p /var/lib/mcp-lease-gateway && chown 65532:65532 /var/lib/mcp-lease-gateway
USER 65532:65532
WORKDIR /var/lib/mcp-lease-gateway
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/mcp-lease-gateway"]
CMD ["serve", "--config", "/etc/mcp-lease-gateway/gateway.yaml"]

# Last, so that it is what a build without --target makes.
FROM scratch AS gateway
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/mcp-lease-gateway /mcp-lease-gateway
COPY --from=build --chown=65532:65532 /out/data /var/lib/mcp-lease-gateway
COPY --from=build /out/tmp /tmp
USER 65532:65532
WORKDIR /var/lib/mcp-lease-gateway
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["/mcp-lease-gateway"]
CMD ["serve", "--config", "/etc/mcp-lease-gateway/gateway.yaml"]
