# Baton's images: `docker buildx bake cpu` and `docker buildx bake cuda` (docker-bake.hcl), or
# `docker build --target cpu .` and `docker build --target cuda .`
#
# Pinned by tag: a release adds the digest that it was built from, PYTHON_IMAGE=python:...@sha256:... Python packages are
# pinned by hash, except for files that PyPI does not have: a release adds TORCH_CPU_SHA256 and FLASHINFER_SHA256.
ARG PYTHON_IMAGE=python:3.11.15-slim-bookworm

# ---- Baton's wheel, with its compiled modules ----
FROM ${PYTHON_IMAGE} AS wheel
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# The compiler builds only these modules of the image, so the distribution's version is enough.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY baton/ baton/
COPY decode_worker/ decode_worker/
COPY deployment/ deployment/
COPY doctor/ doctor/
COPY engine/ engine/
COPY kvtransfer/ kvtransfer/
COPY loadtool/ loadtool/
COPY membership/ membership/
COPY prefill_worker/ prefill_worker/
COPY process/ process/
COPY protos/ protos/
COPY router/ router/
COPY rpc/ rpc/
COPY settings/ settings/
COPY simulation/ simulation/
COPY worker/ worker/
COPY scripts/image/ scripts/image/
RUN sh scripts/image/install.sh wheel /dist

# ---- Baton's dependencies: large, and rarely changed ----
FROM ${PYTHON_IMAGE} AS dependencies
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY scripts/image/ scripts/image/

FROM dependencies AS dependencies-cpu
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH_CPU_SHA256=""
RUN TORCH_INDEX="${TORCH_CPU_INDEX}" TORCH_SHA256="${TORCH_CPU_SHA256}" sh scripts/image/install.sh dependencies /opt/baton

# PyPI's torch is the CUDA build and includes CUDA's libraries; nixl includes UCX. The node provides the driver.
FROM dependencies AS dependencies-cuda
ARG TORCH_CUDA_INDEX=""
ARG TORCH_CUDA_SHA256=""
RUN TORCH_INDEX="${TORCH_CUDA_INDEX}" TORCH_SHA256="${TORCH_CUDA_SHA256}" sh scripts/image/install.sh dependencies /opt/baton gpu
ARG FLASHINFER_INDEX=https://flashinfer.ai/whl/cu130
ARG FLASHINFER_SHA256=""
RUN FLASHINFER_INDEX="${FLASHINFER_INDEX}" FLASHINFER_SHA256="${FLASHINFER_SHA256}" sh scripts/image/install.sh kernels /opt/baton

# ---- Runtime images ----
FROM ${PYTHON_IMAGE} AS runtime
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# KubeRay starts pods with bash, in some versions as a login shell (which resets PATH), and probes them with wget.
# hadolint ignore=DL3008,SC2016
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 baton \
    && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /tmp --shell /bin/bash baton \
    && echo 'PATH=/opt/baton/bin:$PATH' > /etc/profile.d/baton.sh
# Baton writes only below /tmp, because the rest of the file system may be read-only. The user id may be missing in
# /etc/passwd (OpenShift assigns one to each namespace); LOGNAME then provides the user name that libraries ask for.
ENV PATH=/opt/baton/bin:$PATH \
    HOME=/tmp \
    LOGNAME=baton \
    TMPDIR=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /tmp
EXPOSE 8000
CMD ["baton", "--help"]
LABEL org.opencontainers.image.title="Baton" \
    org.opencontainers.image.description="Disaggregated prefill/decode serving of large language models" \
    org.opencontainers.image.licenses="Apache-2.0" \
    io.baton.sbom="/opt/baton/sbom.cdx.json"

FROM runtime AS cpu
COPY --from=dependencies-cpu /opt/baton /opt/baton
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,source=scripts/image,target=/src/scripts/image \
    PYTHON=/usr/local/bin/python3 sh /src/scripts/image/install.sh baton /opt/baton /dist
USER 1000:1000

FROM runtime AS cuda
# Driver capabilities that NVIDIA's container runtime exposes.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Triton and FlashInfer compile small C modules on first use; Python's headers are in the base image.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=dependencies-cuda /opt/baton /opt/baton
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,source=scripts/image,target=/src/scripts/image \
    PYTHON=/usr/local/bin/python3 sh /src/scripts/image/install.sh baton /opt/baton /dist
USER 1000:1000
