"""Clients of the router, authenticated by their API keys, or anonymous if the router needs none."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from baton.router.auth.api_key import ApiKey, digest_of
from baton.router.auth.cache_secret import CacheSecret, Tenant
from baton.router.auth.key_meter import NOTHING, KeyMeter
from baton.router.auth.keys_file import InvalidKeysFile, KeysFile, Signature
from baton.router.request_context import INT32_MAX
from baton.rpc.background_check import BackgroundCheck
from baton.rpc.status import Forbidden, Unauthenticated

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0  # minimum time between two checks of the key file for changes


@dataclass(frozen=True, slots=True)
class Client:
    """The client's key, its meter and its tenant."""

    key: ApiKey | None = None  # None: anonymous
    meter: KeyMeter | None = None  # None: the key has no limits
    tenant: Tenant | None = None  # restricts cache hits to the tenant's prompts; None: no restriction
    is_deferred: bool = False  # its requests are those of a batch

    @property
    def fairness_key(self) -> str | None:
        """Key by which its requests take turns in the queue; None: the request has its own."""
        return None if self.key is None else self.key.name

    def priority(self, wanted: int) -> int:
        """Return a request's priority: its key's plus `wanted`, if that is positive (less urgent)."""
        if self.is_deferred:
            return INT32_MAX
        return wanted if self.key is None else min(INT32_MAX, self.key.priority + max(0, wanted))

    def cache_salt(self, own: str) -> str:
        """Return the cache salt of a request with the salt `own`. It reveals nothing about the key to workers."""
        return own if self.tenant is None else self.tenant.salt(own)

    @property
    def tenant_id(self) -> str:
        """Id of the tenant at workers, the same for every salt of a request; "" for anonymous clients."""
        if self.key is None:
            return ""
        return digest_of(self.key.tenant.encode()).hex() if self.tenant is None else self.tenant.salt("")

    @property
    def owner(self) -> str:
        """Id of the tenant at routers, the same for any secret for cache salts; "" for anonymous clients."""
        return "" if self.key is None else digest_of(self.key.tenant.encode()).hex()

    def check_admin(self) -> None:
        """Raise Forbidden if there are keys, and the client's is not an administrator's."""
        if self.key is not None and not self.key.is_admin:
            raise Forbidden(f"the API key {self.key.name} may not do this; in the file of keys, it needs `admin: true`")

    def begin(self) -> None:
        """Count a request. Raises KeyLimitReached."""
        if self.meter is not None:
            self.meter.begin()

    def begin_upload(self) -> None:
        """Count a request whose body follows. Raises KeyLimitReached."""
        if self.meter is not None:
            self.meter.begin_upload()

    def end_upload(self) -> None:
        """Uncount a request of `begin_upload`."""
        if self.meter is not None:
            self.meter.end_upload()

    def hold(self, num_completions: int) -> "Held":
        """Return a context manager that holds completions in flight. Entering it raises as `KeyMeter.enter`."""
        return NOTHING_HELD if self.meter is None else Held(self.meter, num_completions)

    def charge(self, num_tokens: int) -> None:
        """Charge the key for tokens of a prompt or an output."""
        if self.meter is not None:
            self.meter.charge(num_tokens)

    def headers(self) -> Mapping[str, str]:
        """Return the response headers with the key's limits."""
        return NOTHING if self.meter is None else self.meter.headers()


class Held:
    """The completions of one request that count as in flight for its key."""

    def __init__(self, meter: KeyMeter | None, num_completions: int) -> None:
        self._meter = meter
        self._num_completions = num_completions

    async def __aenter__(self) -> None:
        if self._meter is not None:
            self._meter.enter(self._num_completions)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._meter is not None:
            self._meter.leave(self._num_completions)


ANONYMOUS = Client()
NOTHING_HELD = Held(None, 0)


