"""Origins of web pages, as browsers send them."""

from urllib.parse import urlsplit

from baton.rpc.option_values import OptionError


def check_origin(origin: str) -> None:
    """Raise OptionError for a text that no browser sends as an origin, and that would have no effect."""
    parts = urlsplit(origin)
    if origin in ("*", "null") or (parts.scheme and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}".lower()):
        return
    raise OptionError(
        f"cors_origins: {origin!r} is no origin; it must be * or scheme://host[:port] in lower case, without a path"
    )
