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
  default = "python:3.11.14-slim-bookworm" # a release adds @sha256:...
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
    "org.opencontainers.image.version"   = VERSION
    "org.opencontainers.image.revision"  = REVISION
    "org.opencontainers.image.created"   = CREATED
    "org.opencontainers.image.source"    = SOURCE
    "org.opencontainers.image.base.name" = PYTHON_IMAGE
  }
  attest = ["type=sbom", "type=provenance,mode=max"]
}

target "cpu" {
  inherits = ["image"]
  target   = "cpu"
  tags     = ["${REGISTRY}baton:${VERSION}-cpu"]
}

target "cuda" {
  inherits = ["image"]
  target   = "cuda"
  tags     = ["${REGISTRY}baton:${VERSION}-cuda"]
}
