"""The format of a metrics page: Prometheus text, or OpenMetrics for clients that accept it."""

from prometheus_client.exposition import choose_encoder

OPENMETRICS = "application/openmetrics-text"
MAX_ACCEPT_CHARS = 1024  # of a header that may have thousands of formats


def plain_accept(accept: str) -> str:
    """Return an `accept` header that selects the same format in prometheus_client, without escaping of names.

    Unless a client accepts any UTF-8, prometheus_client escapes the colons of sample names in OpenMetrics, although
    they are valid there and its HELP and TYPE lines keep them.
    """
    _, media_type = choose_encoder(accept[:MAX_ACCEPT_CHARS])
    return f"{OPENMETRICS};version=1.0.0;escaping=allow-utf-8" if media_type.startswith(OPENMETRICS) else ""
