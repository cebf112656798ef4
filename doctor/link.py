"""What was measured of the way from one pool to another."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LimitShare:
    """What a link should give, and how much of it came."""

    name: str
    bytes_per_s: float  # measured (the best round) or rated
    share: float


@dataclass(frozen=True, slots=True)
class LinkRates:
    """How fast blocks came."""

    block_bytes: int
    latency_s: float  # of one block, median
    bytes_per_s: float  # of many, in the best round
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
