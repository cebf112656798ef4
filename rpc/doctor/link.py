"""What was measured of the way from one pool to another."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LimitShare:
    """What a link should give, and how much of it came."""

    name: str
    bytes_per_s: float
    share: float  # median of the rounds' shares


@dataclass(frozen=True, slots=True)
class LinkRates:
    """How fast blocks came; medians over a few rounds."""

    block_bytes: int
    latency_s: float  # of one block
    bytes_per_s: float  # of many
    read_bytes: int  # in all
    rdma_bytes: int | None  # that RDMA ports received meanwhile, whoever for; None: nobody counts
    limit: LimitShare | None  # None: nothing is known of the link


@dataclass(frozen=True, slots=True)
class Link:
    """One attempt to read a peer's blocks by a transport."""

    asked: str  # the transport setting: auto, or a transport's name
    transport: str | None  # that was used; None: none worked
    reason: str  # why this one, or why none
    is_same_host: bool
    has_rdma: bool  # the reader's machine has an RDMA device
    rates: LinkRates | None  # None: no block came
