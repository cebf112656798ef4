"""Errors of KV transfer.

TransferError
├── TransportUnavailable   this transport does not work here, or not with that peer
├── PeerRefused            the peer is not whom we meant, or does not have what we asked for
├── PeerLost               the peer ended or the connection broke
├── TransferDeadline       not done in time; the destination stays in quarantine until no write can land
├── ChecksumMismatch       a block's bytes are not the announced ones
└── TransferFailed         it failed on this side: no memory for it, or a GPU's error
"""


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
