"""Chats of a given size, from the project's own texts, for measuring a router's request path."""

import random
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SYSTEM_SHARE = 1 / 3  # of the bytes; identical for all chats of a size


def chats(num_bytes: int, seed: int) -> Iterator[list[dict[str, str]]]:
    """Yield endless chats with a common system prompt and a new question each."""
    text = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    rng = random.Random(seed)
    num_system_bytes = round(num_bytes * SYSTEM_SHARE)
    system = {"role": "system", "content": _excerpt(text, 0, num_system_bytes)}
    while True:
        start = rng.randrange(len(text))
        question = f"{rng.getrandbits(64):x} " + _excerpt(text, start, num_bytes - num_system_bytes)
        yield [system, {"role": "user", "content": question}]


def _excerpt(text: str, start: int, length: int) -> str:
    """Return `length` characters from `start`, wrapping around at the end."""
    return (text[start:] + text * (length // len(text) + 1))[:length]
