"""What lets a client go on with a request at another router, after the loss of the one that had it.

A request is its tokens. A client knows how many output tokens of each choice it has (`Position`). Decode workers
remember the tokens by a key that every router computes alike from the request (`Resumption`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Position:
    """How far a client is with its stream: the output tokens that it has of each choice."""

    counts: tuple[int, ...]  # by choice, those of several prompts numbered through
    digest: str | None = None  # 8 hexadecimal digits of these tokens; None: the client does not know

    def __str__(self) -> str:
        """The position as it stands in events and headers: `17,4,0:77ab01cd`."""
        return f"{','.join(map(str, self.counts))}:{self.digest}"

    def agrees_with(self, checksums: Sequence[int]) -> bool:
        """Return whether the choices' first tokens, of which these are the checksums, are those that the client has."""
        return self.digest in (None, _digest(checksums))


def checksum(token_ids: Sequence[int], earlier: int = 0) -> int:
    """Return the checksum of a choice's tokens; `earlier` is that of the tokens in front of them."""
    return crc32(struct.pack(f"<{len(token_ids)}I", *token_ids), earlier)


def _digest(checksums: Sequence[int]) -> str:
    return f"{checksum(checksums):08x}"


class OutputTally:
    """Number and checksum of each choice's output tokens."""

    def __init__(self, num_completions: int) -> None:
        self._counts = [0] * num_completions
        self._checksums = [0] * num_completions

    def add(self, index: int, token_ids: Sequence[int]) -> None:
        """Count further tokens of a choice."""
        self._counts[index] += len(token_ids)
        self._checksums[index] = checksum(token_ids, self._checksums[index])

    def position(self) -> Position:
        """Return the position behind the tokens counted so far."""
        return Position(tuple(self._counts), _digest(self._checksums))

    def has_reached(self, position: Position) -> bool:
        """Return whether as many tokens were counted as the position has."""
        return tuple(self._counts) == position.counts

    def is_at(self, position: Position) -> bool:
        """Return whether these are the tokens of the position, as far as the client knows them."""
        here = self.position()
        return here.counts == position.counts and position.digest in (None, here.digest)


@dataclass(frozen=True, slots=True)
class Resumption:
    """Identity of a resumable request, the same at every router."""

    digest: bytes  # 32 bytes
    position: Position | None = None  # of the client that comes back; None: it asks for the first time

    @classmethod
    def of(cls, identity: str, request_id: str, body: bytes | bytearray, position: Position | None) -> Self:
        """Return that of a client's request. No client can name the request of another one."""
        digest = blake2b(digest_size=32, person=b"baton-resume")
        for part in (identity.encode(), request_id.encode(), body):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return cls(digest.digest(), position)

    def key(self, place: int) -> bytes:
        """Return the name of one of the request's prompts at the workers; each choice appends its index."""
        return self.digest[:16] + place.to_bytes(4, "little")

    def seed(self, place: int) -> int:
        """Return the seed of a prompt for which the request has none: 63 bits."""
        derived = blake2b(self.digest[16:] + place.to_bytes(4, "little"), digest_size=8).digest()
        return int.from_bytes(derived, "little") >> 1


@dataclass(frozen=True, slots=True)
class CompletionStart:
    """Where a choice goes on."""

    num_seen: int  # output tokens that the client has
    token_ids: tuple[int, ...] = ()  # output that a worker remembered: not generated again
    finish_reason: int = 0  # as in the protocol, if that output is complete
    fingerprint: str = ""  # of the worker that made it: another model must not go on with it
