"""What a peer sent, in the text of an error or a log: short, and with what cannot be printed escaped."""

import reprlib

MAX_CHARS = 300


def words(said: object) -> str:
    """A text as it is, if it is a short one of one line; anything else as Python would write it, in short."""
    if isinstance(said, str) and said.isprintable() and len(said) <= MAX_CHARS:
        return said
    return quoted(said)


def quoted(said: object) -> str:
    """Any value as Python would write it, in short."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = MAX_CHARS
    return short.repr(said)
