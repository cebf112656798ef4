"""Chats of a size, in the project's own prose, for measuring what a router's request path costs."""

import random
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SYSTEM_SHARE = 1 / 3  # of the bytes; the same for every chat of a size


def chats(num_bytes: int, seed: int) -> Iterator[list[dict[str, str]]]:
    """Endless chats of a system prompt that all share and a question that none has asked before."""
    text = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    rng = random.Random(seed)
    num_system_bytes = round(num_bytes * SYSTEM_SHARE)
    system = {"role": "system", "content": _excerpt(text, 0, num_system_bytes)}
    while True:
        start = rng.randrange(len(text))
        question = f"{rng.getrandbits(64):x} " + _excerpt(text, start, num_bytes - num_system_bytes)
        yield [system, {"role": "user", "content": question}]


def _excerpt(text: str, start: int, length: int) -> str:
    """So many characters from `start` on, from the beginning again when the text ends."""
    return (text[start:] + text * (length // len(text) + 1))[:length]
