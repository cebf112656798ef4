"""Blocks that other models computed: known as long as their content is cached."""

from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.origin import KVOrigin
from baton.engine.pooling.config import PoolingParams
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams

GPTQ = frozenset({KVOrigin("gptq", "1")})
BLOCK_SIZE = 4


def taken(blocks: BlockManager, name: str, tokens: list[int], pooling: PoolingParams | None = None) -> Request:
    request = Request(RequestId(name), tokens, len(tokens), SamplingParams(), pooling=pooling)
    assert blocks.take(request, 0, reads_cache=True)
    return request


def received(blocks: BlockManager, tokens: list[int], num_received: int) -> Request:
    """Return a request whose second block and later ones another model announced, and which has some of them."""
    request = taken(blocks, "received", tokens)
    blocks.set_origins(request, num_received, dict.fromkeys(request.block_table[1:], GPTQ))
    blocks.advance(request, num_received)
    return request


def test_a_request_that_reuses_them_knows_their_origins() -> None:
    blocks, tokens = BlockManager(16, BLOCK_SIZE, enable_prefix_caching=True), [*range(13)]
    first = received(blocks, tokens, 12)
    assert first.kv_origins == GPTQ
    blocks.free(first)
    assert taken(blocks, "long", tokens).kv_origins == GPTQ
    assert taken(blocks, "short", tokens[:5]).kv_origins == frozenset()  # its one cached block is our own


def test_blocks_that_did_not_arrive_are_our_own() -> None:
    blocks = BlockManager(16, BLOCK_SIZE, enable_prefix_caching=True)
    request = received(blocks, [*range(13)], 4)
    assert request.kv_origins == frozenset()
    assert blocks.origins(request.block_table) == frozenset()


def test_a_block_with_new_content_has_no_origin() -> None:
    blocks = BlockManager(5, BLOCK_SIZE, enable_prefix_caching=True)
    request = received(blocks, [*range(13)], 13)
    blocks.free(request)
    again = taken(blocks, "again", [*range(100, 113)])
    assert sorted(again.block_table) == [1, 2, 3, 4]
    assert again.kv_origins == blocks.origins(again.block_table) == frozenset()


def test_embeddings_do_not_use_them() -> None:
    blocks, tokens = BlockManager(16, BLOCK_SIZE, enable_prefix_caching=True), [*range(13)]
    blocks.free(received(blocks, tokens, 12))
    assert taken(blocks, "pooled", tokens, PoolingParams()).num_computed_tokens == BLOCK_SIZE
