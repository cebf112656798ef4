"""The tracer of a process."""

from baton.extras import OPENTELEMETRY
from baton.rpc.tracing.base import Tracer
from baton.settings.otlp_endpoint import parse_otlp_endpoint
from baton.settings.values import OptionError


def open_tracer(endpoint: str | None, service: str, instance: str, sample_ratio: float = 1.0) -> Tracer | None:
    """Return the tracer that exports to an endpoint; None without one. Starts a thread.

    `service` and `instance`: names of the program and of this process. Raises MissingExtra, or OptionError if
    OpenTelemetry's SDK refuses its environment variables.
    """
    if endpoint is None:
        return None
    OPENTELEMETRY.require("--otlp-traces-endpoint")
    from baton.rpc.tracing.otel import OtelTracer, make_exporter

    resource = {"service.name": service, "service.namespace": "baton", "service.instance.id": instance}
    parsed = parse_otlp_endpoint(endpoint)
    try:
        return OtelTracer(make_exporter(parsed), resource, sample_ratio)
    except Exception as error:  # the SDK has many classes, such as for an unknown compression
        raise OptionError(f"otlp_traces_endpoint: a variable OTEL_... is wrong: {error}") from error
