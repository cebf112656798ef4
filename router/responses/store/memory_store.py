"""Store in the memory of one router process."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from baton.router.responses.store.base import MAX_CHAIN_BYTES, MAX_TURNS, Chain, Record, StoreLimits, TenantId

Key = tuple[TenantId, str]


@dataclass(slots=True)
class _Entry:
    """A record and the end of its time."""

    record: Record
    expires_s: float


class MemoryStore:
    """Owns the records, in the order of their last use, which is also that of their expiry."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._by_tenant: dict[TenantId, OrderedDict[str, int]] = {}  # sizes by response id
        self._tenant_bytes: dict[TenantId, int] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Size of all records."""
        return self._num_bytes

    async def put(self, tenant: TenantId, response_id: str, record: Record) -> bool:
        """Store a record; the least recently used ones make room. Return False if it is larger than the store."""
        size, limits = record.num_bytes, self._limits
        if size > min(limits.tenant_bytes, limits.max_bytes, MAX_CHAIN_BYTES):
            return False
        self._drop_expired()
        self._remove((tenant, response_id))
        while self._tenant_bytes.get(tenant, 0) + size > limits.tenant_bytes:
            self._remove((tenant, next(iter(self._by_tenant[tenant]))))
        while self._num_bytes + size > limits.max_bytes:
            self._remove(next(iter(self._entries)))
        self._entries[tenant, response_id] = _Entry(record, self._clock() + limits.ttl_s)
        self._by_tenant.setdefault(tenant, OrderedDict())[response_id] = size
        self._tenant_bytes[tenant] = self._tenant_bytes.get(tenant, 0) + size
        self._num_bytes += size
        return True

    async def get(self, tenant: TenantId, response_id: str) -> Record | None:
        """Return a record; None: there is none."""
        self._drop_expired()
        entry = self._entries.get((tenant, response_id))
        return None if entry is None else entry.record

    async def chain(self, tenant: TenantId, response_id: str) -> Chain:
        """Return the conversation that ends with a response, and renew its time."""
        self._drop_expired()
        found: list[Record] = []
        keys: list[Key] = []
        num_bytes, current = 0, response_id
        while True:
            entry = self._entries.get((tenant, current))
            if entry is None:
                return Chain(missing_id=current)
            found.append(entry.record)
            keys.append((tenant, current))
            num_bytes += entry.record.num_bytes
            if len(found) > MAX_TURNS or num_bytes > MAX_CHAIN_BYTES:
                return Chain(is_too_long=True)
            if entry.record.previous_id is None:
                break
            current = entry.record.previous_id
        expires_s = self._clock() + self._limits.ttl_s
        for key in reversed(keys):
            self._entries[key].expires_s = expires_s
            self._entries.move_to_end(key)
            self._by_tenant[tenant].move_to_end(key[1])
        return Chain(tuple(reversed(found)))

    async def delete(self, tenant: TenantId, response_id: str) -> bool:
        """Delete a record. Return whether there was one."""
        self._drop_expired()
        return self._remove((tenant, response_id))

    async def close(self) -> None:
        """No-op: there are no connections."""

    def check_integrity(self) -> None:
        """Raise AssertionError if the sizes and the order by tenant do not belong to the records."""
        sizes = [(key, entry.record.num_bytes) for key, entry in self._entries.items()]
        assert self._num_bytes == sum(size for _, size in sizes) <= self._limits.max_bytes
        for tenant, own in self._by_tenant.items():
            assert list(own.items()) == [(key[1], size) for key, size in sizes if key[0] == tenant]
            assert self._tenant_bytes[tenant] == sum(own.values()) <= self._limits.tenant_bytes
        assert self._by_tenant.keys() == self._tenant_bytes.keys() == {key[0] for key, _ in sizes}

    def _drop_expired(self) -> None:
        now_s = self._clock()
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.expires_s > now_s:
                break
            self._remove(key)

    def _remove(self, key: Key) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        tenant, response_id = key
        size = self._by_tenant[tenant].pop(response_id)
        self._num_bytes -= size
        self._tenant_bytes[tenant] -= size
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant], self._tenant_bytes[tenant]
        return True
