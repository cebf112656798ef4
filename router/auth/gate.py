"""The API keys that the router accepts, and the paths that need none."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from baton.router.auth.api_key import ApiKey, digest_of
from baton.router.auth.cache_secret import CacheSecret, Tenant
from baton.router.auth.client import ANONYMOUS, Client
from baton.router.auth.key_meter import KeyMeter
from baton.router.auth.keys_file import InvalidKeysFile, KeysFile
from baton.rpc.status import Unauthenticated

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0  # minimum time between two checks of the file for changes


class KeyRing:
    """Clients by the digests of their keys. Not thread-safe.

    Each lookup checks the file for changes, at most once a second, so a removed key is refused within a second. The
    file is read synchronously: a thousand keys take some 100 ms, once per change.
    """

    def __init__(
        self,
        keys: Sequence[ApiKey],
        file: KeysFile | None,
        secret: CacheSecret | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keys`: in addition to the file's. `secret`: for the tenants' cache salts; None: keys share cached prompts.

        Raises InvalidKeysFile.
        """
        self._keys = tuple(keys)
        self._file = file
        self._secret = secret
        self._clock = clock
        self._meters: dict[str, KeyMeter] = {}  # by the keys' names
        self._clients: dict[bytes, Client] = {}
        self._checked_s = clock()
        self._take(file.read() if file is not None else ())

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, digest: bytes) -> Client | None:
        """Return the client with the key of this digest; None if it is unknown or expired."""
        if self._file is not None and self._clock() - self._checked_s >= LOOK_INTERVAL_S:
            self._reload_if_changed(self._file)
        client = self._clients.get(digest)
        if client is None or client.key is None:
            return None
        expires_s = client.key.expires_s
        return client if expires_s is None or time.time() < expires_s else None

    def _reload_if_changed(self, file: KeysFile) -> None:
        """Reload the file if it has changed. An invalid file leaves the keys unchanged."""
        self._checked_s = self._clock()
        if not file.has_changed():
            return
        try:
            self._take(file.read())
        except InvalidKeysFile as error:
            logger.error("the API keys are unchanged: %s", error)
        else:
            logger.info("%d API keys are in use now", len(self))

    def _take(self, keys: Iterable[ApiKey]) -> None:
        """Replace the file's keys. The counts of a key continue under its name."""
        by_digest = {key.digest: key for key in (*self._keys, *keys)}
        meters: dict[str, KeyMeter] = {}
        for key in by_digest.values():
            if not key.is_metered and key.name not in self._meters:
                continue
            meter = meters[key.name] = self._meters.get(key.name) or KeyMeter(key, self._clock)
            meter.renew(key)
        self._meters = meters
        self._clients = {
            digest: Client(key, meters.get(key.name), self._tenant(key)) for digest, key in by_digest.items()
        }

    def _tenant(self, key: ApiKey) -> Tenant | None:
        return None if self._secret is None else Tenant(key.tenant, self._secret)


OPEN_PATHS = frozenset({"/health", "/ping", "/ready"})  # for load balancers; they reveal nothing about the workers
OPERATIONS_PATHS = frozenset(
    {"/metrics", "/workers", "/pools", "/version", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
)  # for operators


class Gate:
    """Authentication of requests by API key."""

    def __init__(self, keys: KeyRing | None, protect_operations: bool = False) -> None:
        """`keys`: None: no request needs a key."""
        self._keys = keys
        self._open_paths = OPEN_PATHS if protect_operations else OPEN_PATHS | OPERATIONS_PATHS

    def client(self, headers: Mapping[str, str]) -> Client:
        """Return the client of these headers, whose names are in lower case.

        Raises Unauthenticated; its message repeats nothing from the headers.
        """
        if self._keys is None:
            return ANONYMOUS
        scheme, _, key = headers.get("authorization", "").strip(" \t").partition(" ")
        key = key.strip(" \t")
        if not key or scheme.lower() != "bearer":
            raise Unauthenticated("an API key is required; send it as 'authorization: Bearer KEY'")
        # Headers are decoded as Latin-1, so these are the original bytes.
        client = self._keys.find(digest_of(key.encode("latin-1", "replace")))
        if client is None:
            raise Unauthenticated("the API key is unknown or no longer valid")
        return client

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no key. Unknown paths need one."""
        return self._keys is None or path in self._open_paths
