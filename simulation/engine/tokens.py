"""The tokens of a simulated model: each token is a function of all tokens before it, and of nothing else.

A request that moves to another worker in mid-stream must therefore continue with the tokens it would have had.
"""

from array import array
from collections.abc import Sequence
from sys import byteorder
from zlib import crc32

from baton.engine.request import Request, RequestId
from baton.simulation.engine.spec import WorkerSpec


class PrefixDigest:
    """The digest of a growing sequence of tokens."""

    __slots__ = ("_num_tokens", "_value")

    def __init__(self) -> None:
        self._num_tokens = 0
        self._value = 0

    def extended(self, token_ids: Sequence[int]) -> int:
        """Return the digest of `token_ids`, which begin with those of the last call."""
        if len(token_ids) == self._num_tokens + 1:
            self._value = crc32(token_ids[-1].to_bytes(4, "little"), self._value)
            self._num_tokens += 1
        elif len(token_ids) > self._num_tokens:
            new = array("I", token_ids[self._num_tokens :])
            if byteorder == "big":
                new.byteswap()
            self._value = crc32(new, self._value)
            self._num_tokens = len(token_ids)
        return self._value


class Tokens:
    """The digests of an engine's requests, and the tokens that follow from them."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._digests: dict[RequestId, PrefixDigest] = {}

    def next_token(self, request: Request) -> int:
        """Return the token that follows the request's tokens."""
        digest = self._digests.setdefault(request.request_id, PrefixDigest())
        return token_of(digest.extended(request.token_ids), self._spec)

    def forget(self, request_id: RequestId) -> None:
        """Drop the digest of an ended request."""
        self._digests.pop(request_id, None)


def token_of(digest: int, spec: WorkerSpec) -> int:
    """Return the token that follows a prefix with this digest."""
    return spec.first_token_id + digest % spec.num_token_ids


def continuation(token_ids: Sequence[int], count: int, spec: WorkerSpec) -> list[int]:
    """Return the `count` tokens after `token_ids`, which every worker with this spec must generate."""
    tokens, digest = list(token_ids), PrefixDigest()
    for _ in range(count):
        tokens.append(token_of(digest.extended(tokens), spec))
    return tokens[len(token_ids) :]
