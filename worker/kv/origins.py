"""Origins of announced blocks: the models that computed them, if a worker takes KV from other quantizations."""

from collections.abc import Iterable, Sequence

from baton.engine.kv.origin import KVOrigin
from baton.engine.request import BlockId
from baton.protos import worker_pb2


def origins_to_proto(origins: Iterable[KVOrigin]) -> list[worker_pb2.KVOrigin]:
    """Return the origins of blocks for a peer."""
    return [
        worker_pb2.KVOrigin(quantization=origin.quantization, fingerprint=origin.fingerprint)
        for origin in sorted(origins)
    ]


class ReceivedOrigins:
    """Other models that computed blocks of a request, as a peer announced them."""

    def __init__(self, own: KVOrigin, blocks: Sequence[BlockId], num_known_blocks: int) -> None:
        """`blocks`: those of the request in transfer order, of which the first `num_known_blocks` are not received."""
        self._own = own
        self._blocks = blocks
        self._num_known_blocks = num_known_blocks
        self.by_block: dict[BlockId, frozenset[KVOrigin]] = {}

    @property
    def all(self) -> frozenset[KVOrigin]:
        """The models, of all blocks together."""
        return frozenset().union(*self.by_block.values())

    def note(self, blocks: worker_pb2.BlocksReady) -> None:
        """Record the origins of announced blocks, in place of those that an earlier peer announced and did not send."""
        origins = frozenset(KVOrigin(each.quantization, each.fingerprint) for each in blocks.origins)
        foreign = origins - {self._own}
        first = max(blocks.first_index, self._num_known_blocks)
        for block in self._blocks[first : blocks.first_index + len(blocks.block_ids)]:
            if foreign:
                self.by_block[block] = foreign
            else:
                self.by_block.pop(block, None)
