"""How one finds out in what way NIXL reads a peer, which it does not say: by reads of one unit, on trial."""

from collections.abc import Awaitable, Callable

from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nixl.gpu_memory import EXPANDABLE
from baton.kvtransfer.nixl.peer import NixlPeer
from baton.kvtransfer.nixl.read import ASK_AFTER_S, Read

# While two UCX sides still set their connection up, which may go on after first reads, some reads need the peer's help.
ENOUGH_TRIALS = 10  # reads in a row that were done at once
MAX_TRIALS = 60
HELPED_TRIALS = 10
TRIALS_AT_REST = 3
MAX_ROUNDS_AT_REST = 5  # a peer that others read, or that reads itself, may poll in one
TRIAL_PATIENCE_S = 0.5

RunTrial = Callable[[float], Awaitable[Read]]  # takes the seconds after which the read asks the peer for help


async def ends_at_once(run: RunTrial) -> bool:
    """Whether reads end while one waits, as a copy of host memory by the kernel does."""
    num_at_once = 0
    for _ in range(MAX_TRIALS):
        num_at_once = num_at_once + 1 if (await run(ASK_AFTER_S)).finished_at_once else 0
        if num_at_once == ENOUGH_TRIALS:
            return True
    return False


async def needs_no_help(peer: NixlPeer, run: RunTrial) -> bool:
    """Whether reads end though the peer rests, as a device's do; what UCX emulates or stages needs the peer.

    `peer` was asked to poll before, and is again afterwards. That it rests is not taken for granted: before the reads
    and after them it says how often it has polled. Raises TransportUnavailable if it has, again and again.
    """
    for _ in range(HELPED_TRIALS):
        await run(ASK_AFTER_S)
    peer.stop_polling()
    try:
        for _ in range(MAX_ROUNDS_AT_REST):
            before = await peer.polls_at_rest()
            reads = [await run(TRIAL_PATIENCE_S) for _ in range(TRIALS_AT_REST)]
            if any(read.has_asked for read in reads):
                return False
            if await peer.polls_at_rest() == before:
                return True
    finally:
        peer.ask()
    raise TransportUnavailable(
        f"peer {peer.peer_id} polled for others in each of {MAX_ROUNDS_AT_REST} trials, which hides whether NIXL needs "
        "its help"
    )


async def host_path(run: RunTrial, peer: NixlPeer, have_rdma: bool, one_sided_only: bool) -> str:
    """How host memory is read, in words. Raises TransportUnavailable for what UCX emulates."""
    if await ends_at_once(run):
        return "cross-memory attach on one host"
    if have_rdma:
        return "both hosts have RDMA devices"
    if one_sided_only:
        raise TransportUnavailable(
            f"NIXL reaches peer {peer.peer_id} neither by RDMA nor by cross-memory attach, only by reads that UCX "
            "emulates over TCP"
        )
    return "reads emulated over TCP"


async def device_path(run: RunTrial, peer: NixlPeer, is_same_host: bool, one_sided_only: bool) -> str:
    """How a GPU's memory is read, in words. Raises TransportUnavailable for what UCX stages through host memory."""
    if await needs_no_help(peer, run):
        return "memory to memory on one host, by devices alone" if is_same_host else "memory to memory by RDMA"
    if one_sided_only:
        lacks = f"no cuda_ipc ({EXPANDABLE})" if is_same_host else "no GPUDirect RDMA between the two hosts"
        raise TransportUnavailable(
            f"NIXL reads the memory of peer {peer.peer_id} only with the peer's help, so UCX stages it through host "
            f"memory: there is {lacks}"
        )
    return "staged through host memory by UCX"
