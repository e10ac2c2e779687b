# docker build -t watermaster .
# docker run --rm -it watermaster demo
#
# BuildKit is needed (every Docker since 23 has it): downloads and what was compiled are kept in its caches.

ARG RUST_VERSION=1.95

FROM rust:${RUST_VERSION}-slim-trixie AS build
# What librdkafka is built with; CMake builds its C++ interface, too.
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ libssl-dev make pkg-config \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
# Static zlib, because the runtime image has none. librdkafka, libcurl and zstd always are; OpenSSL is the image's, so that its fixes
# come with a newer image.
ENV LIBZ_SYS_STATIC=1
# Names of functions stay, for backtraces; the rest of the debug information is four fifths of the binary.
ENV CARGO_PROFILE_RELEASE_STRIP=debuginfo
# The logarithm of the largest memory page, for jemalloc: 16 for arm64. By default it is that of the machine that builds.
ARG JEMALLOC_SYS_WITH_LG_PAGE
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
# `demo` has its configuration in itself.
COPY config/demo.toml config/
# With its benches, which its manifest names; its tests and ours are left out (.dockerignore).
COPY core core
COPY api api
COPY schemas schemas
COPY settings settings
COPY kafka kafka
COPY tools/Cargo.toml tools/
COPY tools/src tools/src
COPY src src
# Touched, because Cargo goes by times: a folder that was checked out before the last build of another one would pass for
# compiled, and the image would hold the other one's program. What they depend on stays compiled.
RUN --mount=type=cache,sharing=locked,target=/usr/local/cargo/registry \
    --mount=type=cache,sharing=locked,target=/source/target \
    find api core schemas settings kafka tools src config -type f -exec touch {} + \
    && cargo build --release --locked --bin watermaster \
    && cp target/release/watermaster /watermaster

# glibc, libgcc, OpenSSL 3 and CA certificates, no shell and no package manager. Runs as 65532.
FROM gcr.io/distroless/cc-debian13:nonroot
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="watermaster" \
    org.opencontainers.image.description="A fair-share throttler for Kafka: lends idle capacity, delays bursts, loses nothing" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /watermaster /usr/local/bin/watermaster
# Healthy means ready. Swarm stops unhealthy containers, which helps no instance that waits for brokers: use `health --live`
# there. Kubernetes ignores this line and asks /livez and /readyz by itself.
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["/usr/local/bin/watermaster", "health"]
EXPOSE 9464
# SIGTERM drains: grant it 20 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/watermaster"]
CMD ["run", "--config", "/etc/watermaster/watermaster.toml"]
