"""URLs of KV stores behind NIXL's storage plugins."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from baton.settings.values import OptionError

FILE_PLUGINS = {"nixl-posix": "POSIX", "nixl-gds": "GDS", "nixl-gds-mt": "GDS_MT"}
OBJECT_SCHEME = "nixl-obj"
SECRETS = ("access_key", "secret_key", "session_token")


@dataclass(frozen=True, slots=True)
class NixlStoreUrl:
    """A plugin, its parameters, and where it keeps blocks: a directory, or a prefix in a bucket."""

    plugin: str
    path: str
    parameters: Mapping[str, str]

    @property
    def is_directory(self) -> bool:
        """Whether blocks are files of a directory."""
        return self.plugin != "OBJ"


def parse_nixl_store(url: str) -> NixlStoreUrl | None:
    """Return the parts of a store's URL; None for one without NIXL. Raises OptionError."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in (*FILE_PLUGINS, OBJECT_SCHEME):
        return None
    form = f"{scheme}://" + ("BUCKET[/PREFIX]" if scheme == OBJECT_SCHEME else "/PATH")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise OptionError(f"KV store: a {scheme}:// URL is {form}") from None
    has_nul = "\0" in unquote(parts.path)  # which no path of a system call may have
    if has_nul or parts.fragment or (not parts.netloc if scheme == OBJECT_SCHEME else not _has_path(parts)):
        raise OptionError(f"KV store: a {scheme}:// URL is {form}, with the plugin's parameters as ?NAME=VALUE")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "@" in parts.netloc or set(SECRETS) & set(parameters):
        raise OptionError("KV store: credentials of S3 belong into the environment, not into the URL")
    if scheme != OBJECT_SCHEME:
        return NixlStoreUrl(FILE_PLUGINS[scheme], unquote(parts.path), parameters)
    return NixlStoreUrl("OBJ", unquote(parts.path).strip("/"), {**parameters, "bucket": parts.netloc})


def _has_path(parts: SplitResult) -> bool:
    return parts.netloc in ("", "localhost") and bool(parts.path.strip("/"))
