# Two images from one file: `server` (web server, migrations; no torch) and `worker` (trains; torch and its CUDA libraries).
ARG PYTHON=3.11.13-slim-bookworm

FROM python:${PYTHON} AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 \
    PATH=/opt/venv/bin:$PATH \
    STABLESSM_DATA_DIR=/var/lib/stablessm STABLESSM_DATA=/data
RUN useradd --uid 10001 --create-home stablessm \
    && install -d -o stablessm -g stablessm -m 0700 /var/lib/stablessm /backups \
    && python -m venv /opt/venv
WORKDIR /src

FROM base AS source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY service service
COPY stablessm stablessm
COPY stablessm_core stablessm_core
COPY server server
COPY worker worker
COPY studies studies
COPY docs/paper docs/paper
COPY web web
COPY migrations migrations

FROM source AS build-server
# the server never imports torch and never runs a kernel
RUN STABLESSM_COMPILER=none pip install --constraint constraints.txt . './service[s3]'

FROM base AS server
COPY --from=build-server /opt/venv /opt/venv
# the root file system may be read-only; matplotlib stores its list of fonts here
ENV MPLCONFIGDIR=/tmp/matplotlib
USER stablessm
WORKDIR /home/stablessm
VOLUME /var/lib/stablessm
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["stablessm", "serve", "--host", "0.0.0.0", "--port", "8000"]

# the compiler builds the CPU kernels here, and Triton uses it at run time for a small launcher
FROM base AS compiler
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

FROM compiler AS build-worker
COPY --from=source /src /src
RUN STABLESSM_COMPILER=gcc pip install --constraint constraints.txt . './service[train,s3]'

FROM compiler AS worker
COPY --from=build-worker /opt/venv /opt/venv
# the root file system may be read-only, so caches and the home directory are in /tmp
ENV TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor CUDA_CACHE_PATH=/tmp/cuda HOME=/tmp
# the worker can write to a volume that is mounted here
RUN install -d -o stablessm -g stablessm -m 1777 /run/stablessm-gpus
USER stablessm
WORKDIR /home/stablessm
VOLUME /var/lib/stablessm
CMD ["stablessm", "worker"]
