"""Whom a request is from: the holder of an API key, or anybody where a router asks for none."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from baton.router.auth.api_key import ApiKey
from baton.router.auth.cache_secret import Tenant
from baton.router.auth.key_meter import NOTHING, KeyMeter

INT32_MAX = (1 << 31) - 1  # what a worker is told of priorities


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks, what that changes for the request, and where it is counted."""

    key: ApiKey | None = None  # None: anybody
    meter: KeyMeter | None = None  # None: nothing is counted
    tenant: Tenant | None = None  # whose cached prompts the request finds; None: all that have its own cache salt

    @property
    def fairness_key(self) -> str | None:
        """Whose turn it is when requests wait; None: the request says so itself."""
        return None if self.key is None else self.key.name

    def priority(self, wanted: int) -> int:
        """The priority of a request: its key's, or what it asks for counted from there, if that is less urgent."""
        return wanted if self.key is None else min(INT32_MAX, self.key.priority + max(0, wanted))

    def cache_salt(self, own: str) -> str:
        """Return the cache salt of a request that has this one of its own; it tells workers nothing of any key."""
        return own if self.tenant is None else self.tenant.salt(own)

    def begin(self) -> None:
        """A request came. Raises KeyLimitReached."""
        if self.meter is not None:
            self.meter.begin()

    def begin_upload(self) -> None:
        """Count a request whose body is to come. Raises KeyLimitReached."""
        if self.meter is not None:
            self.meter.begin_upload()

    def end_upload(self) -> None:
        """Count one such request less."""
        if self.meter is not None:
            self.meter.end_upload()

    def hold(self, num_choices: int) -> "Held":
        """A context manager for the time in which so many choices are in flight; entering it raises as the meter."""
        return NOTHING_HELD if self.meter is None else Held(self.meter, num_choices)

    def charge(self, num_tokens: int) -> None:
        """So many tokens were read or generated for it."""
        if self.meter is not None:
            self.meter.charge(num_tokens)

    def headers(self) -> Mapping[str, str]:
        """What an answer says of the limits."""
        return NOTHING if self.meter is None else self.meter.headers()


class Held:
    """Choices of one request that its key has in flight."""

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


ANYBODY = Client()
NOTHING_HELD = Held(None, 0)
