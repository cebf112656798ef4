"""The workers that the router is connected to, as they are looked up for every request and change seldom."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from baton.router.policy.cluster import WorkerRole
from baton.router.workers.connection import ROLES, ConnectionState, WorkerConnection


@dataclass(frozen=True, slots=True)
class Roster:
    """Good until a worker comes, goes, or begins to drain."""

    by_incarnation: Mapping[str, WorkerConnection]
    block_sizes: frozenset[int]  # that some worker has
    max_model_len: int | None  # longest prompt plus output that some decode worker takes; None if none is ready
    same_ids: Mapping[str, list[str]]  # worker ids that several of them go by, and the addresses of these


def make_roster(connections: Iterable[WorkerConnection]) -> Roster:
    """The roster of those of the connections that have a worker."""
    by_incarnation, block_sizes, lengths = {}, set(), set()
    addresses: defaultdict[str, list[str]] = defaultdict(list)  # by worker id
    for connection in connections:
        description = connection.description
        if description is None:
            continue
        by_incarnation[description.incarnation] = connection
        block_sizes.add(description.block_size)
        if connection.state is not ConnectionState.CONNECTING:
            addresses[description.worker_id].append(connection.address)
        if connection.state is ConnectionState.READY and ROLES[description.role] is not WorkerRole.PREFILL:
            lengths.add(description.max_model_len)
    same_ids = {worker_id: several for worker_id, several in addresses.items() if len(several) > 1}
    return Roster(by_incarnation, frozenset(block_sizes), max(lengths, default=None), same_ids)
