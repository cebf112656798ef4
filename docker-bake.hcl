# docker buildx bake [cpu|cuda], with --set or the environment for what stands below.
#   REGISTRY=registry.example.com/llm/ VERSION=0.1.0 REVISION=$(git rev-parse HEAD) docker buildx bake --push

variable "REGISTRY" {
  default = "" # ends with a slash
}

variable "VERSION" {
  default = "0.1.0"
}

variable "REVISION" {
  default = "unknown"
}

variable "CREATED" {
  default = "unknown"
}

variable "SOURCE" {
  default = "unknown"
}

variable "PYTHON_IMAGE" {
  default = "python:3.11.15-slim-bookworm" # a release adds @sha256:...
}

# A release adds the hashes of files that PyPI does not have: torch's CPU build, of the version in
# scripts/image/constraints.txt, and FlashInfer's compiled kernels, of the version in scripts/image/gpu.txt.
variable "TORCH_CPU_SHA256" {
  default = ""
}

variable "FLASHINFER_SHA256" {
  default = ""
}

group "default" {
  targets = ["cpu", "cuda"]
}

target "image" {
  context    = "."
  dockerfile = "Dockerfile"
  platforms  = ["linux/amd64"] # nothing else has been tried
  args = {
    PYTHON_IMAGE = PYTHON_IMAGE
  }
  labels = {
    "org.opencontainers.image.title"       = "baton"
    "org.opencontainers.image.description" = "Disaggregated prefill and decode serving of large language models"
    "org.opencontainers.image.licenses"    = "Apache-2.0"
    "org.opencontainers.image.version"     = VERSION
    "org.opencontainers.image.revision"    = REVISION
    "org.opencontainers.image.created"     = CREATED
    "org.opencontainers.image.source"      = SOURCE
    "org.opencontainers.image.base.name"   = PYTHON_IMAGE
  }
  attest = ["type=sbom", "type=provenance,mode=max"]
}

target "cpu" {
  inherits = ["image"]
  target   = "cpu"
  args     = { TORCH_CPU_SHA256 = TORCH_CPU_SHA256 }
  tags     = ["${REGISTRY}baton:${VERSION}-cpu"]
}

target "cuda" {
  inherits = ["image"]
  target   = "cuda"
  args     = { FLASHINFER_SHA256 = FLASHINFER_SHA256 }
  tags     = ["${REGISTRY}baton:${VERSION}-cuda"]
}
