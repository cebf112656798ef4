"""API keys: a router stores the digest and the limits of a key, never the key.

A key is 256 random bits, made by `new_key`. Its plain SHA-256 is therefore safe to store: it cannot be brute-forced,
while a slow password hash would cost every request milliseconds. The time of a lookup leaks at most the beginning of a
digest, and keys cannot be chosen by their digests.
"""

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256

KEY_PREFIX = "sk-baton-"  # makes leaked keys recognisable
KEY_BYTES = 32
DIGEST_PREFIX = "sha256:"
HEX_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key and its limits."""

    name: str  # appears in logs
    digest: bytes  # SHA-256 of the key
    priority: int = 0  # of its requests, which may ask to be less urgent; lower is served earlier
    max_inflight: int | None = None  # completions that wait or are generated; None: no limit
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and outputs
    cache_scope: str | None = None  # keys of one scope share cached prompts; None: the key shares none
    max_pinned_fraction: float | None = None  # of a worker's KV blocks, for its pins; None: the worker's limit
    expires_s: float | None = None  # Unix time from which the key is refused
    is_admin: bool = False  # it may load adapters, clear the caches of all tenants, and use the console

    @property
    def tenant(self) -> str:
        """Name of the tenant whose cached prompts its requests find. Scopes and key names cannot collide."""
        return f"key:{self.name}" if self.cache_scope is None else f"scope:{self.cache_scope}"

    @property
    def is_metered(self) -> bool:
        """Whether the key has a limit."""
        return any(limit is not None for limit in (self.max_inflight, self.requests_per_minute, self.tokens_per_minute))


def new_key() -> str:
    """Return a new random key."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: bytes) -> bytes:
    """Return the SHA-256 of a key."""
    return sha256(key).digest()


def hidden(key: str) -> str:
    """Return a key in a form that is safe in a process's flags: `sha256:` and its hex digest. Idempotent."""
    if is_hidden(key):
        return key
    return DIGEST_PREFIX + digest_of(key.encode()).hex()


def is_hidden(text: str) -> bool:
    """Return whether a text is a key's digest and not a key."""
    return text.startswith(DIGEST_PREFIX) and HEX_DIGEST.fullmatch(text, len(DIGEST_PREFIX)) is not None


def unnamed_key(text: str, is_admin: bool = False) -> ApiKey:
    """Return the key of a digest from `hidden`. Its name is derived from the digest, the same at all routers."""
    digest = bytes.fromhex(text.removeprefix(DIGEST_PREFIX))
    return ApiKey(name=f"key-{sha256(digest).hexdigest()[:8]}", digest=digest, is_admin=is_admin)
