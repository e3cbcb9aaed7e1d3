# Two images: `base` (control, runtime, operator, client and command line; no torch) and `worker` (engines).
#
#   docker build --target base   -t tartlet .
#   docker build --target worker -t tartlet-worker .
#   docker build --target worker --build-arg TORCH_WHEEL=https://.../torch-...%2Bcpu-....whl -t tartlet-worker:slim .
#   docker build --target worker --build-arg ACCELERATOR=cuda -t tartlet-worker:cuda .
#
# BASE         an image with Python 3.11 or later and its venv module.
# COMPILER     Debian packages of a C compiler, for the runtime's shim; empty: none, and ctypes does its work, more slowly.
# ACCELERATOR  cpu: the locked torch, which runs everywhere and on Linux brings several GB of CUDA libraries; cuda:
#              FlashInfer too, with its kernels and Triton's launcher built ahead, so that a worker compiles nothing with
#              a compiler of the system.
# CUDA_ARCHITECTURES  for cuda: compute capabilities that FlashInfer's kernels are built for.
# modules      for cuda, a build context (`--build-context modules=DIR`): FlashInfer's modules that were compiled before, such
#              as `data/aot` of its package in an earlier image. The others are compiled, which takes half an hour of a core.
# TORCH_WHEEL  for cpu: a wheel to take instead of the locked torch, such as one without CUDA.
# PREVIOUS     an image of the release before: its Python component comes along, so that programs that began with it go
#              on when an upgrade replaces their runtime. By default none does, and such programs end in RuntimeLost.
ARG BASE=python:3.11-slim
ARG PREVIOUS=${BASE}

# ---- compiled components of the release before, if there is one ------------------------------------------------------------
FROM ${PREVIOUS} AS previous
RUN mkdir -p /opt/tartlet/cache/aot

# ---- the locked packages without torch, Tartlet, and what is compiled once ------------------------------------------------
FROM ${BASE} AS builder
ARG COMPILER="gcc libc6-dev"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PATH=/opt/venv/bin:$PATH HOME=/tmp
# the compiler stays behind in this stage, and its version follows the base image's
# hadolint ignore=DL3008
RUN if [ -n "$COMPILER" ]; then \
        apt-get update -qq && apt-get install -y -qq --no-install-recommends $COMPILER && rm -rf /var/lib/apt/lists/*; \
    fi
RUN python3 -m venv /opt/venv
WORKDIR /src
COPY constraints/ constraints/
RUN pip install --only-binary :all: --require-hashes -r constraints/image-base.txt
COPY pyproject.toml README.md LICENSE ./
COPY services/ services/
COPY gpu_worker/ gpu_worker/
COPY operator/ operator/
COPY protos/ protos/
COPY crds/ crds/
COPY inferlets/ inferlets/
# hatchling is among the locked packages: nothing is fetched that isn't
RUN pip install --no-deps --no-build-isolation . && mkdir -p /opt/tartlet/cache && chown -R 10001:10001 /opt/tartlet
# The Python guest, for the baseline CPU, built by the user that runs it: the runtime trusts no cache but its own.
USER 10001:10001
RUN python -m tartlet_runtime.guests.build --cache-dir /opt/tartlet/cache
COPY --from=previous --chown=10001:10001 /opt/tartlet/cache/ /opt/tartlet/cache/

# ---- the same with torch and the demo model -------------------------------------------------------------------------------
FROM builder AS worker-builder
ARG ACCELERATOR=cpu
ARG TORCH_WHEEL=""
USER 0:0
# the wheel is named by whoever builds the image, version and all
# hadolint ignore=DL3013
RUN case "$ACCELERATOR${TORCH_WHEEL:+ with a wheel}" in \
        cpu) locked=image-worker ;; \
        cuda) locked=image-worker-cuda ;; \
        "cpu with a wheel") locked=image-worker-deps ;; \
        *) echo "ACCELERATOR is cpu or cuda, and TORCH_WHEEL goes with cpu alone" >&2; exit 1 ;; \
    esac && \
    if [ -n "$TORCH_WHEEL" ]; then pip install --no-deps "$TORCH_WHEEL"; fi && \
    pip install --only-binary :all: --require-hashes -r "constraints/$locked.txt"
COPY models/demo/ /opt/tartlet/models/demo/
USER 10001:10001

# ---- for CUDA: modules that were compiled before; a build context of this name takes the stage's place ----------------------
FROM scratch AS modules
COPY LICENSE /

# ---- for CUDA: what would be compiled when a worker starts ------------------------------------------------------------------
FROM worker-builder AS kernels
ARG ACCELERATOR=cpu
ARG CUDA_ARCHITECTURES=9.0a
USER 0:0
COPY --from=modules / /opt/modules/
# the compilers and Python's headers, if BASE lacks those, stay behind in this stage
# hadolint ignore=DL3008
RUN if [ "$ACCELERATOR" = cuda ]; then \
        apt-get update -qq && apt-get install -y -qq --no-install-recommends g++ && \
        { [ -e "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || \
            apt-get install -y -qq --no-install-recommends python3-dev; } && rm -rf /var/lib/apt/lists/* && \
        pip install --no-deps --only-binary :all: --require-hashes --target /opt/nvcc -r constraints/image-nvcc.txt && \
        python -m tartlet_worker.attention.ahead_of_time --compiler /opt/nvcc --launcher /opt/tartlet/triton \
            --modules /opt/modules --architectures "$CUDA_ARCHITECTURES"; \
    fi
USER 10001:10001

# ---- what both images are -------------------------------------------------------------------------------------------------
FROM ${BASE} AS common
LABEL org.opencontainers.image.title="Tartlet" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp \
    TARTLET_CACHE_DIR=/opt/tartlet/cache TARTLET_RUN_DIR=/tmp/run
# by number, so that Kubernetes can see that it isn't root's
USER 10001:10001
ENTRYPOINT ["tartlet"]

FROM common AS worker
ENV TARTLET_MODEL=/opt/tartlet/models/demo FLASHINFER_DISABLE_JIT=1 TARTLET_TRITON_LAUNCHER=/opt/tartlet/triton
COPY --from=kernels /opt/venv /opt/venv
COPY --from=kernels /opt/tartlet /opt/tartlet

# last, so that it is what `docker build .` makes
FROM common AS base
COPY --from=builder /opt/venv /opt/venv
COPY --from=builder /opt/tartlet /opt/tartlet
