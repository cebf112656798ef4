"""Work that an engine's requests still need."""

from collections.abc import Mapping

from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import Request, RequestId, RequestStatus
from baton.engine.scheduling.waiting_queue import OrderedRequests


class Backlog:
    """Counts over a scheduler's requests, for reports of its load."""

    def __init__(self, requests: Mapping[RequestId, Request], waiting: OrderedRequests, blocks: BlockManager) -> None:
        self._requests = requests
        self._waiting = waiting
        self._blocks = blocks

    @property
    def num_receiving(self) -> int:
        """Requests whose KV is computed elsewhere and not all here yet, with blocks for it or without."""
        requests = self._requests.values()
        return sum(each.receives_kv and each.status is not RequestStatus.FINISHED for each in requests)

    @property
    def num_awaited_blocks(self) -> int:
        """Free blocks that waiting requests take for KV and state.

        Apart from cached ones that were in use when they arrived: other cached blocks are free ones, too.
        """
        num_state, count = self._blocks.groups.num_state_blocks, self._blocks.num_blocks_for
        return sum(
            count(each.num_tokens - each.num_cached_tokens) + each.num_idle_blocks + num_state for each in self._waiting
        )

    @property
    def num_queued_tokens(self) -> int:
        """Tokens that this engine must compute until every request has caught up.

        Excludes tokens of a waiting request that were in the prefix cache when it arrived, and remote prefills.
        """
        return sum(request.num_tokens_to_compute for request in self._requests.values())
