"""The API keys that the router accepts, and the paths that need none."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from baton.router.auth.api_key import ApiKey, digest_of
from baton.router.auth.cache_secret import CacheSecret, Tenant
from baton.router.auth.client import ANYBODY, Client
from baton.router.auth.key_meter import KeyMeter
from baton.router.auth.keys_file import InvalidKeysFile, KeysFile
from baton.rpc.status import Unauthenticated

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0  # least time between two looks whether the file is another


class KeyRing:
    """Owns the clients by their keys' digests. For one thread.

    The file is looked at when a key is, so that no key is taken that left the file a second ago. It is read there and
    then: a thousand keys take some 100 ms, once for each change.
    """

    def __init__(
        self,
        keys: Sequence[ApiKey],
        file: KeysFile | None,
        secret: CacheSecret | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keys`: beside those of the file; `secret`: of the tenants' cache salts, None: all keys share their caches.

        Raises InvalidKeysFile.
        """
        self._keys = tuple(keys)
        self._file = file
        self._secret = secret
        self._clock = clock
        self._meters: dict[str, KeyMeter] = {}  # by the keys' names
        self._clients: dict[bytes, Client] = {}
        self._looked_s = clock()
        self._take(file.read() if file is not None else ())

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, digest: bytes) -> Client | None:
        """The client with the key of this digest; None if there is none (any more)."""
        if self._file is not None and self._clock() - self._looked_s >= LOOK_INTERVAL_S:
            self._look(self._file)
        client = self._clients.get(digest)
        if client is None or client.key is None:
            return None
        expires_s = client.key.expires_s
        return client if expires_s is None or time.time() < expires_s else None

    def _look(self, file: KeysFile) -> None:
        """Takes the file's keys if it is another; of one that is broken nothing, and the keys stay."""
        self._looked_s = self._clock()
        if not file.has_changed():
            return
        try:
            self._take(file.read())
        except InvalidKeysFile as error:
            logger.error("the API keys stay as they are: %s", error)
        else:
            logger.info("%d API keys are taken from now on", len(self))

    def _take(self, keys: Iterable[ApiKey]) -> None:
        """Exactly these, and those that are no file's. A key's counts go on under its name."""
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


OPEN_PATHS = frozenset({"/health", "/ping", "/ready"})  # for load balancers; they tell nothing of the workers
OPERATIONS_PATHS = frozenset(
    {"/metrics", "/workers", "/pools", "/version", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
)  # for who runs the router


class Gate:
    """Knows the clients by what they show."""

    def __init__(self, keys: KeyRing | None, protect_operations: bool = False) -> None:
        """`keys` None: everybody may ask everything."""
        self._keys = keys
        self._open_paths = OPEN_PATHS if protect_operations else OPEN_PATHS | OPERATIONS_PATHS

    def client(self, headers: Mapping[str, str]) -> Client:
        """Who shows these headers, named in lower case. Raises Unauthenticated, whose text repeats nothing of them."""
        if self._keys is None:
            return ANYBODY
        scheme, _, key = headers.get("authorization", "").strip(" \t").partition(" ")
        key = key.strip(" \t")
        if not key or scheme.lower() != "bearer":
            raise Unauthenticated("an API key is needed; send it as 'authorization: Bearer KEY'")
        # Headers are read as Latin-1, so these are the bytes that came.
        client = self._keys.find(digest_of(key.encode("latin-1", "replace")))
        if client is None:
            raise Unauthenticated("the API key is not known here, or is no longer valid")
        return client

    def is_open(self, path: str) -> bool:
        """Whether anybody may ask for a path. A path that nobody knows is not open."""
        return self._keys is None or path in self._open_paths
