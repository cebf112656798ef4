"""Endpoints that receive traces in OTLP.

http://host[:4318][/path], https://...     OTLP over HTTP; without a path, /v1/traces
grpc://host[:4317], grpcs://...            OTLP over gRPC
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from baton.settings.names import host_port
from baton.settings.values import OptionError

PORTS = {"http": 4318, "https": 4318, "grpc": 4317, "grpcs": 4317}
PATH = "/v1/traces"
OTLP_ENDPOINT = (
    "Endpoint for traces in OTLP: http(s)://HOST:4318 for OTLP over HTTP, grpc(s)://HOST:4317 for gRPC. Headers and "
    "timeouts are read from OTEL_EXPORTER_OTLP_*. Default: no traces."
)


@dataclass(frozen=True, slots=True)
class OtlpEndpoint:
    """An endpoint as an exporter expects it."""

    url: str  # of HTTP: with its path; of gRPC: host:port
    is_grpc: bool
    is_tls: bool


def parse_otlp_endpoint(text: str) -> OtlpEndpoint:
    """Return the parsed endpoint. Raises OptionError, whose text repeats no credentials."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise OptionError(f"it is not a URL: {error}") from None
    if parts.scheme not in PORTS or not host:
        raise OptionError("it must be http://HOST:4318, https://HOST:4318, grpc://HOST:4317 or grpcs://HOST:4317")
    if "@" in parts.netloc:
        raise OptionError("it must have no user or password; set OTEL_EXPORTER_OTLP_HEADERS instead")
    if parts.query or parts.fragment:
        raise OptionError("it must have no query and no fragment")
    is_tls = parts.scheme.endswith("s")
    address = host_port(host, PORTS[parts.scheme] if port is None else port)
    if not parts.scheme.startswith("grpc"):
        path = PATH if parts.path in ("", "/") else parts.path
        return OtlpEndpoint(f"{parts.scheme}://{address}{path}", is_grpc=False, is_tls=is_tls)
    if parts.path not in ("", "/"):
        raise OptionError("a gRPC endpoint has no path")
    return OtlpEndpoint(address, is_grpc=True, is_tls=is_tls)


def check_otlp_endpoint(text: str | None) -> None:
    """Raise OptionError unless the option is unset or an endpoint."""
    try:
        if text is not None:
            parse_otlp_endpoint(text)
    except OptionError as error:
        raise OptionError(f"otlp_traces_endpoint: {error}") from error
