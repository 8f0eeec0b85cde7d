# waitinfo serve in a container: not root, nothing to write.
#
#     docker build --tag waitinfo .
#     docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#         --publish 127.0.0.1:8000:8000 waitinfo --open
#
# Others are let in with keys instead of --open; see docs/deploying.md. To hear voices, install
# '.[serve,listen]' below and give a folder with a recogniser.
FROM python:3.12-slim AS build
WORKDIR /source
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN python -m venv /opt/waitinfo && /opt/waitinfo/bin/pip install --no-cache-dir '.[serve]'

FROM python:3.12-slim
COPY --from=build /opt/waitinfo /opt/waitinfo
RUN useradd --system --no-create-home --uid 10001 waitinfo
USER 10001
ENV PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["/opt/waitinfo/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["/opt/waitinfo/bin/waitinfo", "serve", "--host", "0.0.0.0"]
