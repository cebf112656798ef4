"""The directory that the URL of a KV store names."""

from urllib.parse import unquote, urlsplit

from baton.settings.nixl_store import parse_nixl_store
from baton.settings.values import OptionError


def store_directory(url: str) -> str | None:
    """Return the path of a store in a directory; None for one at a server. Raises OptionError."""
    nixl = parse_nixl_store(url)
    if nixl is not None:
        return nixl.path if nixl.is_directory else None
    if not url.startswith("file://"):
        return None if "://" in url else url
    parts = urlsplit(url)
    path = unquote(parts.path)
    is_local = parts.netloc in ("", "localhost") and not (parts.query or parts.fragment)
    if not is_local or not path.strip("/") or "\0" in path:
        raise OptionError("KV store: a file:// URL is file:///PATH")
    return path
