# Builds streamcap into an image that holds the static binary and the system's CA certificates (for
# rediss://), and nothing else: no shell, no package manager, no root.
FROM golang:1.26.8-bookworm AS build
ENV CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" GOTOOLCHAIN=local
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN go build -ldflags "-s -w -X main.version=$VERSION" -o /out/streamcap . \
 && go build -ldflags "-s -w" -o /out/backend ./e2e/backend/go

# The demo backend. It borrows streamcap's healthcheck, which asks whatever STREAMCAP_LISTEN names.
FROM scratch AS backend
COPY --from=build /out/backend /out/streamcap /usr/local/bin/
USER 65532:65532
EXPOSE 9000
ENTRYPOINT ["/usr/local/bin/backend"]

FROM scratch AS streamcap
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/streamcap /usr/local/bin/
USER 65532:65532
# It listens on loopback, next to the nginx whose network namespace it shares. Where nginx is
# elsewhere, set STREAMCAP_LISTEN=0.0.0.0:9180 and keep that port away from everybody else.
EXPOSE 9180 9181 9514/udp
# No shell in between: SIGTERM reaches the process itself, which stops within five seconds.
ENTRYPOINT ["/usr/local/bin/streamcap"]
# Healthy for as long as it serves, Redis up or down: a restart would not bring Redis back.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
  CMD ["/usr/local/bin/streamcap", "healthcheck"]
