"""LoRA adapters of a model as the console shows them: at how many workers each is loaded, and in a slot."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from baton.router.adapters.adapter import Adapter
from baton.router.workers.connection import WorkerConnection

MAX_ADAPTERS = 50  # of a model


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """One adapter."""

    name: str
    loaded: int  # workers that have loaded it
    resident: int  # those of them that have it in a slot, so that a step can use it without a copy


def adapter_rows(adapters: Sequence[Adapter], connections: Sequence[WorkerConnection]) -> tuple[AdapterRow, ...]:
    """Return the adapters that are in the most slots first; beyond `MAX_ADAPTERS` they are left out."""
    if not adapters:
        return ()
    loads = [connection.load for connection in connections if connection.description is not None]
    resident = Counter(name for load in loads for name in load.reported.resident_adapters)
    shown = nsmallest(MAX_ADAPTERS, adapters, key=lambda adapter: (-resident[adapter.name], adapter.name))
    return tuple(
        AdapterRow(each.name, sum(each.name in load.adapters for load in loads), resident[each.name]) for each in shown
    )
