"""The secret from which the cache salts of tenants are derived.

A salt is a MAC of the tenant's name and the request's own salt. A client that knows a tenant's name but not the secret
cannot compute the hashes under which workers keep the tenant's prompts.

All routers of a cluster need the same secret, otherwise a prompt that was cached through one router is not found
through another. It comes from their options. By default the routers of a registry agree on one, and a router without a
registry has its own.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b, sha256

from baton.membership.registry.base import RegistryLost, SharedText
from baton.membership.registry.factory import open_shared_text

logger = logging.getLogger(__name__)

SECRET_BYTES = 32
REGISTRY_NAME = "cache-secret"
CHECK_INTERVAL_S = 10.0  # between two reads of the registry's secret


def new_cache_secret() -> str:
    """Return a random secret."""
    return secrets.token_urlsafe(SECRET_BYTES)


class CacheSecret:
    """The secret in use. A change of it only costs cache hits."""

    def __init__(self, given: str | None = None) -> None:
        """`given`: the secret in the router's options; None: a random one, until the registry has another."""
        self.is_given = given is not None
        self._text = given or new_cache_secret()
        self._key = _key(self._text)

    def salt(self, tenant: str, own: str) -> str:
        """Return the cache salt of a tenant's request with the request's salt `own`; unique for each pair."""
        digest = blake2b(digest_size=16, key=self._key, person=b"baton-tenant")
        for part in (tenant, own):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()

    async def agree(self, shared: SharedText) -> None:
        """Adopt the registry's secret, or store this one if it has none. Keeps this one if the registry is lost."""
        try:
            text = await shared.agree(self._text)
        except RegistryLost as error:
            logger.debug("%s: the cache secret is unchanged: %s", shared.name, error)
            return
        if text != self._text:
            self._text, self._key = text, _key(text)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One or several keys whose requests share cached prompts."""

    name: str
    secret: CacheSecret

    def salt(self, own: str) -> str:
        """Return the cache salt of a request with the salt `own`."""
        return self.secret.salt(self.name, own)


@asynccontextmanager
async def agreed(secret: CacheSecret | None, registry: str | None) -> AsyncIterator[None]:
    """Keep the secret equal to that of the registry's other routers for the context, unless an option sets it."""
    if secret is None or secret.is_given or registry is None:
        yield
        return
    shared = open_shared_text(registry, REGISTRY_NAME)
    await secret.agree(shared)  # before the first request
    keeping = asyncio.create_task(_keep_agreed(secret, shared), name="cache secret")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await shared.close()


async def _keep_agreed(secret: CacheSecret, shared: SharedText) -> None:
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        await secret.agree(shared)


def _key(text: str) -> bytes:
    return sha256(text.encode()).digest()
