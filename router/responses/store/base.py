"""The interface of response stores.

A stored response has the id of the response that it continues, and only its own items: a conversation of many turns
takes space linear in its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NewType, Protocol

from baton.router.auth.api_key import ApiKey
from baton.rpc.status import Unavailable

MAX_TURNS = 1024  # of a conversation
MAX_CHAIN_BYTES = 1 << 22  # of the records of one conversation, compressed; also of one record
RECORD_OVERHEAD = 256  # bytes that a record takes in addition to its content
TENANT_SHARE = 4  # with API keys, a tenant may have 1/4 of the store

TenantId = NewType("TenantId", str)  # in hexadecimal


class StoreLost(Unavailable):
    """The store cannot be reached now."""


@dataclass(frozen=True, slots=True)
class Record:
    """One stored response."""

    previous_id: str | None  # of the response that it continues
    content: bytes  # compressed; see `StoredResponse`

    @property
    def num_bytes(self) -> int:
        """Size in the store."""
        return len(self.content) + RECORD_OVERHEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Bounds of a store."""

    ttl_s: float  # after the creation of a response, or after the last one that continued it
    max_bytes: int
    tenant_bytes: int


@dataclass(frozen=True, slots=True)
class Chain:
    """The records of a conversation, from its first response."""

    records: Sequence[Record] = ()
    missing_id: str | None = None  # the first id, from the end, that is not stored; there are no records then
    is_too_long: bool = False  # over MAX_TURNS or MAX_CHAIN_BYTES; there are no records then


class ResponseStore(Protocol):
    """Records by tenant and response id. Each method except `close` raises StoreLost."""

    async def put(self, tenant: TenantId, response_id: str, record: Record) -> bool:
        """Store a record; the least recently used ones make room. Return False if it is larger than the store."""
        ...

    async def get(self, tenant: TenantId, response_id: str) -> Record | None:
        """Return a record; None: there is none."""
        ...

    async def chain(self, tenant: TenantId, response_id: str) -> Chain:
        """Return the conversation that ends with a response, and renew its time."""
        ...

    async def delete(self, tenant: TenantId, response_id: str) -> bool:
        """Delete a record. Return whether there was one."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


def tenant_of(key: ApiKey | None) -> TenantId:
    """Return the tenant of a client with this API key. All clients without a key are one tenant."""
    name = "" if key is None else key.tenant
    return TenantId(blake2b(name.encode(), digest_size=16, person=b"baton-responses").hexdigest())
