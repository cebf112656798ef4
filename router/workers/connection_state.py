"""State of a connection to a worker."""

from enum import Enum


class ConnectionState(Enum):
    """State of a connection."""

    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"  # it finishes its requests and takes no new ones
    DRAINED = "drained"  # its requests have ended; it may be stopped or undrained
    SHORT_OF_RANKS = "short_of_ranks"  # its group waits for ranks: it neither computes nor responds to its peers

    @property
    def is_draining(self) -> bool:
        """Whether the worker is reachable but takes no new requests."""
        return self in (ConnectionState.DRAINING, ConnectionState.DRAINED)
