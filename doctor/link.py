"""Measurements and findings of the link from one worker's pool to another's."""

from dataclasses import dataclass

from baton.doctor.finding import Finding, failure, ok, warning


@dataclass(frozen=True, slots=True)
class LimitShare:
    """A link's expected bandwidth, and the share of it that was reached."""

    name: str
    bytes_per_s: float  # measured (the best round) or rated
    share: float


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Measured latency and bandwidth of block reads."""

    block_bytes: int
    latency_s: float  # of one block, median
    bytes_per_s: float  # of many blocks, in the best round
    read_bytes: int  # in all rounds
    rdma_bytes: int | None  # received by all RDMA ports meanwhile, for any process; None: no driver has counters
    limit: LimitShare | None  # None: the expected bandwidth is unknown


@dataclass(frozen=True, slots=True)
class Link:
    """One attempt to read a peer's blocks by one transport setting."""

    asked: str  # the transport setting: auto, or a transport's name
    transport: str | None  # the one used; None: none worked
    reason: str  # why it was chosen, or why none worked
    is_same_host: bool
    has_rdma: bool  # the reader's machine has an RDMA device
    rates: LinkRates | None  # None: no block was read


MIN_SHARE = 0.15  # of the expected bandwidth; a machine with twice as many busy threads as cores stays above it
MAX_LATENCY_S = 0.01  # of one block, without the time of its bytes at full bandwidth
MIN_RDMA_SHARE = 0.5  # of the bytes read; if RDMA ports received fewer, the bytes went another way
RDMA = "rdma-requested-tcp-used"
SEE_RDMA = (
    "run ibv_devinfo, and a worker with UCX_LOG_LEVEL=info, to see what UCX finds; the device must be in both "
    "containers (/dev/infiniband), its port ACTIVE, memlock unlimited, and UCX_TLS and UCX_NET_DEVICES must include it"
)


def check_link(link: Link, setting: str) -> Finding:
    """Return the worst finding for a link whose reader has the transport setting `setting`."""
    if link.rates is None or link.transport is None:
        return _unusable(link, setting)
    text = f"{_name(link)}: {_describe(link.rates)}; {link.reason}"
    return _detour(link, setting, text) or _slow(link.rates, text) or ok("link", text)


def _unusable(link: Link, setting: str) -> Finding:
    text = f"{_name(link)}: {link.reason}"
    if link.asked != setting:
        return ok("link", f"{text} (not the configured transport)")
    if setting == "nixl" and link.has_rdma:
        return failure(RDMA, text, SEE_RDMA)
    return failure(
        "link-unusable",
        text,
        "workers cannot hand over KV on this link: choose --transport auto, or fix the cause (a firewall between the "
        "workers, --host, the network namespace, CAP_SYS_PTRACE for nixl in a container)",
    )


def _detour(link: Link, setting: str, text: str) -> Finding | None:
    """Return a finding if KV was read, but not by the intended transport."""
    if link.asked != setting:
        return None
    if setting == "auto" and link.transport == "tcp" and link.has_rdma:
        return failure(RDMA, text, SEE_RDMA)
    if setting == "auto" and link.transport == "tcp" and link.is_same_host:
        remedy = "run both workers as the same user in the same network namespace, or accept TCP"
        return warning("shared-memory-not-used", text, remedy)
    if link.transport == "nixl" and not link.is_same_host and not _used_rdma(link):
        return failure(RDMA, text, SEE_RDMA)
    return None


def _used_rdma(link: Link) -> bool:
    """Whether the ports' counters show RDMA traffic; without counters, whether there is an RDMA device."""
    if link.rates is None or link.rates.rdma_bytes is None:
        return link.has_rdma
    return link.rates.rdma_bytes >= MIN_RDMA_SHARE * link.rates.read_bytes


def _slow(rates: LinkRates, text: str) -> Finding | None:
    remedy = "check whether the machines or the network are busy, and run again when they are idle"
    if rates.limit is not None and rates.limit.share < MIN_SHARE:
        return warning("link-slow", text, remedy)
    if rates.latency_s - rates.block_bytes / rates.bytes_per_s > MAX_LATENCY_S:
        return warning("link-latency", text, remedy)
    return None


def _name(link: Link) -> str:
    if link.transport is None or link.asked == link.transport:
        return link.asked
    return f"{link.asked} chose {link.transport}"


def _describe(rates: LinkRates) -> str:
    speed = f"{rates.bytes_per_s / 1e9:.2f} GB/s"
    if rates.limit is not None:
        speed += f", {rates.limit.share:.2f} of {rates.limit.name} ({rates.limit.bytes_per_s / 1e9:.2f} GB/s)"
    return f"{speed}, a block of {rates.block_bytes / 1024:g} KiB in {rates.latency_s * 1e6:.0f} us"
