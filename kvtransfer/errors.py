"""Errors of KV transfer.

TransferError
├── TransportUnavailable   this transport does not work here, or not with that peer
├── PeerRefused            the peer is not whom we meant, or does not have what we asked for
├── PeerLost               the peer ended or the connection broke
├── TransferDeadline       not done in time; the destination stays in quarantine until no write can land
├── ChecksumMismatch       a block's bytes are not the announced ones
└── TransferFailed         it failed on this side: no memory for it, or a GPU's error
"""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager


class TransferError(Exception):
    """Root of the transfer errors."""


class TransportUnavailable(TransferError):
    """This transport does not work here, or not with that peer; the text says why."""


class PeerRefused(TransferError):
    """The peer is not whom we meant (incarnation, fingerprint or size differ), or lacks the blocks asked for."""


class PeerLost(TransferError):
    """The peer ended or the connection broke."""


class TransferDeadline(TransferError):
    """The transfer was not done in time."""


class ChecksumMismatch(TransferError):
    """A block's bytes are not the announced ones."""


class TransferFailed(TransferError):
    """It failed on this side: there was no memory for it, or a GPU had an error."""


MAX_CHARS = 300


def truncated_text(said: object) -> str:
    """A text as it is, if it is a short one of one line; anything else as Python would write it, in short."""
    if isinstance(said, str) and said.isprintable() and len(said) <= MAX_CHARS:
        return said
    return truncated_repr(said)


def truncated_repr(said: object) -> str:
    """Any value as Python would write it, in short."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = MAX_CHARS
    return short.repr(said)


@contextmanager
def torch_failures(what: str) -> Iterator[None]:
    """Within, a RuntimeError of torch is TransferFailed: `what` failed. Others pass, TransferErrors too."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for memory and for devices is all of this kind
        raise TransferFailed(f"{what} failed: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error says, without the frames of C++ that torch adds."""
    return next(iter(str(error).splitlines()), type(error).__name__)
