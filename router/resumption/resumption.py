"""Identity and position of a request that a client continues at another router after the loss of the first.

A request is its tokens. A client knows how many output tokens of each completion it has (`Position`). Decode workers
remember the tokens under a key that every router derives from the request in the same way (`Resumption`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Position:
    """A client's position in its stream: the number of output tokens that it has of each completion."""

    counts: tuple[int, ...]  # by completion, numbered consecutively over several prompts
    digest: str | None = None  # 8 hexadecimal digits, of these tokens; None: unknown

    def __str__(self) -> str:
        """Return the position as in event ids and headers: `17,4,0:77ab01cd`."""
        return f"{','.join(map(str, self.counts))}:{self.digest}"

    def agrees_with(self, checksums: Sequence[int]) -> bool:
        """Return whether the client has the tokens with these checksums, one per completion."""
        return self.digest in (None, _digest(checksums))


def checksum(token_ids: Sequence[int], earlier: int = 0) -> int:
    """Return the checksum of a completion's tokens. `earlier`: the checksum of the tokens in front of them."""
    return crc32(struct.pack(f"<{len(token_ids)}I", *token_ids), earlier)


def _digest(checksums: Sequence[int]) -> str:
    return f"{checksum(checksums):08x}"


class OutputTally:
    """Number and checksum of each completion's output tokens."""

    def __init__(self, num_completions: int) -> None:
        self._counts = [0] * num_completions
        self._checksums = [0] * num_completions

    def add(self, index: int, token_ids: Sequence[int]) -> None:
        """Count further tokens of a completion."""
        self._counts[index] += len(token_ids)
        self._checksums[index] = checksum(token_ids, self._checksums[index])

    def position(self) -> Position:
        """Return the position after the tokens counted so far."""
        return Position(tuple(self._counts), _digest(self._checksums))

    def has_reached(self, position: Position) -> bool:
        """Return whether the position's numbers of tokens have been counted."""
        return tuple(self._counts) == position.counts

    def is_at(self, position: Position) -> bool:
        """Return whether the counted tokens are the position's, as far as its digest shows."""
        here = self.position()
        return here.counts == position.counts and position.digest in (None, here.digest)


@dataclass(frozen=True, slots=True)
class Resumption:
    """Identity of a resumable request, the same at every router."""

    digest: bytes  # 32 bytes
    position: Position | None = None  # at which the client resumes; None: a new request

    @classmethod
    def of(cls, identity: str, request_id: str, body: bytes | bytearray, position: Position | None) -> Self:
        """Return the identity of a client's request. No client can name another client's request."""
        digest = blake2b(digest_size=32, person=b"baton-resume")
        for part in (identity.encode(), request_id.encode(), body):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return cls(digest.digest(), position)

    def key(self, place: int) -> bytes:
        """Return the workers' key for one of the request's prompts; each completion appends its index."""
        return self.digest[:16] + place.to_bytes(4, "little")

    def seed(self, place: int) -> int:
        """Return the seed of a prompt for which the request has none: 63 bits."""
        derived = blake2b(self.digest[16:] + place.to_bytes(4, "little"), digest_size=8).digest()
        return int.from_bytes(derived, "little") >> 1


@dataclass(frozen=True, slots=True)
class CompletionStart:
    """Point at which a completion continues."""

    num_seen: int  # output tokens that the client has
    token_ids: tuple[int, ...] = ()  # remembered output, which is not generated again
    finish_reason: int = 0  # the protocol's number, if that output is complete; 0: it is not
    fingerprint: str = ""  # of the worker that generated it: another model must not continue it
