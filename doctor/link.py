"""What was measured of the way from one pool to another."""

from dataclasses import dataclass

from baton.doctor.finding import Finding, failure, ok, warning


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


LEAST_SHARE = 0.15  # of what the link should give; a machine with twice as much to do as cores stays above it
MOST_LATENCY_S = 0.01  # of one block, beside the bytes' own time
LEAST_RDMA_SHARE = 0.5  # of the bytes that were read: ports that received less did not carry them
RDMA = "rdma-requested-tcp-used"
SEE_RDMA = (
    "ibv_devinfo and UCX_LOG_LEVEL=info of a worker say what UCX finds; the device must be in both containers "
    "(/dev/infiniband), its port ACTIVE, memlock unlimited, and UCX_TLS and UCX_NET_DEVICES must not leave it out"
)


def check_link(link: Link, setting: str) -> Finding:
    """What is to be said of a link whose reader has the transport setting `setting`: the worst that is true of it."""
    if link.rates is None or link.transport is None:
        return _unusable(link, setting)
    text = f"{_name(link)}: {_describe(link.rates)}; {link.reason}"
    return _detour(link, setting, text) or _slow(link.rates, text) or ok("link", text)


def _unusable(link: Link, setting: str) -> Finding:
    text = f"{_name(link)}: {link.reason}"
    if link.asked != setting:
        return ok("link", f"{text} (it is not what was asked for)")
    if setting == "nixl" and link.has_rdma:
        return failure(RDMA, text, SEE_RDMA)
    return failure(
        "link-unusable",
        text,
        "workers cannot hand KV over on this way: choose --transport auto, or see to what the text names (a firewall "
        "between the workers, --host, the network namespace, CAP_SYS_PTRACE for nixl in a container)",
    )


def _detour(link: Link, setting: str, text: str) -> Finding | None:
    """KV came, but not on the way that was meant."""
    if link.asked != setting:
        return None
    if setting == "auto" and link.transport == "tcp" and link.has_rdma:
        return failure(RDMA, text, SEE_RDMA)
    if setting == "auto" and link.transport == "tcp" and link.is_same_host:
        remedy = "run both workers as one user and in one network namespace, or accept TCP"
        return warning("shared-memory-not-used", text, remedy)
    if link.transport == "nixl" and not link.is_same_host and not _came_by_rdma(link):
        return failure(RDMA, text, SEE_RDMA)
    return None


def _came_by_rdma(link: Link) -> bool:
    """As the ports' own counters say; where nobody counts, as the devices let us hope."""
    if link.rates is None or link.rates.rdma_bytes is None:
        return link.has_rdma
    return link.rates.rdma_bytes >= LEAST_RDMA_SHARE * link.rates.read_bytes


def _slow(rates: LinkRates, text: str) -> Finding | None:
    remedy = "see whether the machines or the network are busy, and examine again when they are idle"
    if rates.limit is not None and rates.limit.share < LEAST_SHARE:
        return warning("link-slow", text, remedy)
    if rates.latency_s - rates.block_bytes / rates.bytes_per_s > MOST_LATENCY_S:
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
