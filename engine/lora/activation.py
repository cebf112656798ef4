"""Activated LoRA: an adapter changes a request's tokens from the last invocation in its prompt on, as in PEFT.

In front of the invocation the KV is the model's, and so are the hashes of the blocks there. The block in which the
invocation begins, and all later ones, have hashes of the adapter. The invocation's tokens determine KV, so they are a
part of the adapter's digest, from which routers and workers read them.
"""

import re
from array import array
from collections.abc import Mapping, Sequence

import numpy as np

MAX_INVOCATION_TOKENS = 128
MAX_TOKEN_ID = (1 << 24) - 1
INACTIVE = 1 << 62  # behind all tokens: the prompt does not invoke the adapter
ACTIVATED_DIGEST = re.compile(r"[0-9a-f]+:([0-9a-f]{1,6}(?:,[0-9a-f]{1,6})*)")


def activated_digest(digest: str, invocation: Sequence[int]) -> str:
    """Return the digest of an adapter with an invocation; empty: of one that changes all tokens."""
    return f"{digest}:{','.join(f'{token_id:x}' for token_id in invocation)}" if invocation else digest


def invocation_of(digest: str) -> tuple[int, ...]:
    """Return the invocation tokens of the adapter with a digest; empty: it changes all tokens."""
    found = ACTIVATED_DIGEST.fullmatch(digest)
    return () if found is None else tuple(int(token_id, 16) for token_id in found[1].split(","))


def first_adapted(digest: str, prompt: Sequence[int]) -> int:
    """Return the index of the first token that the adapter with a digest changes; INACTIVE: it changes none."""
    invocation = invocation_of(digest)
    if not invocation:
        return 0
    tokens = np.frombuffer(array("q", prompt), dtype=np.int64)
    starts = np.arange(len(tokens) - len(invocation) + 1)  # of occurrences, as far as they were compared
    for place, token_id in enumerate(invocation):
        starts = starts[tokens[starts + place] == token_id]
        if not len(starts):
            return INACTIVE
    return int(starts[-1])


def with_adapter_mark(marks: Mapping[int, bytes], digest: str, start: int, block_size: int) -> Mapping[int, bytes]:
    """Return the marks of block hashes with that of an adapter which begins to change tokens at `start`.

    One that changes all tokens has no mark: it is part of the root's hash; see `root_adapter`.
    """
    if start == 0:
        return marks
    block, offset = divmod(start, block_size)
    return {**marks, block: marks.get(block, b"") + b"lora" + offset.to_bytes(4, "little") + digest.encode()}


def root_adapter(adapter_id: str, start: int) -> str:
    """Return the adapter of a first block's parent hash: none if the first token is the model's."""
    return adapter_id if start == 0 else ""
