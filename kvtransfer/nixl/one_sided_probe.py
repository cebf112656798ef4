"""A probe of how NIXL reads a peer, which NIXL does not report: it reads one unit several times."""

from collections.abc import Awaitable, Callable

from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nixl.connection import NixlConnection
from baton.kvtransfer.nixl.gpu_memory import EXPANDABLE
from baton.kvtransfer.nixl.read import ASK_AFTER_S, Read

# While UCX sets up a connection, which may continue after the first reads, some reads need the peer to poll.
MIN_IMMEDIATE_READS = 10  # in a row
MAX_READS = 60
WARMUP_READS = 10
READS_PER_ROUND = 3
MAX_HELPED_ROUNDS = 2  # a read of the first one may have waited for the set-up
MAX_ROUNDS = 5  # the peer may poll during a round because it reads, or is read by another peer
POLL_REQUEST_DELAY_S = 0.5

RunProbe = Callable[[float], Awaitable[Read]]  # takes the seconds after which the read requests polling


async def ends_immediately(run: RunProbe) -> bool:
    """Return whether reads end inside the call that posts them, as a copy of host memory by the kernel does."""
    num_immediate = 0
    for _ in range(MAX_READS):
        num_immediate = num_immediate + 1 if (await run(ASK_AFTER_S)).finished_immediately else 0
        if num_immediate == MIN_IMMEDIATE_READS:
            return True
    return False


async def is_one_sided(peer: NixlConnection, run: RunProbe) -> bool:
    """Return whether reads end while the peer does not poll; reads that UCX emulates or stages need it to poll.

    The peer must be polling for us at the call, and is again afterwards. Whether it really pauses is verified: it
    reports its number of polls before and after the reads. Raises TransportUnavailable if it polled in all 5 rounds.
    """
    num_helped = 0
    for _ in range(WARMUP_READS):
        await run(ASK_AFTER_S)
    peer.stop_polling()
    try:
        for _ in range(MAX_ROUNDS):
            num_polls = await peer.num_polls_when_idle()
            if await _needs_help(run):
                num_helped += 1
                if num_helped == MAX_HELPED_ROUNDS:
                    return False
            elif await peer.num_polls_when_idle() == num_polls:
                return True
    finally:
        peer.start_polling()
    raise TransportUnavailable(
        f"peer {peer.peer_id} polled for other peers in each of {MAX_ROUNDS} probes, which hides whether NIXL needs "
        "its help"
    )


async def _needs_help(run: RunProbe) -> bool:
    """Return whether one of a round's reads makes no progress until the peer polls; it is the last one."""
    for _ in range(READS_PER_ROUND):
        if (await run(POLL_REQUEST_DELAY_S)).has_requested_polling:
            return True
    return False


async def host_path(run: RunProbe, peer: NixlConnection, have_rdma: bool, one_sided_only: bool) -> str:
    """Describe how host memory is read. Raises TransportUnavailable if UCX emulates it and `one_sided_only` is set."""
    if await ends_immediately(run):
        return "cross-memory attach on one host"
    if have_rdma:
        return "both hosts have RDMA devices"
    if one_sided_only:
        raise TransportUnavailable(
            f"NIXL reaches peer {peer.peer_id} neither by RDMA nor by cross-memory attach, but only by reads that UCX "
            "emulates over TCP"
        )
    return "reads emulated over TCP"


async def device_path(run: RunProbe, peer: NixlConnection, is_same_host: bool, one_sided_only: bool) -> str:
    """Describe how GPU memory is read.

    Raises TransportUnavailable if UCX stages it through host memory and `one_sided_only` is set.
    """
    if await is_one_sided(peer, run):
        return "memory to memory on one host, by devices alone" if is_same_host else "memory to memory by RDMA"
    if one_sided_only:
        lacks = f"no cuda_ipc ({EXPANDABLE})" if is_same_host else "no GPUDirect RDMA between the two hosts"
        raise TransportUnavailable(
            f"NIXL reads the memory of peer {peer.peer_id} only with the peer's help, so UCX stages it through host "
            f"memory: there is {lacks}"
        )
    return "staged through host memory by UCX"
