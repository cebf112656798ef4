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

    def __init__(self, own: KVOrigin, block_table: Sequence[BlockId], num_known_blocks: int) -> None:
        """`num_known_blocks`: the first blocks of the table, which are not received."""
        self._own = own
        self._block_table = block_table
        self._num_known_blocks = num_known_blocks
        self.by_block: dict[BlockId, frozenset[KVOrigin]] = {}

    @property
    def all(self) -> frozenset[KVOrigin]:
        """The models, of all blocks together."""
        return frozenset().union(*self.by_block.values())

    def note(self, blocks: worker_pb2.BlocksReady) -> None:
        """Record the origins of announced blocks."""
        origins = frozenset(KVOrigin(each.quantization, each.fingerprint) for each in blocks.origins)
        foreign = origins - {self._own}
        if foreign:
            first = max(blocks.first_index, self._num_known_blocks)
            announced = self._block_table[first : blocks.first_index + len(blocks.block_ids)]
            self.by_block |= dict.fromkeys(announced, foreign)