class KeyRing:
    """Clients by the digests of their keys. Not thread-safe.

    Each lookup checks the file for changes, at most once a second, so a removed key is refused within a second. The
    lookup waits for the check up to `background_check.MAX_WAIT_S`: a thousand keys take some 100 ms, once per change.
    If the file's file system hangs or the file cannot be read, the keys are unchanged until it can be.
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
        self._check = None if file is None else BackgroundCheck("API keys", partial(self._read_if_changed, file))
        self._secret = secret
        self._clock = clock
        self._meters: dict[str, KeyMeter] = {}  # by the keys' names
        self._clients: dict[bytes, Client] = {}
        self._digests: dict[str, bytes] = {}  # by the keys' names
        self._checked_s = clock()
        self._logged: tuple[Signature | None, str] | None = None  # file and error; None: the last read succeeded
        self._in_file: Sequence[ApiKey] = [] if file is None else file.read()  # replaced by the check's thread
        self._in_use: Sequence[ApiKey] = self._in_file  # the version in `_clients`
        self._take(self._in_file)

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, digest: bytes) -> Client | None:
        """Return the client with the key of this digest; None if it is unknown or expired."""
        self._refresh()
        return self._valid(digest)

    def named(self, name: str) -> Client | None:
        """Return the client with the key of this name; None if it is unknown or expired."""
        self._refresh()
        digest = self._digests.get(name)
        return None if digest is None else self._valid(digest)

    def _refresh(self) -> None:
        """Check the file for changes if that is due, and use its current version."""
        if self._check is not None and self._clock() - self._checked_s >= CHECK_INTERVAL_S:
            self._checked_s = self._clock()
            self._check.run()
        if (in_file := self._in_file) is not self._in_use:
            self._in_use = in_file
            self._take(in_file)
            logger.info("%d API keys are in use now", len(self))

    def _valid(self, digest: bytes) -> Client | None:
        client = self._clients.get(digest)
        if client is None or client.key is None:
            return None
        expires_s = client.key.expires_s
        return client if expires_s is None or time.time() < expires_s else None

    def _read_if_changed(self, file: KeysFile) -> None:
        """Read the file if it has changed. An invalid file leaves the keys unchanged. Called in the check's thread."""
        if not file.has_changed():
            return
        signature = file.signature()
        try:
            self._in_file = file.read()
            self._logged = None
        except InvalidKeysFile as error:
            if self._logged != (signature, str(error)):  # a file that cannot be opened is tried again at each check
                self._logged = (signature, str(error))
                logger.error("the API keys are unchanged: %s", error)

    def _take(self, keys: Iterable[ApiKey]) -> None:
        """Replace the file's keys. The counts of a key continue under its name, also if a version lacks the key."""
        by_digest = {key.digest: key for key in (*self._keys, *keys)}
        meters = {name: meter for name, meter in self._meters.items() if meter.is_used}
        for key in by_digest.values():
            if not key.is_metered and key.name not in self._meters:
                continue
            meter = meters[key.name] = self._meters.get(key.name) or KeyMeter(key, self._clock)
            meter.renew(key)
        self._meters = meters
        self._clients = {
            digest: Client(key, meters.get(key.name), self._tenant(key)) for digest, key in by_digest.items()
        }
        self._digests = {key.name: digest for digest, key in by_digest.items()}

    def _tenant(self, key: ApiKey) -> Tenant | None:
        return None if self._secret is None else Tenant(key.tenant, self._secret)


OPEN_PATHS = frozenset(
    {"/", "/console", "/docs", "/redoc", "/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready"}
)  # for load balancers and browsers; they reveal nothing about the workers
OPEN_PREFIXES = ("/console/assets/", "/docs/assets/")  # files of pages
OPERATIONS_PATHS = frozenset({"/metrics", "/workers", "/pools", "/version", "/openapi.json"})  # for operators


def sent_key(headers: Mapping[str, str]) -> str:
    """Return the API key in headers with names in lower case, a bearer token or Anthropic's `x-api-key`; "": none."""
    scheme, _, token = headers.get("authorization", "").strip(" \t").partition(" ")
    token = token.strip(" \t")
    if token and scheme.lower() == "bearer":
        return token
    return headers.get("x-api-key", "").strip(" \t")


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
        key = sent_key(headers)
        if not key:
            raise Unauthenticated("an API key is required; send it as 'authorization: Bearer KEY' or 'x-api-key: KEY'")
        # Headers are decoded as Latin-1, so these are the original bytes.
        client = self._keys.find(digest_of(key.encode("latin-1", "replace")))
        if client is None:
            raise Unauthenticated("the API key is unknown or no longer valid")
        return client

    def named(self, name: str | None) -> Client:
        """Return the client whose key has this name; None: the anonymous one. Raises Unauthenticated."""
        if self._keys is None and name is None:
            return ANONYMOUS
        client = None if self._keys is None or name is None else self._keys.named(name)
        if client is None:
            raise Unauthenticated("the API key is unknown or no longer valid")
        return client

    def is_open(self, path: str) -> bool:
        """Return whether a path needs no key. Unknown paths need one."""
        return self._keys is None or path in self._open_paths or path.startswith(OPEN_PREFIXES)
