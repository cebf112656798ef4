"""Bounds on the bytes of request bodies in the router's memory.

Bytes are counted as they arrive, regardless of `content-length`, until the prompt has been parsed. Compressed bodies
count with their decompressed size. A gRPC message counts from its arrival to the end of its call, and the tokens of an
embedding request count to its end. Clients are API keys; without keys, addresses.
"""

from ipaddress import IPv6Address, IPv6Network

from prometheus_client import CollectorRegistry, Gauge

from baton.router.auth.client import Client
from baton.router.config import RouterConfig
from baton.router.errors import KeyLimitReached, Overloaded
from baton.router.metrics.metrics import PREFIX

RETRY_AFTER_S = 1
NETWORK_BITS = 64  # IPv6 prefix that counts as one client: providers assign a whole /64 to a customer


def make_body_budget(config: RouterConfig, registry: CollectorRegistry, model_name: str) -> "BodyBudget":
    """Return the budget of a router's options, raised to fit one body of the largest size, and register its gauge."""
    client_bytes = max(config.max_client_body_bytes_in_flight, config.max_body_bytes)
    budget = BodyBudget(max(config.max_body_bytes_in_flight, 2 * config.max_body_bytes), client_bytes)
    name, text = f"{PREFIX}router_body_bytes", "Bytes of request bodies that are being received or wait to be parsed."
    gauge = Gauge(name, text, ["model_name"], registry=registry)
    gauge.labels(model_name).set_function(lambda: budget.num_bytes)
    return budget


class BodyBudget:
    """Byte counts, in total and by client."""

    def __init__(self, max_bytes: int, max_client_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._max_client_bytes = max_client_bytes
        self._held: dict[str, int] = {}  # by client

    def begin(self, client: Client, address: str) -> "Upload":
        """Return the upload of a request whose body follows. Raises KeyLimitReached."""
        client.begin_upload()
        return Upload(self, client, address)

    def take(self, holder: str, num_bytes: int, is_key: bool) -> None:
        """Count bytes. Raises Overloaded, and counts nothing, if they exceed a bound.

        Once half of the router's budget is used, each client gets an equal share, so a few clients cannot exhaust it.
        """
        held, total = self._held.get(holder, 0) + num_bytes, self.num_bytes + num_bytes
        if held > self._max_client_bytes:
            text = f"over the limit of {self._max_client_bytes} bytes of request bodies in flight"
            if is_key:
                raise KeyLimitReached(f"the API key is {text}", RETRY_AFTER_S, "requests")
            raise Overloaded(f"the client's address is {text}", RETRY_AFTER_S)
        half = self._max_bytes >> 1
        if total > half and (total > self._max_bytes or held * len(self._held) > half):
            text = f"the router holds {self.num_bytes} bytes of request bodies, of at most {self._max_bytes}"
            raise Overloaded(text, RETRY_AFTER_S)
        self._set(holder, held)
        self.num_bytes = total

    def give_back(self, holder: str, num_bytes: int) -> None:
        """Subtract bytes of a client."""
        self.num_bytes -= num_bytes
        self._set(holder, self._held[holder] - num_bytes)

    def _set(self, holder: str, num_bytes: int) -> None:
        """Set a client's count. A client without bytes is removed and gets no share."""
        if num_bytes:
            self._held[holder] = num_bytes
        else:
            self._held.pop(holder, None)


class Upload:
    """One request's bytes in the budget, and its slot in the in-flight limit of its API key."""

    def __init__(self, budget: BodyBudget, client: Client, address: str) -> None:
        self._budget = budget
        self._client = client
        self._is_key = client.fairness_key is not None
        self.holder = client.fairness_key or _network(address)  # the client's name in the budget
        self._num_bytes = 0
        self._has_slot = True

    @property
    def num_bytes(self) -> int:
        """Number of bytes that count now."""
        return self._num_bytes

    def add(self, num_bytes: int) -> None:
        """Count received bytes. Raises Overloaded."""
        self._budget.take(self.holder, num_bytes, self._is_key)
        self._num_bytes += num_bytes

    def end(self) -> None:
        """Return the slot, once the body has been parsed."""
        if self._has_slot:
            self._has_slot = False
            self._client.end_upload()

    def release(self, num_kept: int = 0) -> None:
        """Return the slot and the bytes, once the body has been freed.

        `num_kept`: bytes that the request holds instead of the body and that count from now on. Raises Overloaded, and
        returns no bytes, if there is no room for so many.
        """
        self.end()
        if num_kept > self._num_bytes:
            self.add(num_kept - self._num_bytes)
        elif num_kept < self._num_bytes:
            self._budget.give_back(self.holder, self._num_bytes - num_kept)
            self._num_bytes = num_kept


def _network(address: str) -> str:
    """Return the identity of a client without a key: its IPv4 address or its IPv6 /64 network."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, NETWORK_BITS), strict=False))
