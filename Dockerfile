# The base image by tag; who wants the very same bytes each time names a digest:
# --build-arg PYTHON_IMAGE=python:3.13-slim@sha256:...
ARG PYTHON_IMAGE=python:3.13-slim
ARG NODE_IMAGE=node:22-slim

# The dashboard, at the versions and hashes of its lock file; it is files, and node stays behind.
FROM ${NODE_IMAGE} AS page
WORKDIR /build/dashboard
COPY dashboard ./
RUN --mount=type=cache,target=/root/.npm npm ci --omit=dev && npm run build

# The package and what its extras server and prices need, at the versions that the tests ran with,
# in a folder of its own.
# Wheels only: a dependency without one stops the build, rather than asking for a compiler.
FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
COPY requirements ./requirements
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/pricekeeper \
    && pip --python /opt/pricekeeper install --only-binary=:all: --require-hashes \
        --requirement requirements/deploy.txt \
    && pip install --only-binary=:all: --require-hashes --requirement requirements/build.txt \
    && pip install --only-binary=:all: --require-hashes --requirement requirements/audit.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY --from=page /build/src/pricekeeper/http/page ./src/pricekeeper/http/page
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/pricekeeper install --no-deps dist/*.whl \
    && cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
        --output-reproducible --of JSON -o /opt/pricekeeper/sbom.cdx.json /opt/pricekeeper/bin/python

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="pricekeeper" \
      org.opencontainers.image.description="Keeps LLM spend on Amazon Bedrock under control" \
      org.opencontainers.image.licenses="MIT"
# The number is fixed so that a bind mount or an EFS access point can be given to it.
RUN groupadd --system --gid 10001 pricekeeper \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /data \
        --shell /usr/sbin/nologin pricekeeper \
    && install --directory --owner=10001 --group=10001 --mode=0700 /data
COPY --from=build /opt/pricekeeper /opt/pricekeeper
ENV PATH="/opt/pricekeeper/bin:${PATH}" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PRICEKEEPER_STORE=sqlite:////data/pricekeeper.db \
    PRICEKEEPER_DATA_DIR=/data \
    PRICEKEEPER_METRICS_PORT=9464
# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
# The listener for metrics and health answers also when the service is busy. Its port is one of the
# container's own loopback; to be scraped from elsewhere, say 0.0.0.0:9464.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 9464, timeout=2); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["pricekeeper"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
