"""Errors of KV transfer.

TransferError
├── TransportUnavailable   this transport does not work here, or not with that peer
├── PeerRefused            the peer is not the expected one, or does not have the requested blocks
├── PeerLost               the peer ended or the connection broke
├── TransferDeadline       not done in time; the destination stays in quarantine until no write can land
├── ChecksumMismatch       a block's bytes differ from the announced ones
└── TransferFailed         the transfer failed on this side: out of memory, or a GPU error
"""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager


class TransferError(Exception):
    """Root of the transfer errors."""


class TransportUnavailable(TransferError):
    """This transport does not work here, or not with that peer; the message gives the reason."""


class PeerRefused(TransferError):
    """The peer is not the expected one (incarnation, fingerprint or size differ), or lacks the requested blocks."""


class PeerLost(TransferError):
    """The peer ended or the connection broke."""


class TransferDeadline(TransferError):
    """The transfer missed its deadline."""


class ChecksumMismatch(TransferError):
    """A block's bytes differ from the announced ones."""


class TransferFailed(TransferError):
    """The transfer failed on this side: out of memory, or a GPU error."""


MAX_CHARS = 300


def truncated_text(value: object) -> str:
    """Return a printable string of at most 300 characters unchanged, and the truncated repr of any other value."""
    if isinstance(value, str) and value.isprintable() and len(value) <= MAX_CHARS:
        return value
    return truncated_repr(value)


def truncated_repr(value: object) -> str:
    """Return a value's repr; strings in it, and objects that reprlib does not know, are cut to 300 characters."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = MAX_CHARS
    return short.repr(value)


@contextmanager
def torch_failures(what: str) -> Iterator[None]:
    """Return a context that turns torch's RuntimeError into TransferFailed: "`what` failed". Other errors pass."""
    try:
        yield
    except RuntimeError as error:  # torch's memory and device errors are all of this type
        raise TransferFailed(f"{what} failed: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without the C++ stack frames that torch appends."""
    return next(iter(str(error).splitlines()), type(error).__name__)
