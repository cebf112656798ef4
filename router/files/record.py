"""The description of a stored file."""

import time
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import NewType

import orjson
from pydantic import TypeAdapter

from baton.router.auth.api_key import ApiKey

TenantId = NewType("TenantId", str)  # in hexadecimal: the name of the tenant's folder


def tenant_of(key: ApiKey | None) -> TenantId:
    """Return the tenant of a client with this API key. All clients without a key are one tenant."""
    name = "" if key is None else key.tenant
    return TenantId(blake2b(name.encode(), digest_size=16, person=b"baton-files").hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A stored file; times in Unix seconds."""

    id: str
    filename: str  # the client's; never a path here
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None

    @property
    def is_expired(self) -> bool:
        """Whether the file counts as deleted."""
        return self.expires_at is not None and time.time() >= self.expires_at

    def encoded(self) -> bytes:
        """Return the record as it is stored."""
        return orjson.dumps(asdict(self))

    def body(self) -> dict[str, object]:
        """Return OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "expires_at": self.expires_at,
        }


_ADAPTER = TypeAdapter(FileRecord)


def decode(content: bytes) -> FileRecord:
    """Return a stored record. Raises ValueError."""
    return _ADAPTER.validate_json(content)
