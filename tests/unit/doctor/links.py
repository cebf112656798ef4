"""Measured links for tests."""

from dataclasses import replace

from baton.doctor.link import LimitShare, Link, LinkRates

RATES = LinkRates(
    block_bytes=65536,
    latency_s=50e-6,
    bytes_per_s=5e9,
    read_bytes=1 << 24,
    rdma_bytes=None,
    limit=LimitShare("a memory copy", 6e9, 0.83),
)
LINK = Link("auto", "shared_memory", "same host", is_same_host=True, has_rdma=False, rates=RATES)


def unusable(asked: str, *, has_rdma: bool = False) -> Link:
    """Return a link over which no block was read."""
    return replace(LINK, asked=asked, transport=None, reason="it does not work", has_rdma=has_rdma, rates=None)


def far(asked: str, transport: str, *, has_rdma: bool, rdma_bytes: int | None = None) -> Link:
    """Return a link to another machine."""
    rates = replace(RATES, rdma_bytes=rdma_bytes)
    return Link(asked, transport, "works", is_same_host=False, has_rdma=has_rdma, rates=rates)


def with_rates(share: float = 0.83, latency_s: float = 50e-6) -> Link:
    """Return a link with this share of its limit."""
    return replace(LINK, rates=replace(RATES, latency_s=latency_s, limit=LimitShare("a memory copy", 6e9, share)))
