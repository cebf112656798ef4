"""API keys: what a router knows of one, which is all but the key itself.

A key is 256 random bits, made by `new_key`. So its plain SHA-256 may be kept and looked up: nobody finds by trying what
has so many values, while a password's slow hash would cost every request milliseconds. Looking a digest up tells by its
time at most how a digest begins, and nobody can choose keys by their digests.
"""

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256

KEY_PREFIX = "sk-baton-"  # so that a key that leaked is recognised as one
KEY_BYTES = 32
DIGEST_PREFIX = "sha256:"
HEX_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key as its operator entered it."""

    name: str  # stands in logs
    digest: bytes  # SHA-256 of the key
    priority: int = 0  # of its requests, unless they want to be less urgent; lower is served earlier
    max_inflight: int | None = None  # choices that wait or are generated; None: no limit of its own
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and outputs
    cache_scope: str | None = None  # keys of one scope find each other's prompts in caches; None: the key by itself
    expires_s: float | None = None  # Unix time from which on it is refused

    @property
    def tenant(self) -> str:
        """Whose cached prompts its requests find; a scope is never what a key's own name is."""
        return f"key:{self.name}" if self.cache_scope is None else f"scope:{self.cache_scope}"

    @property
    def is_metered(self) -> bool:
        """Whether it has a limit of its own."""
        return any(limit is not None for limit in (self.max_inflight, self.requests_per_minute, self.tokens_per_minute))


def new_key() -> str:
    """A key that nobody has."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return sha256(key).digest()


def hidden(key: str) -> str:
    """A key as it may stand in a process's flags: its digest. What is one already stays as it is."""
    if is_hidden(key):
        return key
    return DIGEST_PREFIX + digest_of(key.encode()).hex()


def is_hidden(text: str) -> bool:
    """Whether a text is a key's digest and not a key."""
    return text.startswith(DIGEST_PREFIX) and HEX_DIGEST.fullmatch(text, len(DIGEST_PREFIX)) is not None


def unnamed_key(text: str) -> ApiKey:
    """The key of a digest as `hidden` gives it; its name comes from the digest, so that all routers call it alike."""
    digest = bytes.fromhex(text.removeprefix(DIGEST_PREFIX))
    return ApiKey(name=f"key-{sha256(digest).hexdigest()[:8]}", digest=digest)
