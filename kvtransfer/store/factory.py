"""Opening of stores by their URLs, and of the one in host memory."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from baton.extras import CRYPTOGRAPHY, NIXL, OBSTORE
from baton.kvtransfer.store.block_source import FOLDER, BlockSource, store_folders
from baton.kvtransfer.store.bucket_address import BucketAddress
from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.shared_memory_directory import shared_memory_directory
from baton.kvtransfer.store.store import KVStore
from baton.settings.nixl_store import OBJECT_SCHEME, NixlStoreUrl, parse_nixl_store
from baton.settings.registry_url import RegistryUrl, parse_registry_url
from baton.settings.store_directory import store_directory
from baton.settings.values import OptionError

KINDS = (
    "a directory, file:///PATH, redis://HOST[:PORT][/DB], rediss://HOST[:PORT][/DB], s3://BUCKET[/PREFIX], "
    "nixl-posix:///PATH, nixl-gds:///PATH, nixl-gds-mt:///PATH or nixl-obj://BUCKET[/PREFIX]"
)
S3_OPTIONS = ("endpoint", "region")


def open_store(
    url: str,
    namespace: str,
    capacity_bytes: int,
    *,
    ttl_s: float | None = None,
    key_file: str | Path | None = None,
    name: str = "disk",
) -> KVStore:
    """Open the store at a URL, or in a directory. Servers are not contacted yet.

    `capacity_bytes`: of a directory; servers have their own limits. `ttl_s`: time to live of a block after its last
    use, in S3 after it was stored. `key_file`: of the key that encrypts the blocks, see `sealed`. `name`: of the tier,
    for a directory. Raises OptionError, StoreUnavailable for a directory that cannot be used, MissingExtra.
    """
    if key_file is None:
        return _open(url, namespace, capacity_bytes, ttl_s, name)
    CRYPTOGRAPHY.require("a KV store with a key file")
    from baton.kvtransfer.store.sealed import SealedStore, read_key_file, sealed_namespace

    key = read_key_file(key_file)
    namespace = sealed_namespace(namespace, key)
    return SealedStore(_open(url, namespace, capacity_bytes, ttl_s, name), namespace, key)


def open_host_store(namespace: str, capacity_bytes: int, ttl_s: float | None = None) -> KVStore:
    """Open the store in host memory that all workers of a namespace on this host share. Raises StoreUnavailable."""
    held = shared_memory_directory(namespace, capacity_bytes)
    try:
        return DirectoryStore(held.path, namespace, capacity_bytes, name="host", ttl_s=ttl_s, on_close=held.close)
    except BaseException:
        held.close()
        raise


def _open(url: str, namespace: str, capacity_bytes: int, ttl_s: float | None, name: str) -> KVStore:
    nixl = parse_nixl_store(url)
    if nixl is not None:
        return _open_nixl(nixl, namespace, capacity_bytes, ttl_s, name)
    path = _directory(url)
    if path is not None:
        return DirectoryStore(path / FOLDER, namespace, capacity_bytes, name=name, ttl_s=ttl_s)
    scheme = url.partition("://")[0]
    if scheme == "s3":
        return _open_s3(url, namespace, ttl_s)
    if scheme not in ("redis", "rediss"):
        raise OptionError(f"KV store: {scheme}:// is unknown; it may be {KINDS}")
    from baton.kvtransfer.store.redis_store import RedisStore  # its client is heavy, and few workers need it

    return RedisStore(_redis_url(url), namespace, ttl_s)


def _open_nixl(url: NixlStoreUrl, namespace: str, capacity_bytes: int, ttl_s: float | None, name: str) -> KVStore:
    NIXL.require("a KV store of NIXL")
    if not url.is_directory:
        from baton.kvtransfer.store.nixl_objects import NixlObjectStore

        return NixlObjectStore(url.path, namespace, url.parameters)
    from baton.kvtransfer.store.nixl_files import NixlFiles

    files = NixlFiles(url.plugin, url.parameters)
    try:
        return DirectoryStore(Path(url.path) / FOLDER, namespace, capacity_bytes, name=name, ttl_s=ttl_s, files=files)
    except BaseException:
        files.close()
        raise


def _redis_url(url: str) -> RegistryUrl:
    try:
        return parse_registry_url(url)
    except OptionError as error:
        raise OptionError(f"KV store: {str(error).removeprefix('registry: ')}") from None


def open_source(place: str) -> Sequence[BlockSource]:
    """Open the blocks of all namespaces in a store, to export them. `host`: those in this user's host memory.

    Raises OptionError, InvalidExport if there is no store, StoreUnavailable, MissingExtra.
    """
    scheme = place.partition("://")[0] if "://" in place else "file"
    if scheme in ("redis", "rediss"):
        from baton.kvtransfer.store.redis_blocks import RedisBlocks

        return [RedisBlocks(_redis_url(place))]
    if scheme == "s3":
        address = _s3_address(place)
        from baton.kvtransfer.store.s3_blocks import S3Blocks

        return [S3Blocks(address)]
    path = _directory(place)
    if scheme == OBJECT_SCHEME:
        raise OptionError("KV store: NIXL lists no objects; name the same bucket as s3://BUCKET[/PREFIX]")
    if path is None:
        raise OptionError(f"KV store: {scheme}:// is unknown; it may be host, {KINDS}")
    return store_folders(str(path))


def _directory(url: str) -> Path | None:
    """Return the path of a store in a directory; None for another one."""
    if not url:
        raise OptionError(f"KV store: it may be {KINDS}")
    path = store_directory(url)
    return None if path is None else Path(path)


def _open_s3(url: str, namespace: str, ttl_s: float | None) -> KVStore:
    address = _s3_address(url)
    from baton.kvtransfer.store.s3_store import S3Store

    return S3Store(address, namespace, ttl_s)


def _s3_address(url: str) -> BucketAddress:
    OBSTORE.require("a KV store at s3://")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise OptionError("KV store: an s3:// URL is s3://BUCKET[/PREFIX]") from None
    return BucketAddress(parts.netloc, unquote(parts.path).strip("/"), **_s3_options(parts))


def _s3_options(parts: SplitResult) -> dict[str, str]:
    if "@" in parts.netloc:
        raise OptionError("KV store: credentials of S3 belong into the environment, not into the URL")
    if not parts.netloc or parts.fragment:
        raise OptionError("KV store: an s3:// URL is s3://BUCKET[/PREFIX]")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in options.items():
        if name not in S3_OPTIONS:
            raise OptionError(f"KV store: {name} is unknown in an s3:// URL; known are {', '.join(S3_OPTIONS)}")
        if not value:
            raise OptionError(f"KV store: {name} is empty in the s3:// URL")
    endpoint = options.get("endpoint", "https://")
    if not endpoint.startswith(("http://", "https://")):
        raise OptionError("KV store: the endpoint in an s3:// URL is http://HOST[:PORT] or https://HOST[:PORT]")
    return options
