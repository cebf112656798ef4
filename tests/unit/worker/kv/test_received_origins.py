"""Origins of blocks that a peer announces."""

from baton.engine.kv.origin import KVOrigin
from baton.engine.request import BlockId
from baton.protos import worker_pb2
from baton.worker.kv.origins import ReceivedOrigins, origins_to_proto

OWN, GPTQ, OTHER_GPTQ = KVOrigin("bf16", "0"), KVOrigin("gptq", "1"), KVOrigin("gptq", "2")
TABLE = [BlockId(block) for block in (7, 3, 9, 4)]


def announced(first_index: int, count: int, *origins: KVOrigin) -> worker_pb2.BlocksReady:
    block_ids = range(100, 100 + count)  # of the peer's pool
    return worker_pb2.BlocksReady(first_index=first_index, block_ids=block_ids, origins=origins_to_proto(origins))


def test_only_blocks_that_are_received_from_another_model_are_foreign() -> None:
    received = ReceivedOrigins(OWN, TABLE, num_known_blocks=1)
    received.note(announced(0, 2, GPTQ, OWN))  # a lease announces blocks from the first one on
    received.note(announced(2, 1, OWN))
    received.note(announced(3, 1))  # by a peer that allows no other quantization
    assert received.by_block == {3: {GPTQ}}
    assert received.all == {GPTQ}


def test_models_in_one_format_with_other_weights_differ() -> None:
    received = ReceivedOrigins(GPTQ, TABLE, num_known_blocks=0)
    received.note(announced(0, 3, GPTQ))
    assert received.all == frozenset()
    received.note(announced(3, 9, OTHER_GPTQ))
    assert received.by_block == {4: {OTHER_GPTQ}}


def test_blocks_that_a_second_peer_sends_are_not_those_that_the_first_announced() -> None:
    received = ReceivedOrigins(OWN, TABLE, num_known_blocks=0)
    received.note(announced(0, 4, GPTQ))
    second = ReceivedOrigins(OWN, TABLE, num_known_blocks=1)
    second.by_block |= received.by_block
    second.note(announced(1, 2, OWN))
    assert second.by_block == {7: {GPTQ}, 4: {GPTQ}}
    second.note(announced(3, 1, OTHER_GPTQ))
    assert second.by_block == {7: {GPTQ}, 4: {OTHER_GPTQ}}
