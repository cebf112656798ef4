"""The format of a metrics page: Prometheus text, or OpenMetrics for clients that accept it."""

from prometheus_client.exposition import choose_encoder

OPENMETRICS = "application/openmetrics-text"
MAX_ACCEPT_CHARS = 1024  # of a header that may have thousands of formats


def plain_accept(accept: str) -> str:
    """Return an `accept` header for prometheus_client that chooses the same format and leaves names as they are.

    Unless a client accepts any UTF-8, it escapes colons in OpenMetrics' names of samples, though they are valid there
    and its own headings keep them.
    """
    _, media_type = choose_encoder(accept[:MAX_ACCEPT_CHARS])
    return f"{OPENMETRICS};version=1.0.0;escaping=allow-utf-8" if media_type.startswith(OPENMETRICS) else ""
