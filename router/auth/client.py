"""The client of a request: the holder of an API key, or anonymous if the router needs none."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from baton.router.auth.api_key import ApiKey
from baton.router.auth.cache_secret import Tenant
from baton.router.auth.key_meter import NOTHING, KeyMeter

INT32_MAX = (1 << 31) - 1  # range of priorities in the worker protocol


@dataclass(frozen=True, slots=True)
class Client:
    """The client's key, its meter and its tenant."""

    key: ApiKey | None = None  # None: anonymous
    meter: KeyMeter | None = None  # None: the key has no limits
    tenant: Tenant | None = None  # restricts cache hits to the tenant's prompts; None: no restriction

    @property
    def fairness_key(self) -> str | None:
        """Key by which its requests take turns in the queue; None: the request has its own."""
        return None if self.key is None else self.key.name

    def priority(self, wanted: int) -> int:
        """Return a request's priority: its key's plus `wanted`, if that is positive (less urgent)."""
        return wanted if self.key is None else min(INT32_MAX, self.key.priority + max(0, wanted))

    def cache_salt(self, own: str) -> str:
        """Return the cache salt of a request with the salt `own`. It reveals nothing about the key to workers."""
        return own if self.tenant is None else self.tenant.salt(own)

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

    def hold(self, num_choices: int) -> "Held":
        """Return a context manager that holds completions in flight. Entering it raises as `KeyMeter.enter`."""
        return NOTHING_HELD if self.meter is None else Held(self.meter, num_choices)

    def charge(self, num_tokens: int) -> None:
        """Charge the key for tokens of a prompt or an output."""
        if self.meter is not None:
            self.meter.charge(num_tokens)

    def headers(self) -> Mapping[str, str]:
        """Return the response headers with the key's limits."""
        return NOTHING if self.meter is None else self.meter.headers()


class Held:
    """The completions of one request that count as in flight for its key."""

    def __init__(self, meter: KeyMeter | None, num_choices: int) -> None:
        self._meter = meter
        self._num_choices = num_choices

    async def __aenter__(self) -> None:
        if self._meter is not None:
            self._meter.enter(self._num_choices)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._meter is not None:
            self._meter.leave(self._num_choices)


ANONYMOUS = Client()
NOTHING_HELD = Held(None, 0)
